"""top-k and random-k: few elements of each page, with values of 2 to 8 bits.

A payload is the smallest and the largest magnitude sent of every page (fp32), then the values, then, for top-k, the
indices, 12 bits each. Shapes: n elements, C pages of L (all 4096 but a shorter last one), K kept in a page.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from diloco.outer.codecs.base import PAGE, Key, Scratch, spans
from diloco.outer.codecs.bits import pack_bits, packed_bytes, unpack_bits
from diloco.outer.codecs.coordinates import random_coordinates

INDEX_BITS = (PAGE - 1).bit_length()
RANGE_BYTES = 8
"""A page's smallest and largest magnitude."""

LEAST_STEP = 2.0**-120
"""So that a step's inverse is a normal fp32 number."""

FP32_MAX = torch.finfo(torch.float32).max


class Sparse(ABC):
    """K = ceil(density * L) elements of each page are sent, the others decode to zero.

    A value is its sign and one of 2^(bits-1) magnitudes, spread evenly from the smallest sent of the page to the
    largest, so that a zero stays zero. With quantum = absmax (1 / (2^bits - 2) + 2^-22) + 2^-120, absmax being the
    page's, an element sent is off by at most the quantum and one not sent by |x|.
    """

    block = PAGE
    exact = False
    sends_indices = True
    gathers = True

    def __init__(self, name: str, feedback: bool, density: float, bits: int) -> None:
        self.name, self.feedback, self.density, self.bits = name, feedback, density, bits
        self.steps = 2 ** (bits - 1) - 1
        self.scratch = Scratch()

    @abstractmethod
    def choose(self, x_CL: Tensor, kept: int, key: Key) -> Tensor:
        """Indices in each page, int64 [C, kept], distinct and in an order that is the same on every machine."""

    def gain(self, length: int) -> float:
        """What the values of a page are multiplied by when they are decoded."""
        return 1.0

    def kept(self, length: int) -> int:
        # Less a hair: 0.07 * 100 is 7.000000000000001 in floating point, and means 7.
        return max(1, math.ceil(self.density * length - 1e-9))

    def nbytes(self, numel: int) -> int:
        return self._layout(numel)[-1]

    def encode(self, values: Tensor, out: Tensor, key: Key) -> None:
        if not values.numel():
            return
        pages = [self._encode_pages(values[lo:hi], Key(key.seed, key.first + lo)) for lo, hi in _spans(values)]
        ranges, codes, indices = (torch.cat(parts) for parts in zip(*pages, strict=True))
        _, values_at, indices_at, _ = self._layout(values.numel())
        out[:values_at].copy_(ranges.view(torch.uint8))
        pack_bits(codes, self.bits, out[values_at:indices_at])
        if self.sends_indices:
            pack_bits(indices, INDEX_BITS, out[indices_at:])

    def decode(self, payload: Tensor, out: Tensor, key: Key, add: bool = False) -> None:
        if not add:
            out.zero_()
        total, values_at, indices_at, _ = self._layout(out.numel())
        ranges = torch.empty(values_at // 4, dtype=torch.float32, device=out.device)
        ranges.view(torch.uint8).copy_(payload[:values_at])
        codes = unpack_bits(payload[values_at:indices_at], self.bits, total)
        indices = unpack_bits(payload[indices_at:], INDEX_BITS, total) if self.sends_indices else None
        page = first = 0
        for lo, hi in _spans(out):
            out_CL = _pages(out[lo:hi])
            count, kept = out_CL.shape[0], self.kept(out_CL.shape[1])
            range_C2, here = ranges.view(-1, 2)[page : page + count], slice(first, first + count * kept)
            values_CK = self._values(codes[here].view(count, kept), range_C2, self.gain(out_CL.shape[1]))
            if indices is None:
                index_CK = self.choose(out_CL, kept, Key(key.seed, key.first + lo))
            else:
                index_CK = indices[here].view(count, kept)
            if add:
                values_CK += out_CL.gather(1, index_CK)
            out_CL.scatter_(1, index_CK, values_CK)
            page, first = page + count, here.stop

    def bound(self, values: Tensor) -> Tensor:
        """max(|x|, (g - 1) |x| + g quantum), g being the gain: what an element not sent and one sent are off by."""
        bounds = [values.new_empty(0)]
        for lo, hi in _spans(values):
            size_CL = _pages(values[lo:hi]).abs()
            gain, absmax_C1 = self.gain(size_CL.shape[1]), size_CL.amax(1, keepdim=True)
            quantum_C1 = absmax_C1 * (0.5 / self.steps + 2.0**-22) + LEAST_STEP
            bounds.append(torch.maximum(size_CL, size_CL * (gain - 1) + quantum_C1 * gain).view(-1))
        return torch.cat(bounds)

    def _layout(self, numel: int) -> tuple[int, int, int, int]:
        """Elements sent, and the bytes at which the values and the indices begin and the payload ends."""
        whole, rest = divmod(numel, PAGE)
        total = whole * self.kept(PAGE) + (self.kept(rest) if rest else 0)
        values_at = math.ceil(numel / PAGE) * RANGE_BYTES
        indices_at = values_at + packed_bytes(total, self.bits)
        return total, values_at, indices_at, indices_at + packed_bytes(total, INDEX_BITS) * self.sends_indices

    def _encode_pages(self, values: Tensor, key: Key) -> tuple[Tensor, Tensor, Tensor]:
        x_CL = _pages(values)
        index_CK = self.choose(x_CL, self.kept(x_CL.shape[1]), key)
        x_CK = x_CL.gather(1, index_CK)
        size_CK = x_CK.abs()
        range_C2 = torch.cat([size_CK.amin(1, keepdim=True), size_CK.amax(1, keepdim=True)], 1)
        code_CK = ((size_CK - range_C2[:, :1]) * self._step(range_C2).reciprocal()).round_().to(torch.int64)
        code_CK += (x_CK < 0).to(torch.int64) << (self.bits - 1)
        return range_C2.view(-1), code_CK.view(-1), index_CK.reshape(-1)

    def _step(self, range_C2: Tensor) -> Tensor:
        return ((range_C2[:, 1:] - range_C2[:, :1]) * (1 / self.steps)).clamp_min(LEAST_STEP)

    def _values(self, code_CK: Tensor, range_C2: Tensor, gain: float) -> Tensor:
        # Multiplied and added as two operations: a fused one rounds once, and not on every device.
        size_CK = (code_CK & self.steps).to(torch.float32) * self._step(range_C2)
        size_CK = ((size_CK + range_C2[:, :1]) * gain).clamp_max_(FP32_MAX)
        return size_CK * (1 - 2 * (code_CK >> (self.bits - 1))).to(torch.float32)


class TopK(Sparse):
    """The elements of largest magnitude in each page; of equal ones, those that come first."""

    def choose(self, x_CL: Tensor, kept: int, key: Key) -> Tensor:
        # Magnitude above place, in one integer each: no two are equal, so every device finds the same elements.
        rank_CL = self.scratch.take("rank", x_CL.numel(), torch.int64, x_CL.device).view_as(x_CL)
        rank_CL.copy_(x_CL.view(torch.int32)).bitwise_and_(0x7FFFFFFF).bitwise_left_shift_(INDEX_BITS)
        rank_CL += torch.arange(PAGE - 1, PAGE - 1 - x_CL.shape[1], -1, device=x_CL.device)
        return PAGE - 1 - (torch.topk(rank_CL, kept, 1).values & (PAGE - 1))


class RandomK(Sparse):
    """Elements at coordinates that follow from seed and place alone, so that no index travels.

    Without error feedback decoded values are multiplied by L / K, which makes the mean over seeds the value itself; a
    sum must then not be coded anew, which would multiply again. With it, code a sum under the same key as its parts.
    """

    sends_indices = False

    def __init__(self, name: str, feedback: bool, density: float, bits: int) -> None:
        super().__init__(name, feedback, density, bits)
        self.gathers = not feedback

    def gain(self, length: int) -> float:
        return 1.0 if self.feedback else length / self.kept(length)

    def choose(self, x_CL: Tensor, kept: int, key: Key) -> Tensor:
        pages, length = x_CL.shape
        return random_coordinates(key.seed, key.first // PAGE, pages, length, kept, x_CL.device)


def _spans(values: Tensor) -> list[tuple[int, int]]:
    return list(spans(values.numel(), values.device))


def _pages(values: Tensor) -> Tensor:
    """A span as rows of pages: a last page that is short is a span by itself."""
    return values.view(-1, min(PAGE, values.numel()))
