"""How small a lossless code of a tensor could be, by the statistics of its own bits.

Two figures, bits per fp32 element. `entropy_bits`: of a code that knew, for every tensor, the distribution of a
difference's size (its octave and three more bits) given the base's exponent, and wrote all bits below as they are; or,
where that is less, the distribution of the value's own exponent and three more bits. `floor_bits`: what is left if even
the sizes were known for nothing: the sign and the bits below the leading one, which nothing known predicts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from diloco.checkpoint import delta_words as w

MODELLED_BITS = 3
SELF_FLOOR_BITS = 24  # fp32's sign and mantissa


def bounds_bits(words: NDArray, base: NDArray | None) -> tuple[float, float]:
    """(entropy_bits, floor_bits) of fp32 words, u32."""
    rotated = w.rotate(words)
    low = 24 - MODELLED_BITS
    entropy = _entropy_bits(rotated >> low) + low
    if base is None:
        return entropy, SELF_FLOOR_BITS
    coded = w.zigzag(w.order(words) - w.order(base))
    length = bit_length(coded)
    below = np.maximum(length - 1 - MODELLED_BITS, 0)
    symbol = (length << MODELLED_BITS) + ((coded >> below.astype(np.uint32)) & ((1 << MODELLED_BITS) - 1))
    exponent = (base >> 23) & 255
    difference = _conditional_entropy_bits(symbol, exponent) + below.mean()
    return min(entropy, float(difference)), min(SELF_FLOOR_BITS, float(np.maximum(length - 1, 0).mean()))


def bit_length(words: NDArray) -> NDArray:
    """Bits up to the leading one, 0 for 0."""
    return np.frexp(words.astype(np.float64))[1]


def _entropy_bits(symbols: NDArray) -> float:
    """Order-0, with Miller and Madow's term for the symbols' finite number."""
    counts = np.unique(symbols, return_counts=True)[1]
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum() + (len(counts) - 1) / (2 * counts.sum() * np.log(2)))


def _conditional_entropy_bits(symbols: NDArray, context: NDArray) -> float:
    # contexts that hardly occur cannot be learned by any code either
    common = np.bincount(context, minlength=256)
    context = np.where(common[context] >= 256, context, 256)
    groups = [symbols[context == value] for value in np.unique(context)]
    return sum(_entropy_bits(group) * len(group) for group in groups) / len(symbols)
