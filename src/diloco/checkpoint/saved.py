"""A checkpoint that is read: trees whose tensors stay on disk until they are asked for, whole or in part.

The parts that the ranks of an island wrote are merged into one tree, so it does not matter over how many devices, or in
what way, a tensor was spread when it was saved.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diloco.checkpoint.coders import CODERS, digest
from diloco.checkpoint.dtypes import dtype_of
from diloco.checkpoint.files import sha256_of
from diloco.checkpoint.manifest import Manifest, folder_name, tensor_file, tree_file
from diloco.checkpoint.pack import ABSENT, decode
from diloco.checkpoint.parts import RUBBISH, PartFile, first_line, is_shape
from diloco.checkpoint.shards import Chunk, whole
from diloco.checkpoint.storage import Storage
from diloco.errors import BadInput


class StoredTensor:
    """A tensor of a checkpoint, with its `dtype` and whole `shape`, not read yet."""

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...], name: str) -> None:
        self.dtype, self.shape, self.name = dtype, torch.Size(shape), name
        self.chunks: dict[Chunk, Callable[[], Tensor]] = {}

    def read(self) -> Tensor:
        """All of it, on the CPU, in memory of its own."""
        return self.read_part(whole(self.shape))

    def read_part(self, wanted: Chunk) -> Tensor:
        """A box of it; only chunks that overlap it are read. Raises BadInput where no part holds some of it."""
        if wanted in self.chunks:
            return self.chunks[wanted]()
        overlaps = {chunk: both for chunk in self.chunks if (both := wanted.overlap(chunk))}
        # Before any memory is taken, since a shape may be whatever a damaged file says.
        filled = sum(both.numel for both in overlaps.values())
        if filled != wanted.numel:
            raise BadInput(
                f"{self.name} has {filled} of {wanted.numel} elements in the checkpoint's parts: use another one"
            )
        result = torch.empty(wanted.shape, dtype=self.dtype)
        for chunk, both in overlaps.items():
            result[both.inside(wanted)] = self.chunks[chunk]()[both.inside(chunk)]
        return result


class Saved:
    """One checkpoint, and those it holds the differences to. Get it from `Store.open`."""

    def __init__(self, storage: Storage, chain: list[Manifest], verify: bool) -> None:
        """`chain`: from this checkpoint down to a full one. `verify`: compare size and sha256 of each file read."""
        self.storage, self.chain, self.verify = storage, chain, verify
        self._parts: dict[tuple[int, str], PartFile] = {}
        self._scratch = Path(tempfile.mkdtemp(prefix="diloco-"))
        weakref.finalize(self, shutil.rmtree, self._scratch, ignore_errors=True)

    @property
    def manifest(self) -> Manifest:
        return self.chain[0]

    @property
    def step(self) -> int:
        return self.manifest.step

    @property
    def meta(self) -> dict[str, Any]:
        return self.manifest.meta

    @property
    def name(self) -> str:
        return self.storage.name_of(folder_name(self.step))

    @property
    def units(self) -> list[str]:
        """What it holds, by name: of a run, `global` and a `replica-m` for each replica."""
        return list(dict.fromkeys(part.unit for part in self.manifest.parts.values()))

    def tree(self, unit: str) -> Any:
        """A unit's tree with a `StoredTensor` for each tensor; two references to one tensor give one.

        Raises BadInput where there is no such unit, a file is missing or damaged, or two parts contradict each other.
        """
        if unit not in self.units:
            raise BadInput(f"{self.name} has no part '{unit}': it holds {', '.join(self.units)}")
        names = sorted((p.name for p in self.manifest.parts.values() if p.unit == unit), key=_place)
        first, *others = (self._tree(name) for name in names)
        for tree in others:
            first = self._merge(first, tree, unit)
        return first

    # -- details

    def _tree(self, part: str) -> Any:
        file, known = self._part(0, part), {}

        def leaf(tag: str, value: Any) -> StoredTensor:
            name = value if tag == "$tensor" else value["tensor"]
            if tag == "$shard" and name is None:  # an empty chunk
                return StoredTensor(dtype_of(value["dtype"]), value["shape"], part)
            if name not in known:
                entry = file.entry(name)
                shape = tuple(entry["shape"])
                full, offset = (shape, whole(shape).offset) if tag == "$tensor" else _place_in(value, shape)
                known[name] = StoredTensor(dtype_of(entry["dtype"]), full, f"{self.name}/{part}: '{name}'")
                known[name].chunks[Chunk(tuple(offset), shape)] = lambda: self._read(part, name)
            return known[name]

        try:
            return decode(file.tree, leaf)
        except RUBBISH as error:
            if isinstance(error, BadInput):
                raise
            raise BadInput(f"{file.name}.json is no tree of this version ({first_line(error)}): use another") from error

    def _merge(self, one: Any, other: Any, path: str) -> Any:
        if one is ABSENT or other is ABSENT:
            return other if one is ABSENT else one
        if isinstance(one, StoredTensor) and isinstance(other, StoredTensor):
            if (one.dtype, one.shape) == (other.dtype, other.shape):
                one.chunks |= other.chunks
                return one
        elif isinstance(one, dict) and isinstance(other, dict):
            both = {k: self._merge(one[k], other[k], f"{path}/{k}") for k in one.keys() & other.keys()}
            return {**one, **other, **both}
        elif isinstance(one, list | tuple) and type(one) is type(other) and len(one) == len(other):
            return type(one)(self._merge(a, b, f"{path}/{i}") for i, (a, b) in enumerate(zip(one, other, strict=True)))
        elif type(one) is type(other) and (one == other or str(one) == str(other)):
            return one
        raise BadInput(f"{self.name}: the parts of {path} contradict each other: use another checkpoint")

    def _read(self, part: str, name: str) -> Tensor:
        """Decodes from the link that stands on its own to this one."""
        wanted, links, level, twins = self._part(0, part).entry(name), [], 0, set()
        try:
            while True:
                file = self._part(level, part)
                entry = file.entry(name)
                if "same" in entry:
                    if (level, part, name) in twins:
                        raise ValueError("it refers to itself")
                    twins.add((level, part, name))
                    part, name = entry["same"]
                    continue
                links.append((file, name, entry))
                if not entry.get("base"):
                    break
                level += 1
            tensor: Tensor | None = None
            for file, stored_name, entry in reversed(links):
                tensor = _decoded(entry, file.stored(stored_name), tensor)
        except RUBBISH as error:
            if isinstance(error, BadInput):
                raise
            why = first_line(error)
            raise BadInput(f"{self.name}/{part}: '{name}' cannot be decoded ({why}): use another") from error
        if digest(tensor) != wanted["sha256"]:
            raise BadInput(f"{self.name}/{part}: '{name}' does not come out as it was saved: use another checkpoint")
        return tensor

    def _part(self, level: int, part: str) -> PartFile:
        if (level, part) not in self._parts:
            self._parts[level, part] = self._open(self.chain[level], part)
        return self._parts[level, part]

    def _open(self, manifest: Manifest, part: str) -> PartFile:
        folder = folder_name(manifest.step)
        if part not in manifest.parts:
            raise BadInput(f"{self.storage.name_of(folder)} lacks {part}, which others need: use another checkpoint")
        if problem := file_problem(self.storage, manifest, part, self.verify, self._scratch):
            raise BadInput(f"{problem}: the checkpoint is damaged, so use another")
        files = [f"{folder}/{file}" for file in (tensor_file(part), tree_file(part))]
        local = [self.storage.local(file, self._scratch) for file in files]
        return PartFile(*local, name=self.storage.name_of(f"{folder}/{part}"))


def _place_in(value: dict, shape: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """(whole shape, offset) of a chunk of `shape`. Raises ValueError where it is no part of that."""
    full, offset = value["shape"], value["offset"]
    if not is_shape(full) or not is_shape(offset) or not len(full) == len(offset) == len(shape):
        raise ValueError(f"a chunk lies at {offset!r} in {full!r}")
    if any(low + size > whole for low, size, whole in zip(offset, shape, full, strict=True)):
        raise ValueError(f"a chunk of {list(shape)} does not fit at {offset} in {full}")
    return full, offset


def _decoded(entry: dict, stored: Tensor, base: Tensor | None) -> Tensor:
    if "coder" not in entry:
        return stored
    return CODERS[entry["coder"]].decode(stored, entry["recipe"], base if entry["base"] else None)


def file_problem(storage: Storage, manifest: Manifest, part: str, content: bool, scratch: Path) -> str | None:
    """What is wrong with a part's files: absent, of another size or, with `content`, of another sha256."""
    info = manifest.parts[part]
    for file, size_bytes in info.bytes.items():
        path = f"{folder_name(manifest.step)}/{file}"
        found = storage.size_bytes(path)
        if found is None:
            return f"{storage.name_of(path)} is missing"
        if found != size_bytes:
            return f"{storage.name_of(path)} has {found} bytes instead of {size_bytes}"
        if content and sha256_of(storage.local(path, scratch)) != info.sha256[file]:
            return f"{storage.name_of(path)} does not match its sha256"
    return None


def _place(part: str) -> int:
    return int(part.rpartition(".")[2])
