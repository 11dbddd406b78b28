"""Tensors as unsigned words, and the two reversible maps that gather what can be compressed in the leading byte.

Words have as many bits as the element (a complex one is two words). All arithmetic is modulo 2^bits, so that every bit
pattern, NaN payloads and -0.0 among them, comes back. Subtracting floats as integers in order of value is fpzip's
(Lindstrom and Isenburg, IEEE TVCG 12(5), 2006).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def words_of(tensor: Tensor) -> NDArray:
    """The elements' bits, 1-D, sharing memory where the tensor is contiguous on the CPU."""
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    width_bytes = flat.element_size() // (2 if flat.is_complex() else 1)
    return flat.view(torch.uint8).numpy().view(f"u{width_bytes}")


def tensor_of(words: NDArray, dtype: torch.dtype, shape: list[int]) -> Tensor:
    """The inverse of `words_of`, in the words' memory."""
    if not len(words):
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(words.view(np.uint8)).view(dtype).reshape(shape)


def has_exponent(dtype: torch.dtype) -> bool:
    """Whether elements are a sign, an exponent and a mantissa that fill more than one byte."""
    return dtype.is_complex or (dtype.is_floating_point and dtype.itemsize > 1)


def rotate(words: NDArray) -> NDArray:
    """The sign moved from the front to the end: fp32's and bf16's exponents are then exactly the leading byte."""
    return (words << 1) | (words >> (_bits(words) - 1))


def unrotate(words: NDArray) -> NDArray:
    """The inverse of `rotate`."""
    return (words >> 1) | (words << (_bits(words) - 1))


def order(words: NDArray) -> NDArray:
    """Sign and magnitude as one scale: neighbouring floats become neighbouring integers, through zero too."""
    return words ^ (np.negative(words >> (_bits(words) - 1)) | _sign(words))


def disorder(words: NDArray) -> NDArray:
    """The inverse of `order`."""
    return words ^ (((words >> (_bits(words) - 1)) - 1) | _sign(words))


def zigzag(words: NDArray) -> NDArray:
    """0, -1, 1, -2, ... as 0, 1, 2, 3, ...: differences near zero on either side have zeros in front."""
    return (words << 1) ^ np.negative(words >> (_bits(words) - 1))


def unzigzag(words: NDArray) -> NDArray:
    """The inverse of `zigzag`."""
    return (words >> 1) ^ np.negative(words & 1)


def by_magnitude(words: NDArray) -> NDArray:
    """Indices that sort floats by the leading 8 bits of their magnitude (fp32's exponent), equal ones as they were."""
    return np.argsort(((words << 1) >> (_bits(words) - 8)).astype(np.uint8), kind="stable")


def _bits(words: NDArray) -> int:
    return 8 * words.itemsize


def _sign(words: NDArray) -> np.unsignedinteger:
    return words.dtype.type(1 << (_bits(words) - 1))
