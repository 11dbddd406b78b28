"""A fragment: a set of parameters that syncs together, with its anchor and outer state.

The anchor is kept in fp32 whatever the model's dtype (fp64 for an fp64 model), flat and contiguous, and may live on
another device.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from diloco.outer.flat import Flat
from diloco.outer.optimizers import OuterOptimizer, Torch
from diloco.outer.step import OuterState, TorchState

# Bounds what a sync holds beyond anchor and momentum: three buckets of 8 MiB in flight.
BUCKET_BYTES = 8 << 20

# Buckets and slices begin at multiples of 64 elements, so that neither a vector register nor a word of the checksum
# straddles two of them, and every element sees the same arithmetic whatever the bucket's size.
ALIGNMENT = 64

CHECKSUM_BLOCK_ELEMENTS = 1 << 20

# 512 KiB of fp32: the dozen passes over a slice then run in a core's own cache instead of main memory.
SLICE_ELEMENTS = 1 << 17


class Fragment:
    """`tensors`: the trained parameters of the fragment by name. `device`: where anchor and outer state live (None:
    with the model)."""

    def __init__(
        self,
        tensors: dict[str, Tensor],
        outer: OuterOptimizer | Torch,
        device: torch.device | None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        dtype = functools.reduce(torch.promote_types, (t.dtype for t in tensors.values()), torch.float32)
        device = device or next(iter(tensors.values())).device
        self.flat = Flat(tensors, max(bucket_bytes // dtype.itemsize // ALIGNMENT, 1) * ALIGNMENT)
        self.anchor = self.flat.read(dtype, device)
        self.scratch = torch.empty(2, min(SLICE_ELEMENTS, self.flat.numel), dtype=dtype, device=device)
        self.outer = outer

    @functools.cached_property
    def state(self) -> OuterState | TorchState:
        """Made when first asked for: after the anchor has been agreed upon."""
        if isinstance(self.outer, Torch):
            return TorchState(self.outer, self.anchor, self.flat)
        return OuterState(self.outer, self.anchor)

    def named_anchor(self) -> dict[str, Tensor]:
        """Views of the anchor by parameter name, each with its parameter's shape."""
        return self.flat.named_views(self.anchor)

    def checksum(self) -> int:
        """A 64-bit sum over the anchor's bits: equal on two replicas when their anchors are bit-identical.

        Integer addition wraps and does not depend on order, so every device and thread count agrees; each block is
        weighted by its place, so that blocks cannot trade places unnoticed. It guards against accidents, not against
        tampering.
        """
        whole = self.flat.numel // CHECKSUM_BLOCK_ELEMENTS * CHECKSUM_BLOCK_ELEMENTS
        words = self.anchor[:whole].view(torch.int64)
        words_per_block = CHECKSUM_BLOCK_ELEMENTS * self.anchor.element_size() // 8
        sums = words.view(-1, words_per_block).sum(1).tolist() + [int(bit_sum(self.anchor[whole:]))]
        return _wrap(sum((2 * index + 1) * total for index, total in enumerate(sums)))


def slices(lo: int, hi: int) -> Iterator[tuple[int, int]]:
    """[lo, hi) cut at the multiples of SLICE_ELEMENTS."""
    while lo < hi:
        stop = min((lo // SLICE_ELEMENTS + 1) * SLICE_ELEMENTS, hi)
        yield lo, stop
        lo = stop


def bit_sum(values: Tensor) -> Tensor:
    """Sum of the bytes of a flat tensor read as 64-bit integers, wrapping: 0-dim int64 on the tensor's device."""
    raw = values.view(torch.uint8)
    whole = raw.numel() // 8 * 8
    if whole == raw.numel() and raw.storage_offset() % 8 == 0:
        return raw.view(torch.int64).sum()
    padded = torch.zeros(whole + 8, dtype=torch.uint8, device=raw.device)
    padded[: raw.numel()] = raw
    return padded.view(torch.int64).sum()


def _wrap(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
