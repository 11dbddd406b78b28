"""Checkpoints as folders: `step-00000123/` exists only once it is whole.

Inside lie, per part, NAME.safetensors (tensors) and NAME.json (the rest of the tree), and manifest.json with the size
and sha256 of each file, the caller's `meta`, and a sha256 of itself. Everything is written into the hidden `tmp_folder`
first; `commit` renames that folder, so a killed run leaves the checkpoints before it untouched.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open

from diloco.checkpoint.files import fsync, replace_durably, sha256_of
from diloco.checkpoint.manifest import (
    PartInfo,
    check_part_name,
    content_problem,
    parts_of,
    read_manifest,
    size_problem,
    step_folder,
    step_of,
    steps,
    structural_problem,
    tensor_file,
    tmp_folder,
    tree_file,
    verify,
    write_manifest,
)
from diloco.checkpoint.pack import pack, unpack
from diloco.errors import BadInput

DEFAULT_KEEP = 3
"""Whole checkpoints kept unless the caller says otherwise; 0 keeps all."""


def write_part(folder_tmp: str | Path, name: str, tree: Any) -> PartInfo:
    """Write `tree` as NAME.safetensors and NAME.json into `folder_tmp`, each atomically and fsynced.

    Raises:
        TypeError: the tree holds something that cannot be saved (see `pack`).
        BadInput: the folder cannot be made.
        OSError: the disk is full or fails.
    """
    check_part_name(name)
    tensors, json_tree = pack(tree)
    folder = Path(folder_tmp)
    _make_folder(folder)
    paths = [folder / tensor_file(name), folder / tree_file(name)]
    replace_durably(paths[0], lambda path: _write_tensors(path, tensors))
    replace_durably(paths[1], lambda path: _write_json(path, json_tree))
    sizes = {path.name: path.stat().st_size for path in paths}
    return PartInfo(name, sizes, {path.name: sha256_of(path) for path in paths})


def commit(root: str | Path, step: int, parts: list[PartInfo], meta: dict, keep: int = DEFAULT_KEEP) -> Path:
    """Make the parts in `tmp_folder(root, step)` the checkpoint of `step`, then drop what is no longer kept.

    Call it on one rank, after every rank's `write_part`. The same content twice is fine, and a torn checkpoint of the
    same step is replaced.

    Args:
        meta: plain JSON, kept in the manifest.
        keep: whole checkpoints to keep, newest first; 0 keeps all.

    Raises:
        ValueError: no parts, or two of the same name.
        BadInput: a part is not in the folder, or another whole checkpoint of this step exists.
    """
    root, temporary, final = Path(root), tmp_folder(root, step), step_folder(root, step)
    if not parts or len({part.name for part in parts}) != len(parts):
        raise ValueError(f"step {step} needs parts with different names, not {[part.name for part in parts]}")
    for part in parts:
        if problem := size_problem(temporary, part):
            raise BadInput(f"{problem}: all ranks must write to the same disk under {root}")
    _drop_strangers(temporary, parts)
    manifest = write_manifest(temporary, step, parts, meta)
    fsync(temporary)
    if final.exists() and not verify(final):
        if read_manifest(final) != manifest:
            raise BadInput(f"{final} already holds another checkpoint: remove it or use another run folder")
    else:
        _remove_folder(final)
        os.rename(temporary, final)
        fsync(root)
    # Later ones may be another rank's next checkpoint in the making.
    _drop_hidden(root, up_to_step=step)
    _drop_old(root, step, keep)
    return final


def save(root: str | Path, step: int, trees: dict[str, Any], meta: dict, keep: int = DEFAULT_KEEP) -> Path:
    """Write and commit all parts from one process. After a failure the checkpoints before it are as they were."""
    temporary = tmp_folder(root, step)
    try:
        parts = [write_part(temporary, name, tree) for name, tree in trees.items()]
        return commit(root, step, parts, meta, keep)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load(path: str | Path, names: list[str] | None = None, verify: bool = True) -> tuple[dict[str, Any], dict]:
    """(tree by part name, meta) of one checkpoint folder; tensors on the CPU, in memory of their own.

    Args:
        names: the parts to read; all if None.
        verify: compare size and sha256 of every file read. Leave out only right after `latest_whole` or `verify`.

    Raises:
        BadInput: a file is missing, torn, changed or foreign, or a name is not in the checkpoint.
    """
    manifest = read_manifest(path)
    parts = parts_of(manifest)
    names = list(parts) if names is None else names
    if unknown := [name for name in names if name not in parts]:
        raise BadInput(f"{path} has no part '{unknown[0]}': it holds {', '.join(parts)}")
    check = content_problem if verify else size_problem
    trees = {}
    for name in names:
        if problem := check(path, parts[name]):
            raise BadInput(f"{problem}: the checkpoint is damaged, so use another")
        trees[name] = _read_part(Path(path), name)
    return trees, manifest["meta"]


def latest(root: str | Path) -> Path | None:
    """The newest checkpoint whose manifest and file sizes are right, or None. Reads no tensors."""
    return next((path for path in reversed(steps(root)) if structural_problem(path) is None), None)


def latest_whole(root: str | Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole to the last byte (or None), and why each newer one was skipped."""
    skipped = []
    for path in reversed(steps(root)):
        problems = verify(path)
        if not problems:
            return path, skipped
        skipped.append(problems[0])
    return None, skipped


