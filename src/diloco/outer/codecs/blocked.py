"""Codecs that write each element in a fixed number of bits beside one scale per block.

A payload is all scales, then all codes. Both pass through scratch, so a payload may begin at any byte.
Shapes: n elements, N blocks of B elements.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from diloco.outer.codecs.base import Key, Scratch, spans
from diloco.outer.codecs.bits import pack_nibbles, unpack_nibbles


class Blocked(ABC):
    """Walks the payload slice by slice; a family says how one slice of whole blocks becomes codes and scales."""

    block: int
    code_bits: int
    code_dtype: torch.dtype
    scale_dtype: torch.dtype
    gathers = False
    exact = False

    def __init__(self, name: str, feedback: bool) -> None:
        self.name, self.feedback = name, feedback
        self.scratch = Scratch()

    @abstractmethod
    def quantize(self, x_NB: Tensor, code_NB: Tensor, scale_N1: Tensor) -> None:
        """Writes codes and scales."""

    @abstractmethod
    def dequantize(self, code_NB: Tensor, scale_N1: Tensor, out_NB: Tensor) -> None:
        """Writes values."""

    def nbytes(self, numel: int) -> int:
        return self._scale_bytes(numel) + math.ceil(numel * self.code_bits / 8)

    def encode(self, values: Tensor, out: Tensor, key: Key) -> None:
        scale_out, code_out = out.tensor_split([self._scale_bytes(values.numel())])
        for lo, hi in spans(values.numel(), values.device):
            x_NB = self._whole_blocks(values[lo:hi])
            code_NB, scale_N1 = self._buffers(x_NB.shape[0], values.device)
            self.quantize(x_NB, code_NB, scale_N1)
            scale_out[self._scale_bytes(lo) : self._scale_bytes(hi)].copy_(scale_N1.view(-1).view(torch.uint8))
            self._pack(code_NB.view(-1), hi - lo, code_out[lo * self.code_bits // 8 :])

    def decode(self, payload: Tensor, out: Tensor, key: Key, add: bool = False) -> None:
        scale_in, code_in = payload.tensor_split([self._scale_bytes(out.numel())])
        for lo, hi in spans(out.numel(), out.device):
            blocks = math.ceil((hi - lo) / self.block)
            code_NB, scale_N1 = self._buffers(blocks, out.device)
            scale_N1.view(-1).view(torch.uint8).copy_(scale_in[self._scale_bytes(lo) : self._scale_bytes(hi)])
            self._unpack(code_in[lo * self.code_bits // 8 :], hi - lo, code_NB.view(-1))
            whole = (hi - lo) % self.block == 0
            values = out[lo:hi] if whole and not add else self._take("values", blocks * self.block, out)
            self.dequantize(code_NB, scale_N1, values.view(-1, self.block))
            if add:
                out[lo:hi].add_(values[: hi - lo])
            elif not whole:
                out[lo:hi].copy_(values[: hi - lo])

    def _scale_bytes(self, numel: int) -> int:
        return math.ceil(numel / self.block) * self.scale_dtype.itemsize

    def _take(self, use: str, numel: int, like: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.scratch.take(use, numel, dtype, like.device)

    def _buffers(self, blocks: int, device: torch.device) -> tuple[Tensor, Tensor]:
        code = self.scratch.take("code", blocks * self.block, self.code_dtype, device)
        return code.view(-1, self.block), self.scratch.take("scale", blocks, self.scale_dtype, device).view(-1, 1)

    def _whole_blocks(self, values: Tensor) -> Tensor:
        """The slice as rows of blocks, its last block filled up with zeros, which change no block's scale."""
        short = -values.numel() % self.block
        if short:
            padded = self._take("padded", values.numel() + short, values)
            padded[: values.numel()].copy_(values)
            padded[values.numel() :].zero_()
            values = padded
        return values.view(-1, self.block)

    def _per_element(self, value_N1: Tensor, numel: int) -> Tensor:
        return value_N1.expand(-1, self.block).reshape(-1)[:numel]

    def _pack(self, code: Tensor, numel: int, out: Tensor) -> None:
        if self.code_bits == 4:
            pack_nibbles(code, numel, out)
        else:
            raw = code[:numel].view(torch.uint8)
            out[: raw.numel()].copy_(raw)

    def _unpack(self, payload: Tensor, numel: int, code: Tensor) -> None:
        if self.code_bits == 4:
            unpack_nibbles(payload, numel, code)
        else:
            raw = code[:numel].view(torch.uint8)
            raw.copy_(payload[: raw.numel()])
