"""One part's two files: NAME.safetensors with the bytes, and NAME.json with the tree and how each tensor is written.

The JSON is {"tree": ..., "tensors": {name: entry}}. An entry has `dtype`, `shape` and `sha256` of what decoding gives,
and how to come to it: nothing more for a tensor that is stored as it is; `coder`, `recipe` and whether it needs the
`base`; or `same`, the [part, name] of an equal tensor in this checkpoint.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from diloco.checkpoint.coders import CODERS, PLAIN, SMALL_BYTES, digest, needs_base
from diloco.checkpoint.dtypes import dtype_name, dtype_of
from diloco.checkpoint.files import sha256_of
from diloco.checkpoint.manifest import PartInfo, folder_name, tensor_file, tree_file
from diloco.checkpoint.storage import Storage
from diloco.errors import BadInput

Key = tuple[str, str]
"""(part, name) of a tensor."""

RUBBISH = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, MemoryError)
"""What may come of a file that says anything at all."""

_OS_ERROR = re.compile(r"os error (\d+)")


class Encoder:
    """Codes the parts of one checkpoint that this rank writes. Equal tensors are stored once, at the first."""

    def __init__(self, kind: str) -> None:
        self.coder_name, self.coder = kind, CODERS.get(kind)
        self._seen: dict[tuple, Key] = {}
        self._rebuilt: dict[Key, tuple[Tensor, str]] = {}

    def encode(
        self, part: str, tensors: dict[str, Tensor], base: dict[str, Tensor], same: dict[Key, Key]
    ) -> tuple[dict[str, Tensor], dict[str, dict]]:
        """(what is stored, entries), by name. `base`: the tensors before, where there are any; `same`: tensors that
        another rank stores.

        With a coder that is not exact, `tensors` are overwritten with what decoding will give, so that the next
        difference makes up for the error.
        """
        stored, entries = {}, {}
        for name, tensor in tensors.items():
            entry = {"dtype": dtype_name(tensor.dtype), "shape": list(tensor.shape), "sha256": digest(tensor)}
            entries[name] = entry
            twin = same.get((part, name)) or self._twin(entry, (part, name))
            if twin:
                entry["same"] = list(twin)
                if twin in self._rebuilt:
                    rebuilt, entry["sha256"] = self._rebuilt[twin]
                    tensor.copy_(rebuilt)
            elif self.coder_name == PLAIN or tensor.nbytes <= SMALL_BYTES:
                stored[name] = tensor
            else:
                stored[name] = self._code(entry, tensor, base.get(name), (part, name))
        return stored, entries

    def _twin(self, entry: dict, key: Key) -> Key | None:
        first = self._seen.setdefault((entry["dtype"], *entry["shape"], entry["sha256"]), key)
        return first if first != key else None

    def _code(self, entry: dict, tensor: Tensor, base: Tensor | None, key: Key) -> Tensor:
        if base is not None and (base.shape, base.dtype) != (tensor.shape, tensor.dtype):
            base = None
        payload, recipe = self.coder.encode(tensor, base)
        if self.coder.exact and payload.nbytes >= tensor.nbytes:
            return tensor
        entry |= {"coder": self.coder_name, "recipe": recipe, "base": base is not None and needs_base(recipe)}
        if not self.coder.exact:
            tensor.copy_(self.coder.decode(payload, recipe, base))
            entry["sha256"] = digest(tensor)
            self._rebuilt[key] = tensor, entry["sha256"]
        return payload


def write_part(
    storage: Storage, step: int, part: str, stored: dict[str, Tensor], entries: dict[str, dict], tree: Any
) -> PartInfo:
    """Raises OSError in one sentence where a file cannot be written."""
    text = json.dumps({"tree": tree, "tensors": entries}, allow_nan=False)
    fills = {
        tensor_file(part): lambda path: _write_tensors(path, stored),
        tree_file(part): lambda path: path.write_text(text, encoding="utf-8"),
    }
    sizes, digests = {}, {}
    for file, fill in fills.items():

        def measured(path: Path, file: str = file, fill: Any = fill) -> None:
            fill(path)
            sizes[file], digests[file] = path.stat().st_size, sha256_of(path)

        storage.write(f"{folder_name(step)}/{file}", measured)
    return PartInfo(part, sizes, digests, raw_bytes=sum(_raw_bytes(entry) for entry in entries.values()))


def _raw_bytes(entry: dict) -> int:
    return torch.Size(entry["shape"]).numel() * dtype_of(entry["dtype"]).itemsize


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    path.touch()
    mode = path.stat().st_mode  # the library lets nobody but their owner read them, whatever the umask
    try:
        safetensors.torch.save_file(tensors, path)
    except SafetensorError as error:
        raise _os_error(error) from error
    path.chmod(mode)


def _os_error(error: SafetensorError) -> OSError:
    """The operating system's own error, of which the library hands on only the text."""
    if number := _OS_ERROR.search(str(error)):
        return OSError(int(number[1]), os.strerror(int(number[1])))
    return OSError(str(error))


class PartFile:
    """A part that is read: its tree at once, its tensors as they are asked for."""

    def __init__(self, tensors: Path, tree: Path, name: str) -> None:
        """`name`: how messages call it. Raises BadInput where the two files do not belong together."""
        self.name = name
        try:
            content = json.loads(tree.read_text(encoding="utf-8"))
            self.tree, self.entries = content["tree"], content["tensors"]
            for entry in self.entries.values():
                _check_entry(entry)
            self._file = safe_open(tensors, framework="pt")
            stored = {name for name, entry in self.entries.items() if "same" not in entry}
            if left_over := sorted(stored ^ set(self._file.keys())):
                raise ValueError(f"'{left_over[0]}' is in only one of them")
        except (SafetensorError, *RUBBISH) as error:
            raise BadInput(
                f"{name}.safetensors is not what {name}.json names ({first_line(error)}): use another"
            ) from error

    def entry(self, tensor: str) -> dict:
        if tensor not in self.entries:
            raise BadInput(f"{self.name} lacks the tensor '{tensor}': the checkpoint is damaged, so use another")
        return self.entries[tensor]

    def stored(self, tensor: str) -> Tensor:
        # A copy, since how a mapped file is aligned would change the last bits of some sums.
        return self._file.get_tensor(tensor).clone()


def first_line(error: BaseException) -> str:
    """torch's messages go on for many."""
    return str(error).partition("\n")[0]


def is_shape(value: object) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 2**63 for size in value)


def _check_entry(entry: Any) -> None:
    """Raises ValueError for what cannot be a tensor, or not the one that its recipe makes."""
    dtype, shape = dtype_of(entry["dtype"]), entry["shape"]
    if not is_shape(shape) or not isinstance(entry["sha256"], str):
        raise ValueError(f"a tensor has shape {shape!r}")
    if "coder" not in entry:
        return
    recipe, raw_bytes = entry["recipe"], torch.Size(shape).numel() * dtype.itemsize
    if dtype_of(recipe["dtype"]) != dtype or recipe["shape"] != shape or recipe["bytes_before"] != raw_bytes:
        raise ValueError("a recipe makes another tensor than the one it stands for")