def drop_after(root: str | Path, step: int) -> list[Path]:
    """Remove checkpoints newer than `step`, and what killed runs left, before a run resumed there writes its own.

    Returns the folders that were removed. Call it on one rank, before any rank writes.
    """
    dropped = [path for path in steps(root) if step_of(path) > step]
    for path in reversed(dropped):
        _remove_folder(path)
    _drop_hidden(Path(root))
    return dropped


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror
        raise BadInput(f"checkpoint folder {folder.parent} cannot be written ({reason}): choose another") from error


def _write_tensors(path: Path, tensors: dict) -> None:
    try:
        safetensors.torch.save_file(tensors, path)
    except SafetensorError as error:
        raise OSError(f"cannot write {path}: {error}") from error


def _write_json(path: Path, tree: Any) -> None:
    path.write_text(json.dumps(tree, allow_nan=False), encoding="utf-8")


def _read_part(folder: Path, name: str) -> Any:
    file = folder / tensor_file(name)
    try:
        with safe_open(file, framework="pt") as tensors:
            # Copies, since how a mapped file is aligned would change the last bits of some sums.
            by_name = {key: tensors.get_tensor(key).clone() for key in tensors.keys()}
        return unpack(by_name, json.loads((folder / tree_file(name)).read_text(encoding="utf-8")))
    except (SafetensorError, ValueError) as error:
        raise BadInput(f"{file} is not what {tree_file(name)} names ({error}): use another checkpoint") from error


def _drop_strangers(folder: Path, parts: list[PartInfo]) -> None:
    """A killed run with more ranks may have left parts in the same temporary folder."""
    expected = {name for part in parts for name in part.bytes}
    for path in folder.iterdir():
        if path.name not in expected:
            path.unlink()


def _remove_folder(path: Path) -> None:
    """Rename, then delete: a kill in between never leaves half a checkpoint under a checkpoint's name."""
    if path.exists():
        hidden = path.with_name(f".{path.name}.old")
        shutil.rmtree(hidden, ignore_errors=True)
        os.rename(path, hidden)
        shutil.rmtree(hidden)


def _drop_hidden(root: Path, up_to_step: int | None = None) -> None:
    for path in root.glob(".step-*"):
        if up_to_step is None or step_of(path.stem.removeprefix(".")) <= up_to_step:
            shutil.rmtree(path)


def _drop_old(root: Path, newest_step: int, keep: int) -> None:
    whole = [path for path in steps(root) if structural_problem(path) is None]
    if keep <= 0 or len(whole) <= keep:
        return
    oldest_kept_step = min(step_of(whole[-keep]), newest_step)
    for path in steps(root):
        if step_of(path) < oldest_kept_step:
            _remove_folder(path)
