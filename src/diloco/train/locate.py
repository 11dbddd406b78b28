"""What a user calls a checkpoint: a run, a folder of checkpoints, one of them, or a URL, each perhaps with @STEP."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path

from diloco.checkpoint.manifest import steps_in
from diloco.checkpoint.storage import FILE_URL, Storage, open_storage
from diloco.errors import BadInput
from diloco.watch.runfolder import CHECKPOINTS, CONFIG, TOKENIZER, read_json

_PLACE = "a run folder, a folder of checkpoints, or an fsspec URL"


@dataclass(frozen=True)
class Located:
    """Where checkpoints lie, and which of them is meant."""

    store: str
    """Folder or URL that holds them."""
    step: int | None
    """None: the newest."""
    run: Path | None
    """The folder of their run, where it is known: it has settings and tokenizer."""
    copied: bool = False
    """Whether `run` is a copy of these two, from a URL; it is there as long as this object."""


def locate_checkpoint(text: str) -> Located:
    """Raises BadInput for a folder that is not there, a file, or a folder that holds a model instead of a run."""
    path, step = split_step(text)
    path = path.removeprefix(FILE_URL)
    if "://" in path:
        return _locate_url(path, step)
    folder = Path(path)
    if path and folder.exists() and not folder.is_dir():
        raise BadInput(f"{path} is a file: name {_folder_for(folder)}")
    if not path or not folder.is_dir():
        raise BadInput(f"{path or 'a folder without a name'} does not exist: name {_PLACE}")
    if (folder / CONFIG).is_file():
        return Located(_store_of(folder, path), step, folder)
    run = folder.resolve().parent
    return Located(path, step, run if (run / CONFIG).is_file() else None)


def _folder_for(file: Path) -> str:
    """What to name in its stead."""
    folder = file.parent
    saved = (folder / CONFIG).is_file() or steps_in([folder.resolve().name, *(f.name for f in folder.iterdir())])
    return f"the folder that it is in, {folder}" if saved else _PLACE


def split_step(text: str) -> tuple[str, int | None]:
    """(place, step) of PLACE[@STEP] or PLACE/step-00000123. Raises BadInput where that names two steps."""
    name, at, tail = text.rpartition("@")
    named = int(tail) if at and tail.isdecimal() else None
    given = name if named is not None else text
    path = given.rstrip("/") or given
    parent, _, last = path.rpartition("/")
    for step in steps_in([last]):
        if named is not None:
            raise BadInput(f"{text} names two steps: leave out @{named}, or {last}")
        path, named = parent or ".", step
    return path, named


def _locate_url(url: str, step: int | None) -> Located:
    parent, _, last = url.rpartition("/")
    for place in (url, *([parent] if last == CHECKPOINTS else [])):
        storage = open_storage(place)
        if storage.size_bytes(CONFIG) is not None:
            scratch = Path(tempfile.mkdtemp(prefix="diloco-"))
            run = _copy(storage, scratch / place.rpartition("/")[2])
            located = Located(_store_of(run, place) if place == url else url, step, run, copied=True)
            weakref.finalize(located, shutil.rmtree, scratch, ignore_errors=True)
            return located
    return Located(url, step, None)


def _copy(storage: Storage, folder: Path) -> Path:
    folder.mkdir()
    for file in (CONFIG, TOKENIZER):
        if storage.size_bytes(file) is not None:
            storage.local(file, folder)
    return folder


def _store_of(run: Path, name: str) -> str:
    """Where a run's own config.json says that its checkpoints go. `name`: what the user calls the run."""
    record = read_json(run / CONFIG)
    if "config" not in record and "model_type" in record:
        raise BadInput(
            f"{name} is a model for transformers, not a run: load it with AutoModelForCausalLM.from_pretrained, or, "
            "for eval and sample, export the run with --format safetensors"
        )
    return record.get("config", {}).get("checkpoint_to") or f"{name.rstrip('/')}/{CHECKPOINTS}"
