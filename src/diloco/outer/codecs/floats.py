"""fp16 with one shared exponent per block, so that neither huge nor tiny outer gradients fall out of its range.

Shapes: N blocks of B elements.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diloco.outer.codecs.base import block_absmax, power_of_two
from diloco.outer.codecs.blocked import Blocked

LOWEST_TOP, HIGHEST_TOP = 15, 254
"""Biased fp32 exponents between which a block's top lies: so both scaling factors are normal fp32 numbers."""

TOP = 14
"""The exponent that a block's largest magnitude is brought to, one below fp16's last."""

LARGEST = 2.0**15 - 2.0**4
"""fp16's last number below 2^15: rounding up further would leave fp32's range where the block is near its end."""


class FP16(Blocked):
    """code = x * 2^(14 - top) in fp16, ties to even, top being the exponent of the block's absmax.

    Error at most 2^-11 |x| + max(2^(top - 39), 2^-148): the rounding, and where fp16 or what it decodes to is denormal.
    A block whose absmax is below 2^-112 is coded as if it were there.
    """

    block, code_bits = 256, 16
    code_dtype, scale_dtype = torch.float16, torch.uint8

    def quantize(self, x_NB: Tensor, code_NB: Tensor, scale_N1: Tensor) -> None:
        top_N1 = _top(x_NB)
        scale_N1.copy_(top_N1)
        y_NB = self._take("y", x_NB.numel(), x_NB).view_as(x_NB)
        torch.mul(x_NB, power_of_two(127 + TOP + 127 - top_N1), out=y_NB)
        code_NB.copy_(y_NB.clamp_(-LARGEST, LARGEST))

    def dequantize(self, code_NB: Tensor, scale_N1: Tensor, out_NB: Tensor) -> None:
        out_NB.copy_(code_NB)
        out_NB.mul_(power_of_two(scale_N1.to(torch.int32) - TOP))

    def bound(self, values: Tensor) -> Tensor:
        denormal_N1 = power_of_two(_top(self._whole_blocks(values)) - TOP) * 2.0 ** (TOP - 39)
        return values.abs() * 2.0**-11 + self._per_element(denormal_N1, values.numel()).clamp_min(2.0**-148)


def _top(x_NB: Tensor) -> Tensor:
    """Biased exponent of each block's absmax, int32 [N, 1]."""
    return (block_absmax(x_NB).view(torch.int32) >> 23).clamp_(LOWEST_TOP, HIGHEST_TOP)
