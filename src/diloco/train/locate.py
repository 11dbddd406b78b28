"""What a user calls a checkpoint: a run, a folder of checkpoints, one of them, or a URL, each perhaps with @STEP."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from diloco.errors import BadInput
from diloco.watch.runfolder import CHECKPOINTS, CONFIG, read_json

_STEP_FOLDER = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class Located:
    """Where checkpoints lie, and which of them is meant."""

    store: str
    """Folder or URL that holds them."""
    step: int | None
    """None: the newest."""
    run: Path | None
    """The folder of their run, where it is on this machine: it has the tokenizer."""


def locate_checkpoint(text: str) -> Located:
    """Raises BadInput for a folder that is not there."""
    name, at, tail = text.rpartition("@")
    named = int(tail) if at and tail.isdecimal() else None
    given = name if named is not None else text
    path = given.rstrip("/") or given
    parent, _, last = path.rpartition("/")
    if match := _STEP_FOLDER.fullmatch(last):
        if named is not None:
            raise BadInput(f"{text} names two steps: leave out @{named}, or {last}")
        path, named = parent or ".", int(match[1])
    if "://" in path:
        return Located(path, named, None)
    folder = Path(path)
    if not path or not folder.is_dir():
        raise BadInput(
            f"{path or 'a folder without a name'} does not exist: name a run folder, a folder of checkpoints, or an "
            "fsspec URL"
        )
    if (folder / CONFIG).is_file():
        return Located(_store_of(folder), named, folder)
    run = folder.resolve().parent
    return Located(path, named, run if (run / CONFIG).is_file() else None)


def _store_of(run: Path) -> str:
    """Where a run's own config.json says that its checkpoints go."""
    config = read_json(run / CONFIG).get("config", {})
    return config.get("checkpoint_to") or str(run / CHECKPOINTS)
