"""A fragment: a set of parameters that syncs together, with its anchor and outer state.

The anchor is kept in fp32 whatever the model's dtype (fp64 for an fp64 model), flat and contiguous, and may live on
another device.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from diloco.outer.flat import Flat
from diloco.outer.optimizers import OuterOptimizer, Torch
from diloco.outer.step import OuterState, TorchState

# Bounds what a sync holds beyond anchor and momentum: three buckets in flight and one of scratch, 8 MiB each, are 32
# MiB.
BUCKET_BYTES = 8 << 20

CHECKSUM_BLOCK_ELEMENTS = 1 << 20


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
        self.flat = Flat(tensors, max(bucket_bytes // dtype.itemsize, 1))
        self.anchor = self.flat.read(dtype, device)
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
        blocks = self.anchor.split(CHECKSUM_BLOCK_ELEMENTS)
        return _wrap(sum((2 * index + 1) * bit_sum(block) for index, block in enumerate(blocks)))


def bit_sum(values: Tensor) -> int:
    """Sum of the tensor's bytes read as 64-bit integers, modulo 2**64, as a signed number."""
    raw = values.view(torch.uint8)
    if raw.storage_offset() % 8:
        raw = raw.clone()  # a view of words has to begin at a whole word
    whole = raw.numel() // 8 * 8
    total = raw[:whole].view(torch.int64).sum().item() if whole else 0
    return _wrap(total + int.from_bytes(bytes(raw[whole:].tolist()), "little"))


def _wrap(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
