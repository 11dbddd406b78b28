"""A nested state tree as named tensors plus a JSON tree, and back, bit for bit.

Plain JSON stands for itself. What JSON lacks is a one-key object whose key starts with `$`:

    {"$tensor": name}    the tensor stored under `name` (its path in the tree, e.g. "optimizer/w/exp_avg")
    {"$shard": {...}}    a chunk of a sharded tensor: `tensor` as above, or none where the chunk is empty, `dtype`, the
                         whole tensor's `shape`, and the chunk's `offset` in it
    {"$absent": null}    what another part of the same unit holds
    {"$tuple": [...]}    a tuple
    {"$float": "nan"}    nan, inf or -inf
    {"$dict": [[k, v]]}  a dict with keys that are not plain text (optimizer.state_dict() has ints)
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from diloco.checkpoint.dtypes import DTYPES, dtype_name
from diloco.checkpoint.shards import chunk_of
from diloco.shards import is_sharded, local


class Absent:
    """Stands in a part's tree for a value that another part of the same unit holds."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Absent()

# safetensors keeps its own text under this key, so no tensor may use it.
_RESERVED_NAME = "__metadata__"


def split(tree: Any) -> tuple[dict[str, Tensor], Any]:
    """Splits `tree` into (the live tensors by name, JSON tree); of a DTensor, this rank's part.

    Holds dict (text or int keys), list, tuple, str, int, float, bool, None and Tensor, nested at will. Two references
    to the same memory with the same shape are one tensor. An OrderedDict comes back as a dict.

    Raises:
        TypeError: anything else (numpy scalars, sparse or meta tensors, ...), naming its path.
    """
    packer = _Packer()
    json_tree = packer.encode(tree, ())
    return packer.tensors, json_tree


def pack(tree: Any) -> tuple[dict[str, Tensor], Any]:
    """`split`, with tensors as safetensors takes them: detached, on the CPU, contiguous, none sharing memory."""
    tensors, json_tree = split(tree)
    storages: set[int] = set()
    return {name: _own_storage(tensor, storages) for name, tensor in tensors.items()}, json_tree


def unpack(tensors: dict[str, Tensor], json_tree: Any) -> Any:
    """The tree that `pack` was given.

    Raises:
        ValueError: a tensor that the tree names is missing, one is left over, or a `$` tag is unknown.
    """
    used: set[str] = set()

    def leaf(tag: str, value: Any) -> Tensor:
        if tag != "$tensor":
            raise ValueError("it holds chunks of sharded tensors: open it with `Store`")
        if value not in tensors:
            raise ValueError(f"tensor '{value}' is missing")
        used.add(value)
        return tensors[value]

    tree = decode(json_tree, leaf)
    if left_over := sorted(set(tensors) - used):
        raise ValueError(f"tensor '{left_over[0]}' belongs nowhere in the tree ({len(left_over)} left over)")
    return tree


def first_nonfinite(tree: Any) -> str | None:
    """Path of the first floating tensor that holds a NaN or an infinity, or None. Plain floats are not looked at."""
    for path, tensor in _walk_tensors(tree, ()):
        if not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        # torch has no isfinite for the one-byte floats
        part = local(tensor)
        checked = part.float() if part.element_size() == 1 else part
        if not bool(torch.isfinite(checked).all()):
            return _join(path)
    return None


def _walk_tensors(tree: Any, path: tuple):
    if isinstance(tree, Tensor):
        yield path, tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from _walk_tensors(value, (*path, key))
    elif isinstance(tree, (list, tuple)):
        for index, value in enumerate(tree):
            yield from _walk_tensors(value, (*path, index))


def _join(path: tuple) -> str:
    return "/".join(str(part) for part in path) or "root"


