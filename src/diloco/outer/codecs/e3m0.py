"""e3m0: 4 bits, a sign and three bits of exponent, beside one shared exponent per block.

Streaming DiLoCo (arXiv 2501.18512) sends its outer gradients in these 4 bits; a shared exponent is what the
microscaling formats have. Shapes: N blocks of B elements.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diloco.outer.codecs.base import block_absmax, power_of_two
from diloco.outer.codecs.blocked import Blocked

LOWEST_TOP, HIGHEST_TOP = 8, 246
"""Biased fp32 exponents between which a block's top lies, so that decoding never leaves fp32's normal numbers."""

HALF = 1 << 22
"""Half a unit of the exponent in fp32's bits: 1.5 in place of 1."""

SIGN_AND_CODE = -(1 << 15) + (7 << 10)
"""Bits of fp16: the sign, and the lowest three of the exponent."""


class E3M0(Blocked):
    """Code 0 is zero; code c in 1..7 is 2^(top - 7 + c), top being the exponent that the block's absmax rounds to.

    The nearest by value, ties upwards: error at most max(|x| / 3, 2^(top - 7), |x| - 2^119), where 2^top is at most 4/3
    absmax. A block whose absmax is below 2^-119 is coded as if it were there; magnitudes beyond 2^119 become 2^119.
    """

    block, code_bits = 128, 4
    code_dtype, scale_dtype = torch.int8, torch.uint8

    def quantize(self, x_NB: Tensor, code_NB: Tensor, scale_N1: Tensor) -> None:
        top_N1 = _top(x_NB)
        scale_N1.copy_(top_N1)
        wide_NB = self._take("wide", x_NB.numel(), x_NB, torch.int32).view_as(x_NB)
        bits_NB = self._take("bits", x_NB.numel(), x_NB, torch.int16).view_as(x_NB)
        rank_NB = self._take("rank", x_NB.numel(), x_NB, torch.int16).view_as(x_NB)
        sign_NB = self._take("sign", x_NB.numel(), x_NB, torch.int8).view_as(x_NB)
        # Sign, exponent and whether the mantissa is 1.5 or more: all that rounding to a power of two asks for.
        bits_NB.copy_(torch.bitwise_right_shift(x_NB.view(torch.int32), 22, out=wide_NB))
        torch.bitwise_and(bits_NB, 0x1FF, out=rank_NB)
        # Half exponents above the least magnitude that is not nearest to zero, from 1; a code spans two of them.
        rank_NB.sub_((2 * top_N1 - 15).to(torch.int16)).clamp_(0, 15)
        code_NB.copy_(rank_NB)
        torch.clamp(code_NB, max=1, out=sign_NB)
        torch.maximum(code_NB.bitwise_right_shift_(1), sign_NB, out=code_NB)
        sign_NB.copy_(bits_NB.clamp_(-1, 0))
        code_NB.add_(sign_NB, alpha=8)

    def dequantize(self, code_NB: Tensor, scale_N1: Tensor, out_NB: Tensor) -> None:
        bits_NB = self._take("bits", code_NB.numel(), code_NB, torch.int16).view_as(code_NB)
        bits_NB.copy_(code_NB)
        bits_NB.mul_(1 << 10).bitwise_and_(SIGN_AND_CODE)
        # As fp16 these are 0 or 2^(code - 15) with their sign; the factor brings the top code, 7, to 2^top.
        out_NB.copy_(bits_NB.view(torch.float16))
        out_NB.mul_(power_of_two(scale_N1.to(torch.int32) + 8))

    def bound(self, values: Tensor) -> Tensor:
        size = values.abs()
        near_zero_N1 = power_of_two(_top(self._whole_blocks(values)) - 7)
        near_zero = self._per_element(near_zero_N1, values.numel())
        return torch.maximum(torch.maximum(size / 3, near_zero), size - 2.0**119)


def _top(x_NB: Tensor) -> Tensor:
    """Biased exponent that each block's absmax rounds to, int32 [N, 1]."""
    return ((block_absmax(x_NB).view(torch.int32) + HALF) >> 23).clamp_(LOWEST_TOP, HIGHEST_TOP)
