"""Random coordinates that all replicas know without sending them.

Shapes: C pages of L elements, K coordinates in each.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from diloco.outer.codecs.base import PAGE

WEYL = 0x9E3779B97F4A7C15
MULTIPLIERS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""splitmix64's constants (Steele, Lea and Flood, Fast splittable pseudorandom number generators, 2014)."""


def random_coordinates(seed: int, first_page: int, pages: int, length: int, kept: int, device: torch.device) -> Tensor:
    """K distinct coordinates below L for each page, int64 [C, K], a function of seed and page number alone.

    (stride * j + offset) mod L for j < K: distinct because the stride is a prime above any page's length, and each
    coordinate equally likely because the offset is uniform.
    """
    page_C = torch.arange(first_page, first_page + pages, device=device)
    draw_C = _mix(page_C * _int64(WEYL) + _int64(int(seed) * MULTIPLIERS[0]))
    primes = torch.tensor(_primes(), device=device)
    stride_C1 = primes[_below(len(_primes()), draw_C)].view(-1, 1)
    offset_C1 = _below(length, _mix(draw_C + _int64(WEYL))).view(-1, 1)
    return (stride_C1 * torch.arange(kept, device=device) + offset_C1) % length


@cache
def _primes() -> list[int]:
    """Those between PAGE and twice PAGE."""
    return [p for p in range(PAGE + 1, 2 * PAGE) if all(p % d for d in range(2, int(p**0.5) + 1))]


def _below(limit: int, draw_C: Tensor) -> Tensor:
    """Uniform in [0, limit), from the upper 32 bits."""
    return ((draw_C >> 32) & 0xFFFFFFFF) % limit


def _mix(state_C: Tensor) -> Tensor:
    """splitmix64's finaliser on int64, whose products wrap as unsigned ones do."""
    for shift, multiplier in zip((30, 27), MULTIPLIERS, strict=True):
        state_C = (state_C ^ _logical_shift(state_C, shift)) * _int64(multiplier)
    return state_C ^ _logical_shift(state_C, 31)


def _logical_shift(state_C: Tensor, by: int) -> Tensor:
    return (state_C >> by) & ((1 << (64 - by)) - 1)


def _int64(value: int) -> int:
    """The same 64 bits as a signed number, which is what a tensor takes."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
