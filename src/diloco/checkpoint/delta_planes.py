"""Words as bytes grouped by significance, each group stored or Huffman-coded, whichever is smaller.

What trained tensors have in common lies in their leading bytes; the trailing ones are as good as random (ZipNN,
arXiv:2411.05239). zstd does the coding, with matches all but switched off: there are none in such data, and looking for
them makes it both slower and up to two percent larger.

Layout of a payload: the bytes that each plane takes (uint32, slice by slice, leading plane first), then the planes. A
plane that takes as many bytes as it has words is stored as it is, another is one zstd frame.
Little-endian machines only, as safetensors' own format.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import zstandard
from numpy.typing import NDArray

SLICE = 1 << 18
"""Words coded at a time: small enough for a cache, and so that memory is bounded beside the payload."""

_LENGTH = np.dtype("<u4")
# A window of 16 KB also bounds zstd's blocks, and so gives each 16 KB a Huffman table of its own.
_HUFFMAN_ONLY = {"window_log": 14, "hash_log": 6, "chain_log": 6, "search_log": 1, "min_match": 7, "target_length": 0}


class Damaged(ValueError):
    """A payload that is not what its recipe says."""


def write_planes(slices: Iterable[NDArray], numel: int, width_bytes: int) -> bytearray:
    """Payload of `numel` unsigned words of `width_bytes`, given in slices of SLICE words, the last one shorter."""
    compressor = _compressor()
    lengths = np.zeros(_table_shape(numel, SLICE, width_bytes), _LENGTH)
    payload = bytearray(lengths.nbytes)
    for row, words in zip(lengths, slices, strict=True):
        for column, plane in enumerate(_planes(words)):
            coded = _code(compressor, plane)
            row[column] = len(coded)
            payload += coded
    payload[: lengths.nbytes] = lengths.tobytes()
    return payload


def read_planes(payload: NDArray, numel: int, slice_words: int, word: np.dtype) -> Iterator[NDArray]:
    """The slices that `write_planes` was given, each in memory of its own.

    Raises:
        Damaged: the payload has another length, or a plane does not decode to its number of words.
    """
    shape = _table_shape(numel, slice_words, word.itemsize)
    at = math.prod(shape) * _LENGTH.itemsize
    if len(payload) < at:
        raise Damaged(f"the payload has {len(payload)} bytes where its table alone takes {at}")
    lengths = np.frombuffer(payload[:at].tobytes(), _LENGTH).reshape(shape)
    if len(payload) != at + int(lengths.sum(dtype=np.int64)):
        raise Damaged(f"the payload has {len(payload)} bytes and not those that its table adds up to")
    decompressor = zstandard.ZstdDecompressor()
    for index, row in enumerate(lengths):
        words = np.empty(min(slice_words, numel - index * slice_words), word)
        for plane, length in zip(_byte_columns(words), row.tolist(), strict=True):
            plane[:] = _decode(decompressor, payload[at : at + length], len(words))
            at += length
        yield words


def planes_bytes(words: NDArray) -> int:
    """What the planes of one slice would take."""
    compressor = _compressor()
    return sum(len(_code(compressor, plane)) for plane in _planes(words))


def _table_shape(numel: int, slice_words: int, width_bytes: int) -> tuple[int, int]:
    return math.ceil(numel / slice_words), width_bytes


def _byte_columns(words: NDArray) -> list[NDArray]:
    """Views of the bytes of equal significance, leading ones first."""
    bytes_NW = words.view(np.uint8).reshape(len(words), words.itemsize)
    return [bytes_NW[:, column] for column in reversed(range(words.itemsize))]


def _planes(words: NDArray) -> Iterator[NDArray]:
    return (np.ascontiguousarray(column) for column in _byte_columns(words))


def _compressor() -> zstandard.ZstdCompressor:
    parameters = zstandard.ZstdCompressionParameters(strategy=zstandard.STRATEGY_FAST, **_HUFFMAN_ONLY)
    return zstandard.ZstdCompressor(compression_params=parameters)


def _code(compressor: zstandard.ZstdCompressor, plane: NDArray) -> bytes:
    coded = compressor.compress(plane)
    return coded if len(coded) < len(plane) else plane.tobytes()


def _decode(decompressor: zstandard.ZstdDecompressor, coded: NDArray, numel: int) -> NDArray:
    if len(coded) == numel:
        return coded
    frame = coded.tobytes()
    try:
        # Asked first, since zstd would allocate whatever a damaged header says.
        if zstandard.frame_content_size(frame) == numel:
            return np.frombuffer(decompressor.decompress(frame), np.uint8)
    except zstandard.ZstdError as error:
        raise Damaged(f"a plane of {len(frame)} bytes is no zstd frame ({error})") from error
    raise Damaged(f"a plane of {len(frame)} bytes does not hold {numel} words")
