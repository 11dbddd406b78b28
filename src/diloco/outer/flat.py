"""A flat, contiguous view of many tensors, cut into buckets.

Of a sharded tensor it holds this process's part. A bucket is a range [lo, hi) of the flat buffer; the buckets cover it
exactly, and a tensor larger than a bucket simply spans several, so none is ever skipped or reordered whatever the
bucket's size.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from diloco.errors import BadInput
from diloco.shards import local


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in the flat buffer: [lo, hi)."""

    name: str
    lo: int
    hi: int


def linear_view(tensor: Tensor, name: str = "tensor") -> Tensor:
    """The tensor's own memory as one dimension, in storage order (so channels-last weights need no copy).

    Raises BadInput for a tensor with gaps or overlaps in memory, which no flat view can write to.
    """
    part = local(tensor)
    dense = part.permute(_storage_order(part))
    if not dense.is_contiguous():
        raise BadInput(
            f"parameter {name!r} is a strided view {tuple(part.stride())}: make it contiguous before DiLoCo is built"
        )
    return dense.view(-1)


def shaped_like(flat: Tensor, tensor: Tensor) -> Tensor:
    """The inverse of `linear_view`: a view of `flat` with the tensor's shape and strides."""
    order = _storage_order(tensor)
    inverse = sorted(range(tensor.dim()), key=order.__getitem__)
    return flat.view([tensor.shape[d] for d in order]).permute(inverse)


def _storage_order(tensor: Tensor) -> list[int]:
    return sorted(range(tensor.dim()), key=lambda d: -tensor.stride(d))


class Flat:
    """The layout of named tensors in one flat buffer. It holds no values of its own.

    Every tensor begins at a multiple of `align` elements, so that what a codec codes together never joins two tensors,
    and a shard whose length that divides is coded as it would be inside the whole. Gaps hold zeros.
    """

    def __init__(self, tensors: dict[str, Tensor], bucket_elements: int, align: int = 1) -> None:
        self.tensors = tensors
        self.bucket_elements = bucket_elements
        self.places: list[Place] = []
        lo = 0
        for name, tensor in tensors.items():
            lo += -lo % align
            numel = linear_view(tensor, name).numel()
            self.places.append(Place(name, lo, lo + numel))
            lo += numel
        self.numel = lo

    def buckets(self) -> Iterator[tuple[int, int]]:
        for lo in range(0, self.numel, self.bucket_elements):
            yield lo, min(lo + self.bucket_elements, self.numel)

    def pieces(self, lo: int, hi: int) -> Iterator[tuple[int, int, Tensor]]:
        """(start, stop, view of the model's own memory) of every tensor part inside [lo, hi), in order."""
        for place in self.places[bisect_right(self.places, lo, key=lambda p: p.hi) :]:
            if place.lo >= hi:
                return
            start, stop = max(place.lo, lo), min(place.hi, hi)
            if start < stop:
                yield start, stop, linear_view(self.tensors[place.name])[start - place.lo : stop - place.lo]

    def named_views(self, buffer: Tensor) -> dict[str, Tensor]:
        """The flat buffer as one view per tensor, with the shape of its tensor or of this process's part of it."""
        return {p.name: shaped_like(buffer[p.lo : p.hi], local(self.tensors[p.name])) for p in self.places}

    def read(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A new flat buffer with a copy of the model's values."""
        buffer = torch.zeros(self.numel, dtype=dtype, device=device)
        for lo, hi, weights in self.pieces(0, self.numel):
            buffer[lo:hi].copy_(weights)
        return buffer

    def write(self, buffer: Tensor, lo: int, hi: int) -> None:
        """Copies buffer[lo:hi] into the model, rounding to its dtype."""
        for start, stop, weights in self.pieces(lo, hi):
            weights.copy_(buffer[start:stop])

    def drift(self, anchor: Tensor, lo: int, hi: int, out: Tensor) -> None:
        """out[: hi - lo] = what the replica started this window from, minus what it has now.

        That start is the anchor *as the model holds it*: rounded to the model's dtype. Measured against the fp32 anchor
        itself, a bf16 replica that has not moved would pull the anchor back to the bf16 grid, and small outer updates
        would be lost.
        """
        filled = lo
        for start, stop, weights in self.pieces(lo, hi):
            out[filled - lo : start - lo].zero_()
            filled = stop
            target, reference = out[start - lo : stop - lo], anchor[start:stop]
            if weights.dtype == anchor.dtype and weights.device == anchor.device == target.device:
                torch.sub(reference, weights, out=target)
            else:
                rounded = reference.to(weights.dtype).to(anchor.dtype)
                target.copy_(rounded - weights.to(device=anchor.device, dtype=anchor.dtype))
        out[filled - lo : hi - lo].zero_()
