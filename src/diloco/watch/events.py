"""events.jsonl: one strict JSON object a line with "time" (unix seconds), "kind", "step", and values named with units.

A non-finite value is written as described in `strict`. A line torn by a killed writer is passed over by readers and cut
off by the next writer. The kinds that a training run writes:

    train       tokens, loss, loss_per_replica, inner_lr, grad_norm, tokens_per_s
    eval        tokens, loss, loss_se, bits_per_byte, weights ("global", "replica 0", ...); virtual_s (over a
                simulated link)
    round       at the step it landed: round, fragment, sent_step, committed, partial, steps, left_out, spread_median,
                spread_max, cosine_median, noise, outer_gradient_norm, outer_update_norm, outer_lr, checksum,
                bytes_sent, site_bytes_sent, encode_s, wire_s, wait_s, stall_s
    interval    sync_every, noise
    checkpoint  path, stall_s (how long training waited)
    note        text
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from diloco.errors import BadInput
from diloco.watch import strict

_SCAN_BYTES = 1 << 16


class EventLog:
    """Appends events to one file; each is on its way to disk when `write` returns. Also a context manager."""

    def __init__(self, path: str | Path, clock: Callable[[], float] = time.time) -> None:
        self.path = Path(path)
        self._clock = clock
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _cut_torn_line(self.path)
        self._file = open(self.path, "a", encoding="utf-8")

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Append one event: numbers, text, booleans, None, and lists or dicts of those."""
        record = {"time": self._clock(), "kind": kind, "step": step, **values}
        self._file.write(strict.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_events(path: str | Path, kinds: Collection[str] | None = None) -> Iterator[dict]:
    """The events in the order they were written, only those of `kinds` if given; NaN and infinities are back in place.

    Raises:
        BadInput: a whole line is not an event, naming file and line.
    """
    for _, event in _lines(Path(path)):
        if kinds is None or event["kind"] in kinds:
            yield event


def truncate_after(path: str | Path, step: int) -> int:
    """Drop events later than `step`, so that a run resumed there writes each event once. Returns how many went."""
    path = Path(path)
    if not path.exists():
        return 0
    kept, dropped = [], 0
    for line, event in _lines(path):
        if event["step"] <= step:
            kept.append(line)
        else:
            dropped += 1
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(b"".join(kept))
    os.replace(temporary, path)
    return dropped


def _lines(path: Path) -> Iterator[tuple[bytes, dict]]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                yield line, _parse(line, f"{path}:{number}")


def _parse(line: bytes, where: str) -> dict:
    try:
        event = strict.loads(line.decode("utf-8"))
    except ValueError as error:
        raise BadInput(f"{where} is not an event ({error}): remove that line") from error
    if not isinstance(event, dict) or not {"time", "kind", "step"} <= set(event):
        raise BadInput(f"{where} is not an event (no time, kind and step): remove that line")
    return event


def _cut_torn_line(path: Path) -> None:
    """A file that does not end in a newline was left by a killed writer: go back to the last one that does."""
    if not path.exists():
        return
    with open(path, "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - _SCAN_BYTES)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        file.truncate(end)
