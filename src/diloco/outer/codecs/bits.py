"""Packing codes that are not a whole number of bytes.

Shapes: n codes; P pages of two halves of H codes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from diloco.outer.codecs.base import PAGE


def pack_nibbles(code: Tensor, numel: int, out: Tensor) -> None:
    """Writes n signed 4-bit codes (int8) two to a byte. `numel` is whole pages, or less than one.

    The first half of a page goes to the low nibbles and the second half to the high ones, so that both are read and
    written contiguously. Where `numel` is odd, the code after the last is written too. `code` is overwritten.
    """
    half = _half(numel)
    pairs_P2H = code[: numel + numel % 2].view(torch.uint8).view(-1, 2, half)
    low_PH, high_PH = pairs_P2H[:, 0], pairs_P2H[:, 1]
    high_PH.mul_(16)
    low_PH.bitwise_and_(15)
    packed_PH = out[: pairs_P2H.shape[0] * half].view(-1, half)
    torch.bitwise_or(low_PH, high_PH, out=packed_PH)


def unpack_nibbles(payload: Tensor, numel: int, code: Tensor) -> None:
    """The inverse of `pack_nibbles`: n codes, each with its sign."""
    half = _half(numel)
    pairs_P2H = code[: numel + numel % 2].view(-1, 2, half)
    low_PH, high_PH = pairs_P2H[:, 0], pairs_P2H[:, 1]
    packed_PH = payload[: pairs_P2H.shape[0] * half].view(torch.int8).view(-1, half)
    torch.bitwise_right_shift(packed_PH, 4, out=high_PH)
    torch.mul(packed_PH, 16, out=low_PH)
    low_PH.bitwise_right_shift_(4)


def _half(numel: int) -> int:
    return PAGE // 2 if numel >= PAGE else (numel + 1) // 2


def packed_bytes(numel: int, bits: int) -> int:
    """Bytes that `pack_bits` writes for n codes."""
    per_word, word_bytes = _word(bits)
    return math.ceil(numel / per_word) * word_bytes


def pack_bits(code: Tensor, bits: int, out: Tensor) -> None:
    """Writes n codes (int64, 0 <= code < 2^bits; bits up to 8, or 12), least first, in words of whole bytes."""
    per_word, word_bytes = _word(bits)
    padded = torch.nn.functional.pad(code, (0, -code.numel() % per_word))
    words = (padded.view(-1, per_word) << _shifts(bits, code.device)).sum(1)
    out.view(-1, word_bytes).copy_(words.view(torch.uint8).view(-1, 8)[:, :word_bytes])


def unpack_bits(payload: Tensor, bits: int, numel: int) -> Tensor:
    """The inverse of `pack_bits`: n codes, int64."""
    _, word_bytes = _word(bits)
    words = torch.zeros(payload.numel() // word_bytes, dtype=torch.int64, device=payload.device)
    words.view(torch.uint8).view(-1, 8)[:, :word_bytes].copy_(payload.view(-1, word_bytes))
    return ((words.view(-1, 1) >> _shifts(bits, payload.device)) & ((1 << bits) - 1)).view(-1)[:numel]


def _word(bits: int) -> tuple[int, int]:
    """The fewest codes that fill whole bytes, and how many bytes: never more than 7."""
    per_word = 8 // math.gcd(bits, 8)
    return per_word, per_word * bits // 8


def _shifts(bits: int, device: torch.device) -> Tensor:
    return torch.arange(_word(bits)[0], device=device) * bits
