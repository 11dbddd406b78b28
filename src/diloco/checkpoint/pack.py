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


def first_nonfinite(tree: Any) -> str | None:
    """Path of the first floating tensor that holds a NaN or an infinity, or None. Plain floats are not looked at."""
    for path, tensor in _walk_tensors(tree, ()):
        if not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        part = local(tensor)
        if part.numel() and not _is_finite(part):
            return _join(path)
    return None


def _is_finite(tensor: Tensor) -> bool:
    """By the extremes, which a NaN makes NaN: one pass without memory of its own, where torch.isfinite takes twenty
    times as long."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.element_size() == 1:
        tensor = tensor.float()  # torch has no comparison for the one-byte floats
    return bool(torch.stack(torch.aminmax(tensor)).isfinite().all())


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
