"""What every codec offers, and how all of them walk through a payload.

Shapes: n elements, N blocks of B elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

PAGE = 4096
"""Elements. Every codec's block divides it, and payloads are laid out by it whatever the slice, on every device."""

SLICES = {"cpu": 64 * PAGE}
"""Elements worked on at a time: on a CPU what stays in its cache with the scratch beside it."""

GPU_SLICE = 4096 * PAGE
"""Elements worked on at a time elsewhere: few launches, bounded scratch."""


@dataclass(frozen=True)
class Key:
    """Place of a payload: what all replicas know alike.

    `seed` differs by round and fragment; `first` is the index in the fragment of the first element, a multiple of the
    codec's block.
    """

    seed: int
    first: int


class Codec(Protocol):
    """How a flat outer gradient is written on the wire. One object serves one thread: it keeps its scratch."""

    name: str
    """The canonical spec with its options: equal on two machines exactly when the codecs are."""
    block: int
    """Elements. A range that begins at a multiple of it is coded independently of everything outside the range."""
    feedback: bool
    """Whether what was not sent is kept and added to the next round (error feedback)."""
    gathers: bool
    """Whether payloads of a sum are not coded anew, because the sum is denser than its parts: all are gathered."""
    exact: bool
    """Whether decode(encode(x)) is x bit for bit."""

    def nbytes(self, numel: int) -> int:
        """Payload bytes for numel >= 0 elements."""
        ...

    def encode(self, values: Tensor, out: Tensor, key: Key) -> None:
        """Writes values, fp32 [n], contiguous and left as they are, to out, uint8 [nbytes(n)]."""
        ...

    def decode(self, payload: Tensor, out: Tensor, key: Key, add: bool = False) -> None:
        """Writes payload, uint8 [nbytes(n)], to out, fp32 [n], or adds it to what is there."""
        ...

    def bound(self, values: Tensor) -> Tensor:
        """Elementwise bound, fp32 [n], of |decode(encode(values)) - values|."""
        ...


class Scratch:
    """Buffers kept from call to call, one per use and device."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.device], Tensor] = {}

    def take(self, use: str, numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """An uninitialised [numel] buffer, the same memory at every call with this use."""
        buffer = self._buffers.get((use, device))
        if buffer is None or buffer.numel() < numel:
            buffer = torch.empty(numel, dtype=dtype, device=device)
            self._buffers[use, device] = buffer
        return buffer[:numel]


def spans(numel: int, device: torch.device) -> Iterator[tuple[int, int]]:
    """[lo, hi) slices of whole pages, then what is left over, less than a page, by itself."""
    whole, size = numel - numel % PAGE, SLICES.get(device.type, GPU_SLICE)
    for lo in range(0, whole, size):
        yield lo, min(lo + size, whole)
    if whole < numel:
        yield whole, numel


def power_of_two(biased: Tensor) -> Tensor:
    """2^(biased - 127) in fp32, of int32 in 1..254: exact on every device, as torch.pow need not be."""
    return (biased << 23).view(torch.float32)


def block_absmax(x_NB: Tensor) -> Tensor:
    """Largest magnitude in each block, [N, 1]: two reads and no write, where abs would write a whole slice."""
    return torch.maximum(torch.amax(x_NB, 1, keepdim=True), -torch.amin(x_NB, 1, keepdim=True))
