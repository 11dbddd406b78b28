"""How a tensor is written: as it is, or coded. One table, by the `coder` that a part's JSON names."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diloco.checkpoint import delta, delta_lossy
from diloco.errors import BadInput

PLAIN, LOSSLESS, LOSSY = "plain", "lossless", "lossy"
SMALL_BYTES = 256
"""Tensors up to this size are written as they are: a code's own description would be as long."""


@dataclass(frozen=True)
class Coder:
    encode: Callable[[Tensor, Tensor | None], tuple[Tensor, dict[str, Any]]]
    """(tensor, the one before or None) -> (bytes, what `decode` needs to know of them)."""
    decode: Callable[[Tensor, dict[str, Any], Tensor | None], Tensor]
    exact: bool


CODERS = {
    LOSSLESS: Coder(delta.encode, delta.decode, exact=True),
    LOSSY: Coder(delta_lossy.encode, delta_lossy.decode, exact=False),
}
KINDS = (PLAIN, *CODERS)


def check_kind(kind: str) -> str:
    if kind not in KINDS:
        raise BadInput(f"checkpoint kind is {kind!r}: give {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    return kind


def needs_base(recipe: dict[str, Any]) -> bool:
    """Whether what was coded given a base cannot be read without."""
    return recipe.get("uses_base", recipe["kind"] in (delta.SAME, delta.DIFFERENCE))


def bytes_of(tensor: Tensor) -> Tensor:
    """A contiguous tensor's own memory as bytes."""
    return tensor.reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)


def digest(tensor: Tensor) -> str:
    """sha256 of a contiguous CPU tensor's bytes."""
    return hashlib.sha256(memoryview(bytes_of(tensor).numpy())).hexdigest()
