"""What a checkpoint's folder is called, and what its manifest.json and part records say.

A checkpoint is what its manifest says, and exists once that is written. The folder of one that was never finished holds
none.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from diloco.checkpoint.storage import Storage
from diloco.errors import BadInput

MANIFEST = "manifest.json"
FORMAT = "diloco-checkpoint"
VERSION = 2

_STEP_NAME = re.compile(r"step-(\d{8,})")
_UNIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_RECORD = ".part.json"


@dataclass(frozen=True)
class PartInfo:
    """What one rank wrote of one unit: `UNIT.i`, i its place in its island."""

    name: str
    bytes: dict[str, int]
    """Size of each file, by file name."""
    sha256: dict[str, str]
    """Hex digest of each file, by file name."""
    raw_bytes: int
    """What its tensors take in memory."""

    @property
    def unit(self) -> str:
        return unit_of(self.name)


@dataclass(frozen=True)
class Base:
    """The checkpoint that another holds the differences to."""

    step: int
    sha256: str
    """Of its manifest."""


@dataclass(frozen=True)
class Manifest:
    step: int
    number: int
    """Which of the run's checkpoints it is, counted from 1."""
    kind: str
    """How tensors are written: plain, lossless or lossy."""
    base: Base | None
    """None where it stands on its own."""
    parts: dict[str, PartInfo]
    meta: dict[str, Any] = field(default_factory=dict)
    """The caller's own."""
    sha256: str = ""
    """Of all the rest."""

    @property
    def stored_bytes(self) -> int:
        return sum(sum(part.bytes.values()) for part in self.parts.values())

    @property
    def raw_bytes(self) -> int:
        return sum(part.raw_bytes for part in self.parts.values())


class Foreign(BadInput):
    """A manifest that this program cannot judge: another program's, another release's, or in a folder renamed."""


# -- names


def check_unit_name(name: str) -> None:
    """Raise ValueError where `name` cannot be part of a file name on every system."""
    if not _UNIT_NAME.fullmatch(name):
        raise ValueError(f"unit name '{name}' must be letters, digits, '_' or '-'")


def part_name(unit: str, place: int = 0) -> str:
    return f"{unit}.{place}"


def unit_of(part: str) -> str:
    return part.rpartition(".")[0]


def tensor_file(part: str) -> str:
    """File name of a part's tensors."""
    return f"{part}.safetensors"


def tree_file(part: str) -> str:
    """File name of a part's JSON tree."""
    return f"{part}.json"


def record_file(part: str) -> str:
    """File name of what a rank says of a part it has written."""
    return f"{part}{_RECORD}"


def files_of(part: str) -> tuple[str, ...]:
    """All that a rank writes of a part."""
    return tensor_file(part), tree_file(part), record_file(part)


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def step_of(path: str | Path) -> int:
    """The step that a checkpoint folder is named after."""
    if not (match := _STEP_NAME.fullmatch(str(path).rstrip("/").rpartition("/")[2])):
        raise BadInput(f"{path} is not a checkpoint folder: name one called step-00000123")
    return int(match.group(1))


def steps_in(names: list[str]) -> list[int]:
    """The steps of the folders among `names`, oldest first."""
    return sorted(int(match.group(1)) for name in names if (match := _STEP_NAME.fullmatch(name)))


# -- manifests


def write_manifest(storage: Storage, manifest: Manifest) -> Manifest:
    """Writes it and returns it as it will be read. Raises OSError, or ValueError where `meta` is no plain JSON."""
    body = {"format": FORMAT, "version": VERSION, **asdict(manifest), "parts": _parts(manifest)}
    body = json.loads(json.dumps(body, allow_nan=False))
    body["sha256"] = _digest(body)
    text = json.dumps(body, allow_nan=False, indent=1)
    path = f"{folder_name(manifest.step)}/{MANIFEST}"
    storage.write(path, lambda file: file.write_text(text, encoding="utf-8"))
    return _parse(body)


def read_manifest(storage: Storage, step: int) -> Manifest:
    """The manifest of a step, checked against its own sha256.

    Raises BadInput: it is missing, torn, tampered with, of another format, version or step.
    """
    path = f"{folder_name(step)}/{MANIFEST}"
    name = storage.name_of(path)
    try:
        body = json.loads(storage.read(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadInput(f"{name} is missing: there is no whole checkpoint, so use another") from error
    except ValueError as error:
        raise BadInput(f"{name} is not JSON ({error}): the checkpoint is torn, so use another") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise Foreign(f"{name} is not a {FORMAT} manifest: name a checkpoint that this program wrote")
    if body.get("version") != VERSION:
        raise Foreign(
            f"{name} has format version {body.get('version')}, but this program reads {VERSION}: use a matching release"
        )
    if body.get("sha256") != _digest(body):
        raise BadInput(f"{name} does not match its own sha256: it was changed after it was written, so use another")
    if body.get("step") != step:
        folder = storage.name_of(folder_name(step))
        raise Foreign(
            f"{folder} holds the manifest of step {body.get('step')}: give the folder its own name back, "
            f"{folder_name(body.get('step'))}"
        )
    try:
        return _parse(body)
    except (LookupError, TypeError, AttributeError) as error:
        raise BadInput(f"{name} is no manifest of this version ({error}): use another checkpoint") from error


def read_record(storage: Storage, step: int, part: str, session: str) -> PartInfo | None:
    """What a rank of this session has said of its part; None as long as it has not."""
    path = f"{folder_name(step)}/{record_file(part)}"
    try:
        record = json.loads(storage.read(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        return None  # another rank is still writing it, where a store shows files before they are whole
    return PartInfo(**record["part"]) if record.get("session") == session else None


def write_record(storage: Storage, step: int, part: PartInfo, session: str) -> None:
    text = json.dumps({"session": session, "part": asdict(part)})
    path = f"{folder_name(step)}/{record_file(part.name)}"
    storage.write(path, lambda file: file.write_text(text, encoding="utf-8"))


def _parts(manifest: Manifest) -> dict:
    return {name: asdict(part) for name, part in sorted(manifest.parts.items())}


def _parse(body: dict) -> Manifest:
    values = {key: value for key, value in body.items() if key not in ("format", "version")}
    values["parts"] = {name: PartInfo(**part) for name, part in body["parts"].items()}
    values["base"] = body["base"] and Base(**body["base"])
    return Manifest(**values)


def _digest(body: dict) -> str:
    rest = {key: value for key, value in body.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
