"""The same for one process and one call: save, load, look. Paths are folders, or URLs where `root` is one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from diloco.checkpoint.coders import PLAIN
from diloco.checkpoint.manifest import part_name, step_of
from diloco.checkpoint.pack import ABSENT
from diloco.checkpoint.retention import Policy
from diloco.checkpoint.saved import StoredTensor
from diloco.checkpoint.shards import chunk_of, whole
from diloco.checkpoint.store import Store
from diloco.checkpoint.writer import Writer
from diloco.errors import BadInput
from diloco.shards import is_sharded, like, local

Location = TypeVar("Location", str, Path)


def save(root: str | Path, step: int, trees: dict[str, Any], meta: dict, keep: int = Policy.last) -> Path | str:
    """Writes a full checkpoint as safetensors hold it, a unit for each of `trees`, and returns where it is.

    `keep`: how many of the newest stay; 0 for all.
    After a failure the checkpoints before it are as they were; a damaged one of the same step is replaced.

    Raises:
        TypeError: a tree holds something that cannot be saved (see `pack.split`).
        BadInput: there is a whole checkpoint of this step.
        OSError: it cannot be written.
    """
    store = Store(root)
    if store.exists(step) and store.verify(step):
        store.remove(step)
    parts = {part_name(unit): tree for unit, tree in trees.items()}
    writer = Writer(store, kind=PLAIN, background=False, keep=Policy(last=keep))
    try:
        writer.save(step, parts, list(parts), meta)
    finally:
        writer.close()
    return _place(root, store.name(step))


def load(path: str | Path, names: list[str] | None = None, verify: bool = True) -> tuple[dict[str, Any], dict]:
    """(tree by unit, meta) of one checkpoint; tensors whole, on the CPU, in memory of their own.

    Args:
        names: the units to read; all if None.
        verify: compare size and sha256 of every file read. Leave out only right after `latest_whole` or `verify`.

    Raises:
        BadInput: a file is missing, torn, changed or foreign, or a name is not in the checkpoint.
    """
    store, step = locate(path)
    saved = store.open(step, verify)
    return {unit: read_tree(saved.tree(unit)) for unit in (saved.units if names is None else names)}, saved.meta


def read_tree(tree: Any, like: Callable[[tuple, StoredTensor], Tensor | None] | None = None) -> Any:
    """The tree with its tensors read.

    Args:
        like: (path in the tree, stored tensor) -> a tensor with as many elements, whose shape the one that is read
            gets, or None. Of a DTensor only this rank's chunk is read, and comes back sharded as that is; all others
            come back whole, on the CPU.
    """
    read: dict[tuple, Tensor] = {}

    def leaf(path: tuple, stored: StoredTensor) -> Tensor:
        model = like(path, stored) if like else None
        key = (id(stored), None if model is None else id(model))
        if key not in read:
            read[key] = stored.read() if model is None else _read_like(stored, model)
        return read[key]

    def walk(node: Any, path: tuple) -> Any:
        if isinstance(node, StoredTensor):
            return leaf(path, node)
        if isinstance(node, dict):
            return {key: walk(value, (*path, key)) for key, value in node.items()}
        if isinstance(node, list | tuple):
            return type(node)(walk(value, (*path, index)) for index, value in enumerate(node))
        if node is ABSENT:
            raise BadInput(f"no part of the checkpoint holds {'/'.join(map(str, path))}: use another one")
        return node

    return walk(tree, ())


def _read_like(stored: StoredTensor, model: Tensor) -> Tensor:
    # Some layers hold their matrix in another shape under tensor parallelism, to be cut between heads.
    if not is_sharded(model):
        return stored.read().view(model.shape)
    chunk = chunk_of(model)
    if stored.shape == model.shape:
        part = stored.read_part(chunk)
    else:
        part = stored.read().view(model.shape)[chunk.inside(whole(model.shape))].contiguous()
    return like(part.to(local(model).device), model)


def steps(root: Location) -> list[Location]:
    """Where the checkpoints under `root` are, oldest first; none if `root` does not exist."""
    store = Store(root)
    return [_place(root, store.name(step)) for step in store.steps()]


def latest_whole(root: Location) -> tuple[Location | None, list[str]]:
    """The newest checkpoint that is whole to the last byte with all it rests on (or None), and why each newer one was
    skipped."""
    store = Store(root)
    step, skipped = store.latest_whole()
    return (None if step is None else _place(root, store.name(step))), skipped


def verify(path: str | Path) -> list[str]:
    """Everything that is wrong with a checkpoint, a sentence each; reads every byte. Empty: it is whole."""
    store, step = locate(path)
    return store.verify(step)


def drop_after(root: Location, step: int) -> list[Location]:
    """As `Store.drop_after`; returns where the removed checkpoints were."""
    store = Store(root)
    return [_place(root, store.name(dropped)) for dropped in store.drop_after(step)]


def locate(path: str | Path) -> tuple[Store, int]:
    """The store and step of one checkpoint. Raises BadInput where `path` is not called step-00000123."""
    step = step_of(path)
    if isinstance(path, Path) or "://" not in path:
        return Store(Path(path).parent), step
    return Store(path.rstrip("/").rpartition("/")[0]), step


def _place(root: str | Path, name: str) -> Any:
    return name if isinstance(root, str) and "://" in root else Path(name)
