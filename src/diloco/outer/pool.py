"""Reusable flat buffers: memory fresh from the system costs a page fault every 4 KiB."""

from __future__ import annotations

import torch
from torch import Tensor


class Pool:
    """Lends flat tensors and takes them back. One thread at a time."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []

    def take(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """An uninitialised tensor of `length` elements: the smallest free one that holds it, or a new one."""
        fits = [b for b in self._free if b.dtype == dtype and b.device == device and b.numel() >= length]
        if not fits:
            # The longest free one of the kind is too short for this run's buckets and would never be used again.
            self._free = [b for b in self._free if b.dtype != dtype or b.device != device]
            return torch.empty(length, dtype=dtype, device=device)
        best = min(fits, key=Tensor.numel)
        self._free = [b for b in self._free if b is not best]
        return best[:length]

    def give(self, buffer: Tensor) -> None:
        self._free.append(buffer if buffer._base is None else buffer._base)
