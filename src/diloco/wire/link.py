"""Slow links without a slow network: a link's arithmetic, a throttle for real messages, a clock for simulated ones.

A message leaves a replica over one line. Messages follow one another on it, byte after byte; the delay of one overlaps
with the sending of the next.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from diloco.errors import BadInput

# A full Ethernet frame is 1538 bytes on the line (preamble, addresses, checksum and gap included) and carries 1448 of
# TCP's payload: less 38 of Ethernet, 20 of IP, 32 of TCP with timestamps.
LINE_BYTES_PER_SENT_BYTE = 1538 / 1448

_BIT_PER_S = {"gbit": 1e9, "mbit": 1e6, "kbit": 1e3, "bit": 1.0}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_QUANTITY = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]+)")


@dataclass(frozen=True)
class Link:
    """What joins the replicas: each sends at `bit_per_s`, and what it sends arrives `delay_s` after it has left.

    Raises BadInput for a rate that is not above 0, or a delay below 0.
    """

    bit_per_s: float
    """Of the line itself, framing included, in each direction."""
    delay_s: float = 0.0
    """One way."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bit_per_s) and self.bit_per_s > 0):
            raise BadInput(f"link has a rate of {self.bit_per_s} bit/s: give one above 0, as in 100mbit,25ms")
        if not (math.isfinite(self.delay_s) and self.delay_s >= 0):
            raise BadInput(f"link has a delay of {self.delay_s} s: give 0 or more, as in 100mbit,25ms")

    @classmethod
    def parse(cls, text: str) -> Link:
        """`100mbit`, `2.5gbit,0.5ms`, `800kbit,1s`: the rate, and the one-way delay if there is one.

        Raises BadInput for anything else.
        """
        rate, comma, delay = text.strip().lower().partition(",")
        bit_per_s = _quantity(rate, _BIT_PER_S)
        delay_s = _quantity(delay, _SECONDS) if comma else 0.0
        if bit_per_s is None or delay_s is None:
            raise BadInput(
                f"link is {text!r}: give a rate in kbit, mbit or gbit (a second) and, after a comma, a one-way delay "
                "in us, ms or s, as in 100mbit,25ms"
            )
        return cls(bit_per_s, delay_s)

    def __str__(self) -> str:
        """What `parse` reads, to 12 digits."""
        rate = _written(self.bit_per_s, _BIT_PER_S)
        return f"{rate},{_written(self.delay_s, _SECONDS)}" if self.delay_s else rate

    def line_s(self, sent_bytes: float) -> float:
        """Seconds for which a message of so many payload bytes keeps the line busy."""
        return 8 * LINE_BYTES_PER_SENT_BYTE * sent_bytes / self.bit_per_s

    def seconds(self, sent_bytes: float, hops: int = 1) -> float:
        """From the start of an exchange on an idle line to its end: `sent_bytes` by each replica, in `hops` messages
        of which each waits for the one before."""
        return self.line_s(sent_bytes) + hops * self.delay_s


def as_link(value: Link | str) -> Link:
    """A link from itself or from its text. Raises BadInput for anything else."""
    if isinstance(value, Link):
        return value
    if isinstance(value, str):
        return Link.parse(value)
    raise BadInput(f"link is {value!r}: give a Link, or text as in 100mbit,25ms")


def _quantity(text: str, units: dict[str, float]) -> float | None:
    found = _QUANTITY.fullmatch(text.strip())
    if found is None or found[2] not in units:
        return None
    try:
        return float(found[1]) * units[found[2]]
    except ValueError:  # 1.2.3
        return None


def _written(value: float, units: dict[str, float]) -> str:
    """In the largest unit of which there is at least one, else in the smallest."""
    value = float(f"{value:.12g}")
    name, unit = next(((n, u) for n, u in units.items() if value >= u), list(units.items())[-1])
    return f"{value / unit:.12g}{name}"


class _Line:
    """When the line of one replica is free again."""

    def __init__(self, link: Link) -> None:
        self.link, self.free_s = link, 0.0

    def arrival_s(self, ready_s: float, sent_bytes: float, hops: int) -> float:
        """Puts a message on the line behind those before it; when it, and the hops that depend on it, are through."""
        self.free_s = max(ready_s, self.free_s) + self.link.line_s(sent_bytes)
        return self.free_s + hops * self.link.delay_s


class Throttle:
    """Makes this process's messages as slow as the link, in wall-clock time and without root: each is held back until
    it could have arrived. Bytes are TCP payload, as the meter counts them.

    A link faster than the real network changes nothing. Several threads may share it, as they would the line.
    """

    def __init__(
        self, link: Link, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.link, self._clock, self._sleep = link, clock, sleep
        self._line = _Line(link)
        self._booking = threading.Lock()

    def send(self, sent_bytes: float, hops: int = 1) -> float:
        """A message starts now. Returns the time, on `clock`, before which it cannot have arrived."""
        with self._booking:
            return self._line.arrival_s(self._clock(), sent_bytes, hops)

    def wait(self, until: float) -> None:
        """Sleeps until then; not at all if that is past."""
        remaining = until - self._clock()
        if remaining > 0:
            self._sleep(remaining)


class VirtualClock:
    """The time that M replicas simulated in one process would see: one clock and one line each, all starting at 0.

    Nothing here looks at a real clock: times are what `compute`, `send` and `wait` add up to.
    """

    def __init__(self, replicas: int, link: Link) -> None:
        self.link = link
        self._lines = [_Line(link) for _ in range(replicas)]
        self._now_s = [0.0] * replicas
        self.stalled_s = [0.0] * replicas
        """Seconds each replica has waited for messages."""

    @property
    def elapsed_s(self) -> float:
        """The time on the clock that is furthest ahead."""
        return max(self._now_s)

    def now(self, rank: int) -> float:
        return self._now_s[rank]

    def compute(self, rank: int, seconds: float) -> None:
        """Replica `rank` has computed for so long. What is on its line goes on travelling."""
        self._now_s[rank] += seconds

    def send(self, rank: int, sent_bytes: float, hops: int, ready_s: float) -> float:
        """When a message of replica `rank`, ready to leave at `ready_s`, arrives. Messages leave in order of calls."""
        return self._lines[rank].arrival_s(ready_s, sent_bytes, hops)

    def wait(self, rank: int, until: float) -> float:
        """Replica `rank` does nothing until then. Returns the seconds it stalled, 0 if that is past."""
        stall_s = max(0.0, until - self._now_s[rank])
        self._now_s[rank] += stall_s
        self.stalled_s[rank] += stall_s
        return stall_s

    def state_dict(self) -> dict[str, list[float]]:
        """Seconds per replica, for a checkpoint."""
        return {
            "now_s": list(self._now_s),
            "line_free_s": [line.free_s for line in self._lines],
            "stalled_s": list(self.stalled_s),
        }

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        """Raises BadInput where the state is of another number of replicas."""
        replicas = len(self._lines)
        if len(state["now_s"]) != replicas:
            raise BadInput(
                f"the saved clock is of {len(state['now_s'])} replicas, this one of {replicas}: resume with as many "
                "replicas as were saved"
            )
        self._now_s, self.stalled_s = list(state["now_s"]), list(state["stalled_s"])
        for line, free_s in zip(self._lines, state["line_free_s"], strict=True):
            line.free_s = free_s
