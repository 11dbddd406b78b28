"""One part's two files: NAME.safetensors with the bytes, and NAME.json with the tree and how each tensor is written.

The JSON is {"tree": ..., "tensors": {name: entry}}. An entry has `dtype`, `shape` and `sha256` of what decoding gives,
and how to come to it: nothing more for a tensor that is stored as it is; `coder`, `recipe` and whether it needs the
`base`; or `same`, the [part, name] of an equal tensor in this checkpoint.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from diloco.checkpoint.coders import CODERS, PLAIN, SMALL_BYTES, digest, dtype_name, needs_base
from diloco.checkpoint.files import sha256_of
from diloco.checkpoint.manifest import PartInfo, folder_name, tensor_file, tree_file
from diloco.checkpoint.storage import Storage
from diloco.errors import BadInput

Key = tuple[str, str]
"""(part, name) of a tensor."""


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
    return torch.Size(entry["shape"]).numel() * getattr(torch, entry["dtype"]).itemsize


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    try:
        safetensors.torch.save_file(tensors, path)
    except SafetensorError as error:
        raise OSError(str(error)) from error


class PartFile:
    """A part that is read: its tree at once, its tensors as they are asked for."""

    def __init__(self, tensors: Path, tree: Path, name: str) -> None:
        """`name`: how messages call it. Raises BadInput where the two files do not belong together."""
        self.name = name
        try:
            content = json.loads(tree.read_text(encoding="utf-8"))
            self.tree, self.entries = content["tree"], content["tensors"]
            self._file = safe_open(tensors, framework="pt")
            stored = {name for name, entry in self.entries.items() if "same" not in entry}
            if left_over := sorted(stored ^ set(self._file.keys())):
                raise ValueError(f"'{left_over[0]}' is in only one of them")
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise BadInput(f"{name}.safetensors is not what {name}.json names ({error}): use another") from error

    def entry(self, tensor: str) -> dict:
        if tensor not in self.entries:
            raise BadInput(f"{self.name} lacks the tensor '{tensor}': the checkpoint is damaged, so use another")
        return self.entries[tensor]

    def stored(self, tensor: str) -> Tensor:
        # A copy, since how a mapped file is aligned would change the last bits of some sums.
        return self._file.get_tensor(tensor).clone()
