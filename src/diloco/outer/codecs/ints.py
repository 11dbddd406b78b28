"""int8 and int4: whole multiples of a step, the block's largest magnitude being the last of them.

Shapes: N blocks of B elements.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diloco.outer.codecs.base import block_absmax
from diloco.outer.codecs.blocked import Blocked

LEAST, MOST = 2.0**-100, 3.4028e38
"""The largest magnitude of a block is taken to lie between these, so that no step, nor its inverse, leaves fp32."""

ROUNDING = 2.0**-22
"""Relative, for the four fp32 operations between a value and its decoded one."""


class Ints(Blocked):
    """code = round(x / step), step = absmax / levels with levels = 2^(bits-1) - 1; ties go to the even code.

    Error at most absmax * (1 / (2 levels) + 2^-22), where absmax is the block's or 2^-100, whichever is larger: half a
    step, and the rounding of the arithmetic. Values in blocks below 2^-100 / (2 levels) become 0.
    """

    code_dtype = torch.int8
    scale_dtype = torch.float32

    def __init__(self, name: str, feedback: bool, bits: int, block: int) -> None:
        super().__init__(name, feedback)
        self.code_bits, self.block, self.levels = bits, block, 2 ** (bits - 1) - 1

    def quantize(self, x_NB: Tensor, code_NB: Tensor, scale_N1: Tensor) -> None:
        torch.clamp(block_absmax(x_NB), LEAST, MOST, out=scale_N1)
        # Not div: torch divides by a number on a CPU, but multiplies by its inverse on a GPU.
        scale_N1.mul_(1 / self.levels)
        y_NB = self._take("y", x_NB.numel(), x_NB).view_as(x_NB)
        torch.mul(x_NB, scale_N1.reciprocal(), out=y_NB)
        code_NB.copy_(y_NB.round_())

    def dequantize(self, code_NB: Tensor, scale_N1: Tensor, out_NB: Tensor) -> None:
        torch.mul(code_NB, scale_N1, out=out_NB)

    def bound(self, values: Tensor) -> Tensor:
        absmax_N1 = block_absmax(self._whole_blocks(values)).clamp_min(LEAST)
        return self._per_element(absmax_N1 * (0.5 / self.levels + ROUNDING), values.numel())
