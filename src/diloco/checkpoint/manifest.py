"""What a checkpoint folder is called, what its manifest.json says, and whether its files are what the manifest says."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from diloco.checkpoint.files import replace_durably, sha256_of
from diloco.errors import BadInput

MANIFEST = "manifest.json"
FORMAT = "diloco-checkpoint"
VERSION = 1

_KEYS = {"format", "version", "step", "parts", "meta", "sha256"}
_STEP_NAME = re.compile(r"step-(\d{8,})")
_PART_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class PartInfo:
    """What one `write_part` left on disk; plain JSON through `dataclasses.asdict`, back through `PartInfo(**d)`."""

    name: str
    bytes: dict[str, int]
    """Size of each file, by file name."""
    sha256: dict[str, str]
    """Hex digest of each file, by file name."""

    def __post_init__(self) -> None:
        check_part_name(self.name)
        expected = {tensor_file(self.name), tree_file(self.name)}
        if set(self.bytes) != expected or set(self.sha256) != expected:
            raise ValueError(f"part '{self.name}' must have the files {sorted(expected)}")


def check_part_name(name: str) -> None:
    """Raise ValueError where `name` cannot be a file name on every system, or would hide the manifest."""
    if not _PART_NAME.fullmatch(name) or name == Path(MANIFEST).stem:
        raise ValueError(f"part name '{name}' must be letters, digits, '.', '_' or '-', and not 'manifest'")


def tensor_file(part: str) -> str:
    """File name of a part's tensors."""
    return f"{part}.safetensors"


def tree_file(part: str) -> str:
    """File name of a part's JSON tree."""
    return f"{part}.json"


def step_folder(root: str | Path, step: int) -> Path:
    """Where the whole checkpoint of `step` lies."""
    return Path(root) / f"step-{step:08d}"


def tmp_folder(root: str | Path, step: int) -> Path:
    """Where all ranks write their parts of `step` before rank 0 commits it."""
    return Path(root) / f".step-{step:08d}.tmp"


def step_of(path: str | Path) -> int:
    """The step that a checkpoint folder is named after."""
    if not (match := _STEP_NAME.fullmatch(Path(path).name)):
        raise BadInput(f"{path} is not a checkpoint folder: name one called step-00000123")
    return int(match.group(1))


def steps(root: str | Path) -> list[Path]:
    """Checkpoint folders under `root`, oldest first; none if `root` does not exist."""
    root = Path(root)
    if not root.is_dir():
        return []
    return sorted((path for path in root.iterdir() if _STEP_NAME.fullmatch(path.name)), key=step_of)


def write_manifest(folder: Path, step: int, parts: list[PartInfo], meta: dict) -> dict:
    """Write manifest.json and return it as it will be read."""
    manifest = {"format": FORMAT, "version": VERSION, "step": step, "meta": meta}
    manifest["parts"] = sorted((asdict(part) for part in parts), key=lambda part: part["name"])
    manifest = json.loads(json.dumps(manifest, allow_nan=False))
    manifest["sha256"] = _digest(manifest)
    text = json.dumps(manifest, allow_nan=False, indent=1)
    replace_durably(folder / MANIFEST, lambda path: path.write_text(text, encoding="utf-8"))
    return manifest


def read_manifest(path: str | Path) -> dict:
    """The manifest of a checkpoint folder, checked against its own sha256.

    Raises:
        BadInput: it is missing, torn, tampered with, of another format or of another version.
    """
    file = Path(path) / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadInput(f"{file} is missing: {path} is not a whole checkpoint, so name another") from error
    except ValueError as error:
        raise BadInput(f"{file} is not JSON ({error}): the checkpoint is torn, so use another") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BadInput(f"{file} is not a {FORMAT} manifest: name a checkpoint that this program wrote")
    if manifest.get("version") != VERSION:
        version = manifest.get("version")
        raise BadInput(f"{file} has format version {version}, but this program reads {VERSION}: use a matching release")
    if set(manifest) != _KEYS or manifest["sha256"] != _digest(manifest):
        raise BadInput(f"{file} does not match its own sha256: it was changed after it was written, so use another")
    return manifest


def parts_of(manifest: dict) -> dict[str, PartInfo]:
    """The parts that a manifest lists, by name."""
    return {part["name"]: PartInfo(**part) for part in manifest["parts"]}


def size_problem(folder: str | Path, part: PartInfo) -> str | None:
    """What is wrong with the presence or size of a part's files, without reading them."""
    for name, size_bytes in part.bytes.items():
        file = Path(folder) / name
        if not file.is_file():
            return f"{file} is missing"
        if file.stat().st_size != size_bytes:
            return f"{file} has {file.stat().st_size} bytes instead of {size_bytes}"
    return None


def content_problem(folder: str | Path, part: PartInfo) -> str | None:
    """Like `size_problem`, and reads every file to compare its sha256."""
    if problem := size_problem(folder, part):
        return problem
    for name, digest in part.sha256.items():
        if sha256_of(Path(folder) / name) != digest:
            return f"{Path(folder) / name} does not match its sha256"
    return None


def structural_problem(path: str | Path) -> str | None:
    """What keeps a checkpoint from being whole, as far as manifest and file sizes tell; None if nothing."""
    try:
        manifest = read_manifest(path)
    except BadInput as error:
        return str(error)
    problems = (size_problem(path, part) for part in parts_of(manifest).values())
    return next(filter(None, problems), None)


def verify(path: str | Path) -> list[str]:
    """Everything that is wrong with a checkpoint, a sentence each; reads every byte. Empty: it is whole."""
    try:
        manifest = read_manifest(path)
    except BadInput as error:
        return [str(error)]
    problems = (content_problem(path, part) for part in parts_of(manifest).values())
    return [problem for problem in problems if problem]


def _digest(manifest: dict) -> str:
    body = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
