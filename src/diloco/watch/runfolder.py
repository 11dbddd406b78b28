"""A run folder: config.json, events.jsonl, checkpoints/, receipt.json, row.csv, report.html."""

from __future__ import annotations

import csv
import errno
import io
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from diloco.errors import BadInput
from diloco.watch import strict
from diloco.watch.events import read_events

CONFIG, EVENTS, CHECKPOINTS = "config.json", "events.jsonl", "checkpoints"
RECEIPT, ROW, REPORT = "receipt.json", "row.csv", "report.html"
TOKENIZER = "tokenizer.json"
"""There unless the run's tokens are bytes, so that a run folder can be sampled from on any machine."""

_ROW_TYPES: dict[str, type] = {
    "run": str,
    "method": str,
    "model": str,
    "params": int,
    "params_embedding": int,
    "params_body": int,
    "tokens": int,
    "replicas": int,
    "sync_every": int,
    "fragments": int,
    "codec": str,
    "batch_tokens": int,
    "inner_lr": float,
    "outer_lr": float,
    "outer_momentum": float,
    "seed": int,
    "loss": float,
    "loss_se": float,
    "flops": float,
    "seconds": float,
    "bytes_sent": int,
}
ROW_COLUMNS = tuple(_ROW_TYPES)
"""What laws are fitted on: one line a run. `loss` is in nats per token, `bytes_sent` per replica."""


class RunFolder:
    """Reads one run folder.

    Raises:
        BadInput: the folder is not there or has no config.json.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise BadInput(f"run folder {self.path} does not exist: name a folder that `diloco train` made")
        if not (self.path / CONFIG).is_file():
            raise BadInput(f"{self.path} is not a run folder (no {CONFIG}): name a folder that `diloco train` made")

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def config(self) -> dict:
        return read_json(self.path / CONFIG)

    @property
    def receipt(self) -> dict | None:
        """None while the run has not ended."""
        return read_json(self.path / RECEIPT) if (self.path / RECEIPT).exists() else None

    @property
    def row(self) -> dict | None:
        """None while the run has not ended."""
        return read_row(self.path / ROW) if (self.path / ROW).exists() else None

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    def events(self, kinds: Collection[str] | None = None) -> Iterator[dict]:
        """Events so far, as `read_events`; none before the first is written."""
        path = self.path / EVENTS
        return read_events(path, kinds) if path.exists() else iter(())


def atomic_write_text(path: str | Path, text: str) -> None:
    """Write `text` so that a reader sees the old file or the new one, never half.

    Raises:
        IsADirectoryError: `path` is a folder, which names no file.
    """
    path = Path(path)
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8", newline="")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: str | Path, record: dict) -> None:
    """Write one object as strict JSON (NaN and infinities as in `strict`), atomically."""
    atomic_write_text(path, strict.dumps(record, indent=2) + "\n")


def read_json(path: str | Path) -> dict:
    """The object that `write_json` wrote. Raises BadInput, naming the file, where it is none."""
    try:
        record = strict.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInput(f"{path} is not JSON ({error}): restore it or run again") from error
    if not isinstance(record, dict):
        raise BadInput(f"{path} is not a JSON object: restore it or run again")
    return record


def write_row(path: str | Path, row: dict[str, Any]) -> None:
    """Write row.csv. A value may be None (an empty cell), a column may not be missing or unknown.

    Raises:
        ValueError: naming the columns that are missing or unknown.
    """
    if set(row) != set(ROW_COLUMNS):
        missing, unknown = sorted(set(ROW_COLUMNS) - set(row)), sorted(set(row) - set(ROW_COLUMNS))
        raise ValueError(f"a row has exactly the columns of ROW_COLUMNS: missing {missing}, unknown {unknown}")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(ROW_COLUMNS)
    writer.writerow(["" if row[column] is None else row[column] for column in ROW_COLUMNS])
    atomic_write_text(path, text.getvalue())


def read_row(path: str | Path) -> dict[str, Any]:
    """The row in `path` with numbers as numbers and empty cells as None.

    Raises:
        BadInput: other columns, not exactly one row, or a cell that is not a number where one belongs.
    """
    with open(path, encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file))
    if len(lines) != 2 or tuple(lines[0]) != ROW_COLUMNS or len(lines[1]) != len(ROW_COLUMNS):
        raise BadInput(f"{path} is not one row with the columns {', '.join(ROW_COLUMNS)}: write it again")
    return {column: _cell(path, column, text) for column, text in zip(ROW_COLUMNS, lines[1], strict=True)}


def _cell(path: str | Path, column: str, text: str) -> Any:
    if text == "":
        return None
    try:
        return _ROW_TYPES[column](text)
    except ValueError as error:
        kind = "whole number" if _ROW_TYPES[column] is int else "number"
        raise BadInput(f"{path} has '{text}' in column {column}, where a {kind} belongs: mend that cell") from error
