"""A tensor as an int8 difference to what a reader already has of its earlier self.

code = round(difference / step), step = the block's largest difference / 127. The base is the *reconstructed* tensor, so
what one link rounds away is part of the next link's difference: errors do not add up over a chain (a closed loop, which
is what error feedback is on a wire). Blocks with int8 codes as in Dettmers et al., arXiv:2110.02861.

Tensors without a negative element (second moments, gains) are coded in the scale of their own bits, which grows like
the logarithm: every value keeps its relative precision, and a positive one stays positive, which matters since Adam
divides by its root. Zeros have a code of their own.

Only fp32 tensors of some size are coded so; others, and those with values that are not finite, are coded losslessly.

Shapes: n elements in N blocks of B.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diloco.checkpoint import delta
from diloco.checkpoint.delta_planes import SLICE, Damaged

LINEAR, RELATIVE = "lossy-linear", "lossy-relative"

BLOCK = 256
"""Elements that share a step: the steps are then 0.4% of the full size."""

LEVELS = 127
ZERO_CODE = -128

LEAST_NUMEL = 1024
"""Smaller tensors cost nothing, and are gains, counters and the like."""

LARGEST = 2.0**126
"""Below it nothing overflows."""

_LEAST_BITS, _MOST_BITS = 0x0080_0000, 0x7F7F_FFFF  # of the smallest normal and the largest finite fp32
_STEP = {LINEAR: np.float32, RELATIVE: np.int32}


def encode(new: Tensor, base: Tensor | None = None) -> tuple[Tensor, dict[str, Any]]:
    """Codes `new`, any dtype and shape, given what `decode` made of the link before, or nothing.

    Returns payload, uint8 [bytes], and recipe, as `delta.encode` does. `decode` of them is the next link's base.

    Raises:
        ValueError: base has another dtype or shape.
    """
    delta.check_base(new.dtype, list(new.shape), base)
    if not _fits(new):
        return delta.encode(new, base)
    values_n = _flat(new)
    kind = LINEAR if values_n.min() < 0 else RELATIVE
    center = _center(values_n) if kind == RELATIVE else 0
    before_n = _flat(base) if base is not None and _fits(base) else None
    if before_n is not None and not _helps(kind, values_n, before_n, center):
        before_n = None
    codes_n = np.empty(len(values_n), np.int8)
    steps_N = np.empty(math.ceil(len(values_n) / BLOCK), _STEP[kind])
    for own, blocks in _slices(len(values_n)):
        predicted_n = _predict(kind, before_n, own, center)
        codes_n[own], steps_N[blocks] = _quantize(kind, values_n[own], predicted_n)
    streams = [delta.encode(torch.from_numpy(stream)) for stream in (codes_n, steps_N)]
    payload = torch.cat([stream for stream, _ in streams])
    return payload, {
        "kind": kind,
        "shape": list(new.shape),
        "dtype": "float32",
        "block": BLOCK,
        "center": center,
        "uses_base": before_n is not None,
        "streams": [recipe for _, recipe in streams],
        "bytes_before": values_n.nbytes,
        "bytes_after": payload.numel(),
    }


def decode(payload: Tensor, recipe: dict[str, Any], base: Tensor | None = None) -> Tensor:
    """The tensor that a reader has after this link, of either kind of coding; `base` what it had before.

    Raises:
        ValueError: the base that the recipe needs is missing or has another dtype or shape, or the payload is damaged.
    """
    kind = recipe["kind"]
    if kind not in (LINEAR, RELATIVE):
        return delta.decode(payload, recipe, base)
    if recipe["uses_base"]:
        delta.need_base(recipe, base)
    before_n = _flat(base) if recipe["uses_base"] else None
    sizes = [stream["bytes_after"] for stream in recipe["streams"]]
    if payload.numel() != sum(sizes):
        raise Damaged(f"the payload has {payload.numel()} bytes where its streams take {sum(sizes)}")
    parts = zip(payload.split(sizes), recipe["streams"], strict=True)
    codes_n, steps_N = (delta.decode(part, stream).numpy() for part, stream in parts)
    values_n = np.empty(len(codes_n), np.float32)
    for own, blocks in _slices(len(codes_n), recipe["block"]):
        predicted_n = _predict(kind, before_n, own, recipe["center"])
        values_n[own] = _dequantize(kind, codes_n[own], steps_N[blocks], predicted_n, recipe["block"])
    return torch.from_numpy(values_n).view(recipe["shape"])


def _fits(tensor: Tensor) -> bool:
    if tensor.dtype != torch.float32 or tensor.numel() < LEAST_NUMEL:
        return False
    least, most = torch.aminmax(tensor.detach())
    return bool(-LARGEST < least) and bool(most < LARGEST)  # neither holds with a NaN


def _flat(tensor: Tensor) -> NDArray:
    return tensor.detach().cpu().contiguous().view(-1).numpy()


def _slices(numel: int, block: int = BLOCK) -> Iterator[tuple[slice, slice]]:
    """The same stretch in elements and in blocks."""
    step = SLICE // block * block
    for lo in range(0, numel, step):
        hi = min(lo + step, numel)
        yield slice(lo, hi), slice(lo // block, math.ceil(hi / block))


def _center(values_n: NDArray) -> int:
    """What to expect, as bits, of a positive element that nothing is known of."""
    bits_n = delta.sample(values_n.view(np.int32))
    positive_n = bits_n[bits_n > 0]
    return int(positive_n.mean()) if len(positive_n) else _LEAST_BITS


def _helps(kind: str, values_n: NDArray, before_n: NDArray, center: int) -> bool:
    """Whether the base is nearer than no base. First moments turn over within a few steps; theirs is not."""
    values_n, before_n = delta.sample(values_n), delta.sample(before_n)
    everything = slice(None)
    numbers_n = _numbers(kind, values_n)
    with_base = np.abs(numbers_n - _predict(kind, before_n, everything, center)).mean()
    return bool(with_base < np.abs(numbers_n - center).mean())


def _numbers(kind: str, values_n: NDArray) -> NDArray:
    """What differences are taken of, fp64: all sums and products below are then exact or correctly rounded."""
    return (values_n if kind == LINEAR else values_n.view(np.int32)).astype(np.float64)


def _predict(kind: str, before_n: NDArray | None, own: slice, center: int) -> NDArray | float:
    if before_n is None:
        return float(center)
    numbers_n = _numbers(kind, before_n[own])
    return numbers_n if kind == LINEAR else np.where(numbers_n > 0, numbers_n, center)


def _quantize(kind: str, values_n: NDArray, predicted_n: NDArray | float) -> tuple[NDArray, NDArray]:
    zero_n = values_n == 0
    residual_n = _numbers(kind, values_n) - predicted_n
    if kind == RELATIVE:
        residual_n[zero_n] = 0
    residual_NB = np.pad(residual_n, (0, -len(values_n) % BLOCK)).reshape(-1, BLOCK)
    steps_N = np.abs(residual_NB).max(1) / LEVELS
    steps_N = (np.ceil(steps_N) if kind == RELATIVE else steps_N).astype(_STEP[kind])
    divisor_N1 = np.where(steps_N > 0, steps_N, 1).astype(np.float64)[:, None]
    codes_n = np.clip(np.rint(residual_NB / divisor_N1), -LEVELS, LEVELS).astype(np.int8).reshape(-1)[: len(values_n)]
    if kind == RELATIVE:
        codes_n[zero_n] = ZERO_CODE
    return codes_n, steps_N


def _dequantize(kind: str, codes_n: NDArray, steps_N: NDArray, predicted_n: NDArray | float, block: int) -> NDArray:
    numbers_n = predicted_n + codes_n * np.repeat(steps_N.astype(np.float64), block)[: len(codes_n)]
    if kind == LINEAR:
        return numbers_n.astype(np.float32)
    bits_n = np.clip(numbers_n, _LEAST_BITS, _MOST_BITS).astype(np.int32)
    bits_n[codes_n == ZERO_CODE] = 0
    return bits_n.view(np.float32)
