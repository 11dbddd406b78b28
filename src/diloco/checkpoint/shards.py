"""Which chunk of a sharded tensor lies on this rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from diloco.shards import local


@dataclass(frozen=True)
class Chunk:
    """A box of a tensor with `shape` elements along each dimension, from `offset` on."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        return torch.Size(self.shape).numel()

    def overlap(self, other: Chunk) -> Chunk | None:
        """The box that both have in common; None where it is empty."""
        lows = [max(a, b) for a, b in zip(self.offset, other.offset, strict=True)]
        ends = [min(*pair) for pair in zip(self.end, other.end, strict=True)]
        if any(low >= end for low, end in zip(lows, ends, strict=True)):
            return None
        return Chunk(tuple(lows), tuple(end - low for low, end in zip(lows, ends, strict=True)))

    @property
    def end(self) -> tuple[int, ...]:
        return tuple(o + s for o, s in zip(self.offset, self.shape, strict=True))

    def inside(self, other: Chunk) -> tuple[slice, ...]:
        """Index of this box in a tensor that holds `other`."""
        return tuple(slice(a - b, a - b + n) for a, b, n in zip(self.offset, other.offset, self.shape, strict=True))


def whole(shape: tuple[int, ...]) -> Chunk:
    return Chunk((0,) * len(shape), tuple(shape))


def chunk_of(tensor: Tensor) -> Chunk:
    """Which chunk of a DTensor lies here. Raises TypeError for one whose values are partial sums."""
    mesh, shape, offset = tensor.device_mesh, list(tensor.shape), [0] * tensor.dim()
    coordinate = mesh.get_coordinate()
    dims = list(zip(coordinate, mesh.shape, tensor.placements, strict=True))
    if any(placement.is_partial() for _, _, placement in dims):
        raise TypeError("a DTensor of partial sums has no values of its own")
    # FSDP2 over tensor parallelism on one dimension cuts the part that tensor parallelism left, although its mesh
    # dimension comes first; torch marks such a cut with a split factor.
    for place, parts, placement in sorted(dims, key=lambda d: hasattr(d[2], "split_factor")):
        if placement.is_replicate():
            continue
        size = -(-shape[placement.dim] // parts)
        low = min(place * size, shape[placement.dim])
        offset[placement.dim] += low
        shape[placement.dim] = min(size, shape[placement.dim] - low)
    found = tuple(local(tensor).shape)
    if found != tuple(shape):
        raise TypeError(f"a DTensor with {tensor.placements} has a part of shape {found} here, not {tuple(shape)}")
    return Chunk(tuple(offset), tuple(shape))


def is_owner(tensor: Tensor) -> bool:
    """Whether this rank is the first of those that hold the same chunk."""
    dims = zip(tensor.device_mesh.get_coordinate(), tensor.placements, strict=True)
    return all(place == 0 for place, placement in dims if placement.is_replicate())
