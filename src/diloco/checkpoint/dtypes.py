"""Names of dtypes in files, by a table: what a file names is never looked up in a module."""

from __future__ import annotations

import torch

# By name, because the oldest torch we support lacks some of them.
_NAMES = (
    "float64 float32 float16 bfloat16 complex64 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool "
    "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu"
)
_BY_NAME: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _NAMES.split() if hasattr(torch, name)}

DTYPES = frozenset(_BY_NAME.values())
"""Every dtype that both torch and safetensors can hold."""


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_of(name: object) -> torch.dtype:
    """Raises ValueError for anything that is no such name."""
    if not isinstance(name, str) or name not in _BY_NAME:
        raise ValueError(f"{name!r} is no dtype that this torch has")
    return _BY_NAME[name]