class _Packer:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._name_of_view: dict[tuple, str] = {}

    def encode(self, node: Any, path: tuple) -> Any:
        # Exact types: a subclass (numpy.float64 is a float) would come back as something else.
        kind = type(node)
        if node is None or kind in (bool, int, str):
            return node
        if node is ABSENT:
            return {"$absent": None}
        if kind is float:
            return node if math.isfinite(node) else {"$float": repr(node)}
        if kind is list:
            return [self.encode(item, (*path, index)) for index, item in enumerate(node)]
        if kind is tuple:
            return {"$tuple": [self.encode(item, (*path, index)) for index, item in enumerate(node)]}
        if kind in (dict, OrderedDict):
            return self._encode_dict(node, path)
        if is_sharded(node):
            return self._encode_shard(node, path)
        if kind in (Tensor, torch.nn.Parameter):
            return {"$tensor": self._name(node, path)}
        raise TypeError(f"cannot save {_join(path)}: {kind.__module__}.{kind.__name__} is no plain value or tensor")

    def _encode_shard(self, tensor: Tensor, path: tuple) -> Any:
        try:
            chunk = chunk_of(tensor)
        except TypeError as error:
            raise TypeError(f"cannot save {_join(path)}: {error}") from error
        name = self._name(local(tensor), path) if chunk.numel else None
        dtype = dtype_name(tensor.dtype)
        return {"$shard": {"tensor": name, "dtype": dtype, "shape": list(tensor.shape), "offset": list(chunk.offset)}}

    def _encode_dict(self, node: dict, path: tuple) -> Any:
        for key in node:
            if type(key) not in (str, int):
                raise TypeError(f"cannot save {_join(path)}: its key {key!r} is neither text nor an int")
        pairs = [[key, self.encode(value, (*path, key))] for key, value in node.items()]
        if all(type(key) is str and not key.startswith("$") for key in node):
            return dict(pairs)
        return {"$dict": pairs}

    def _name(self, tensor: Tensor, path: tuple) -> str:
        if tensor.dtype not in DTYPES or tensor.layout is not torch.strided or tensor.is_meta:
            raise TypeError(
                f"cannot save {_join(path)}: no format for a {tensor.dtype} tensor, {tensor.layout}, on {tensor.device}"
            )
        view = (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj())
        if tensor.numel() and view in self._name_of_view:
            return self._name_of_view[view]
        name = self._free_name(path)
        self.tensors[name] = tensor.detach()
        self._name_of_view[view] = name
        return name

    def _free_name(self, path: tuple) -> str:
        # {0: x, "0": y} and {"a/b": x, "a": {"b": y}} read the same as paths.
        name = _join(path)
        while name in self.tensors or name == _RESERVED_NAME:
            name += "+"
        return name


def _own_storage(tensor: Tensor, storages: set[int]) -> Tensor:
    """`tensor` on the CPU, contiguous, sharing no storage with another of them: safetensors refuses overlaps."""
    flat = tensor.cpu().resolve_conj().resolve_neg().contiguous()
    storage = flat.untyped_storage()
    if storage.data_ptr() in storages or storage.nbytes() != flat.numel() * flat.element_size():
        flat = flat.clone(memory_format=torch.contiguous_format)
    storages.add(flat.untyped_storage().data_ptr())
    return flat


def decode(node: Any, leaf: Callable[[str, Any], Any]) -> Any:
    """The tree that a JSON tree stands for, with `leaf(tag, value)` for each `$tensor` and `$shard`.

    Raises ValueError where a `$` tag is unknown.
    """
    if isinstance(node, list):
        return [decode(item, leaf) for item in node]
    if not isinstance(node, dict):
        return node
    if len(node) != 1 or not next(iter(node)).startswith("$"):
        return {key: decode(value, leaf) for key, value in node.items()}
    tag, value = next(iter(node.items()))
    if tag in ("$tensor", "$shard"):
        return leaf(tag, value)
    if tag == "$absent":
        return ABSENT
    if tag == "$tuple":
        return tuple(decode(item, leaf) for item in value)
    if tag == "$float":
        return float(value)
    if tag == "$dict":
        return {key: decode(item, leaf) for key, item in value}
    raise ValueError(f"unknown tag '{tag}'")
