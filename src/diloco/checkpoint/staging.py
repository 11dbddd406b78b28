"""Copies of a rank's tensors, taken while training waits, so that they can be coded and written while it goes on."""

from __future__ import annotations

import torch
from torch import Tensor

Tensors = dict[str, dict[str, Tensor]]
"""By part and name."""


class Staging:
    """CPU memory for `generations` copies, which is used again: one, or two where the one before is still needed as
    the base of a difference."""

    def __init__(self, generations: int) -> None:
        self._buffers: list[Tensors] = [{} for _ in range(generations)]

    @property
    def current(self) -> Tensors:
        return self._buffers[0]

    @property
    def before(self) -> Tensors:
        return self._buffers[-1] if len(self._buffers) > 1 else {}

    def take(self, parts: Tensors) -> Tensors:
        """The tensors' values as they are now, contiguous on the CPU."""
        self._buffers = [*self._buffers[-1:], *self._buffers[:-1]]
        memory = self._buffers[0]
        self._buffers[0] = {
            part: {name: _room(tensor, memory.get(part, {}).get(name)) for name, tensor in tensors.items()}
            for part, tensors in parts.items()
        }
        devices = set()
        for part, tensors in parts.items():
            for name, tensor in tensors.items():
                self.current[part][name].copy_(tensor, non_blocking=True)
                devices.add(tensor.device)
        for device in devices:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
        return self.current


def _room(tensor: Tensor, old: Tensor | None) -> Tensor:
    if old is not None and old.shape == tensor.shape and old.dtype == tensor.dtype:
        return old
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
