"""A tensor as the lossless difference to its earlier self, or by itself where that is smaller.

    difference  floats as integers in order of value, subtracted from the base's, zigzag; elements sorted by the base's
                exponent, which the reader knows too, so that each Huffman table sees differences of one size
    self        floats with the sign moved behind the mantissa, so that exponents are one byte
    same        equal to the base bit for bit: nothing
    stored      the bytes as they are, where no code is shorter

Then bytes of equal significance are coded together (`delta_planes`). What was tried besides, and how near this comes
to the entropy of the differences, is in studies/checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diloco.checkpoint import delta_words as w
from diloco.checkpoint.delta_planes import SLICE, Damaged, planes_bytes, read_planes, write_planes
from diloco.checkpoint.dtypes import dtype_name, dtype_of

DIFFERENCE, SELF, SAME, STORED = "difference", "self", "same", "stored"

SAMPLE_PIECES, SAMPLE_PIECE = 8, 8192
"""Which way is shorter is tried on so many pieces of so many elements, evenly spread over the tensor."""


def encode(new: Tensor, base: Tensor | None = None) -> tuple[Tensor, dict[str, Any]]:
    """Codes `new` of any dtype and shape, bit for bit, given `base` of the same dtype and shape.

    Returns:
        payload, uint8 [bytes], and the recipe to read it: plain JSON with `kind`, `dtype`, `shape`, `bytes_before` and
        `bytes_after`.

    Raises:
        ValueError: base has another dtype or shape.
    """
    check_base(new.dtype, list(new.shape), base)
    words = w.words_of(new)
    base_words = None if base is None else w.words_of(base)
    kind = _choose(words, base_words, new.dtype)
    payload: bytearray | NDArray = bytearray()
    if kind in (DIFFERENCE, SELF):
        slices = (_forward(kind, part, before, new.dtype) for part, before in _slices(words, base_words))
        payload = write_planes(slices, len(words), words.itemsize)
        if len(payload) >= words.nbytes:
            kind = STORED
    if kind == STORED:
        payload = words.view(np.uint8).copy()
    recipe = {
        "kind": kind,
        "dtype": dtype_name(new.dtype),
        "shape": list(new.shape),
        "slice": SLICE,
        "bytes_before": words.nbytes,
        "bytes_after": len(payload),
    }
    return torch.frombuffer(payload, dtype=torch.uint8) if len(payload) else torch.empty(0, dtype=torch.uint8), recipe


def decode(payload: Tensor, recipe: dict[str, Any], base: Tensor | None = None) -> Tensor:
    """The tensor that `encode` was given, in memory of its own; `base` as there.

    Raises:
        ValueError: the base that the recipe needs is missing or has another dtype or shape, or the payload is damaged.
    """
    kind, dtype, shape = recipe["kind"], dtype_of(recipe["dtype"]), recipe["shape"]
    coded = payload.contiguous().numpy()
    if kind in (SAME, DIFFERENCE):
        need_base(recipe, base)
    if kind == SAME:
        return base.detach().cpu().clone(memory_format=torch.contiguous_format)
    if kind == STORED:
        _check_stored(coded, recipe)
        return w.tensor_of(coded.copy(), dtype, shape)
    like = w.words_of(torch.empty(0, dtype=dtype)).dtype
    words = np.empty(recipe["bytes_before"] // like.itemsize, like)
    base_words = w.words_of(base) if kind == DIFFERENCE else None
    at = 0
    for part in read_planes(coded, len(words), recipe["slice"], like):
        before = None if base_words is None else base_words[at : at + len(part)]
        words[at : at + len(part)] = _backward(kind, part, before, dtype)
        at += len(part)
    return w.tensor_of(words, dtype, shape)


def sample(words: NDArray) -> NDArray:
    """A few pieces of the tensor that stand for all of it."""
    if len(words) <= SAMPLE_PIECES * SAMPLE_PIECE:
        return words
    starts = np.linspace(0, len(words) - SAMPLE_PIECE, SAMPLE_PIECES).astype(np.int64)
    return np.concatenate([words[start : start + SAMPLE_PIECE] for start in starts])


def _choose(words: NDArray, base_words: NDArray | None, dtype: torch.dtype) -> str:
    if not len(words):
        return STORED
    if base_words is None:
        return SELF
    if all(np.array_equal(part, before) for part, before in _slices(words, base_words)):
        return SAME
    part, before = sample(words), sample(base_words)
    return min((DIFFERENCE, SELF), key=lambda kind: planes_bytes(_forward(kind, part, before, dtype)))


def _slices(words: NDArray, base_words: NDArray | None) -> Iterator[tuple[NDArray, NDArray | None]]:
    for lo in range(0, len(words), SLICE):
        yield words[lo : lo + SLICE], None if base_words is None else base_words[lo : lo + SLICE]


def _forward(kind: str, words: NDArray, before: NDArray | None, dtype: torch.dtype) -> NDArray:
    if kind == SELF:
        return w.rotate(words) if w.has_exponent(dtype) else words
    if not w.has_exponent(dtype):
        return w.zigzag(words - before)
    return w.zigzag(w.order(words) - w.order(before))[w.by_magnitude(before)]


def _backward(kind: str, coded: NDArray, before: NDArray | None, dtype: torch.dtype) -> NDArray:
    if kind == SELF:
        return w.unrotate(coded) if w.has_exponent(dtype) else coded
    if not w.has_exponent(dtype):
        return w.unzigzag(coded) + before
    difference = np.empty_like(coded)
    difference[w.by_magnitude(before)] = w.unzigzag(coded)
    return w.disorder(difference + w.order(before))


def check_base(dtype: torch.dtype, shape: list[int], base: Tensor | None) -> None:
    """Raises ValueError where there is a base of another dtype or shape."""
    if base is not None and (base.dtype != dtype or list(base.shape) != list(shape)):
        raise ValueError(f"base is {base.dtype} {list(base.shape)} where the tensor is {dtype} {list(shape)}")


def need_base(recipe: dict[str, Any], base: Tensor | None) -> None:
    """Raises ValueError where the base that the recipe is read with is missing or is another tensor's."""
    if base is None:
        raise ValueError(f"a tensor coded as {recipe['kind']!r} cannot be read without the one it was coded against")
    check_base(dtype_of(recipe["dtype"]), recipe["shape"], base)


def _check_stored(coded: NDArray, recipe: dict[str, Any]) -> None:
    if len(coded) != recipe["bytes_before"]:
        raise Damaged(f"the payload has {len(coded)} bytes where the tensor takes {recipe['bytes_before']}")
