"""fp32 and bf16: the elements themselves, without scales."""

from __future__ import annotations

import torch
from torch import Tensor

from diloco.outer.codecs.base import Key, Scratch, spans

BF16_MAX = torch.finfo(torch.bfloat16).max


class Raw:
    """Each element in a float type of its own.

    fp32 is exact. bf16 is the nearest, ties to even: error at most 2^-8 |x| + 2^-126 (bf16's denormals may be flushed);
    values beyond its largest, 3.39e38, become that one, which is within the same bound.
    """

    block = 1
    gathers = False

    def __init__(self, name: str, feedback: bool, dtype: torch.dtype) -> None:
        self.name, self.feedback, self.dtype = name, feedback, dtype
        self.exact = dtype == torch.float32
        self.scratch = Scratch()

    def nbytes(self, numel: int) -> int:
        return numel * self.dtype.itemsize

    def encode(self, values: Tensor, out: Tensor, key: Key) -> None:
        if self.exact:
            out.copy_(values.view(torch.uint8))
            return
        for lo, hi in spans(values.numel(), values.device):
            clamped = self.scratch.take("clamped", hi - lo, torch.float32, values.device)
            torch.clamp(values[lo:hi], -BF16_MAX, BF16_MAX, out=clamped)
            rounded = self.scratch.take("rounded", hi - lo, self.dtype, values.device)
            rounded.copy_(clamped)
            out[self.nbytes(lo) : self.nbytes(hi)].copy_(rounded.view(torch.uint8))

    def decode(self, payload: Tensor, out: Tensor, key: Key, add: bool = False) -> None:
        if self.exact and not add:
            out.view(torch.uint8).copy_(payload)
            return
        for lo, hi in spans(out.numel(), out.device):
            # Through scratch, because a payload may begin at a byte where no float can.
            rounded = self.scratch.take("rounded", hi - lo, self.dtype, out.device)
            rounded.view(torch.uint8).copy_(payload[self.nbytes(lo) : self.nbytes(hi)])
            if add:
                out[lo:hi].add_(rounded)
            else:
                out[lo:hi].copy_(rounded)

    def bound(self, values: Tensor) -> Tensor:
        return torch.zeros_like(values) if self.exact else values.abs() * 2.0**-8 + 2.0**-126
