"""Tokenised sources on disk: a memory-mapped .bin of token ids beside a .json that vouches for it."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diloco.errors import BadInput
from diloco.train.data.files import atomic_file, write_atomically
from diloco.train.data.sources import Piece, Source
from diloco.train.data.tokenizer import Tokenizer

FORMAT = 1
"""Part of every key: raise it when the same source would give other tokens."""

DTYPES = {"uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32}
"""Token ids are kept in the smallest that holds the vocabulary."""

GROUP_CHARS = 2 << 20
"""Text tokenised at once; bounds the memory of a build."""

Progress = Callable[[str, float], None]
"""Called with the source and the fraction of it that is tokenised, 0 to 1."""


@dataclass(frozen=True)
class Corpus:
    """The tokens of a source, memory-mapped, and the SHA-256 of their bytes."""

    tokens: np.ndarray
    sha256: str


class _Damaged(Exception):
    pass


def open_corpus(
    source: Source,
    tokenizer: Tokenizer,
    text_field: str,
    max_tokens: int,
    folder: Path,
    progress: Progress | None = None,
) -> Corpus:
    """The tokens of `source`: from the cache in `folder`, checked against its checksum, or tokenised now.

    A damaged cache is built again with a warning; of a streamed source it is an error, since the stream may have
    changed.
    """
    parts = [FORMAT, source.identity, tokenizer.fingerprint, text_field, max_tokens]
    stem = "tokens-" + hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]
    bin_path, meta_path = folder / f"{stem}.bin", folder / f"{stem}.json"
    if meta_path.exists():
        try:
            return _load(bin_path, meta_path)
        except _Damaged as damage:
            if source.streamed:
                raise BadInput(
                    f"cached tokens of {source.spec}: {damage}; delete {meta_path} to stream it again"
                ) from damage
            warnings.warn(f"cached tokens of {source.spec}: {damage}; building them again", stacklevel=3)
    meta = _build(bin_path, source, tokenizer, max_tokens, progress)
    write_atomically(meta_path, json.dumps(meta, indent=1).encode())
    return _load(bin_path, meta_path)


def _load(bin_path: Path, meta_path: Path) -> Corpus:
    try:
        meta = json.loads(meta_path.read_bytes())
        dtype, expected, count = np.dtype(DTYPES[meta["dtype"]]), meta["sha256"], meta["tokens"]
    except (ValueError, KeyError, TypeError) as error:
        raise _Damaged(f"{meta_path} is not readable") from error
    if not bin_path.exists():
        raise _Damaged(f"{bin_path} is missing")
    size_bytes = bin_path.stat().st_size
    if size_bytes != count * dtype.itemsize or not size_bytes:
        raise _Damaged(f"{bin_path} has {size_bytes} bytes instead of those of {count} tokens")
    # A plain view: indexing np.memmap itself costs several times as much.
    tokens = np.asarray(np.memmap(bin_path, dtype=dtype, mode="r"))
    if hashlib.sha256(tokens).hexdigest() != expected:
        raise _Damaged(f"{bin_path} does not match its checksum")
    return Corpus(tokens, expected)


def _build(bin_path: Path, source: Source, tokenizer: Tokenizer, max_tokens: int, progress: Progress | None) -> dict:
    dtype = next(dtype for dtype in map(np.dtype, DTYPES.values()) if tokenizer.vocab_size - 1 <= np.iinfo(dtype).max)
    digest, count, chars = hashlib.sha256(), 0, 0
    with atomic_file(bin_path) as file:
        for ids, group_chars in _tokenised(source, tokenizer):
            if ids.size and int(ids.max()) >= tokenizer.vocab_size:
                raise BadInput(
                    f"source {source.spec} gives token id {ids.max()}, outside the tokenizer's vocabulary of "
                    f"{tokenizer.vocab_size}: use the tokenizer file as it was made"
                )
            kept = ids[: max_tokens - count] if max_tokens else ids
            content = kept.astype(dtype).tobytes()
            file.write(content)
            digest.update(content)
            count += len(kept)
            chars += group_chars
            if progress:
                # Characters, not bytes: near enough for a progress bar.
                of_text = chars / source.size_bytes if source.size_bytes else 0.0
                of_cap = count / max_tokens if max_tokens else 0.0
                progress(source.spec, min(1.0, max(of_text, of_cap)))
            if max_tokens and count >= max_tokens:
                break
        if count == 0:
            raise BadInput(f"source {source.spec} holds no text: every document in it is empty")
    if progress:
        progress(source.spec, 1.0)
    return {
        "dtype": dtype.name,
        "tokens": count,
        "bytes": count * dtype.itemsize,
        "sha256": digest.hexdigest(),
        "source": source.spec,
        "source_sha256": hashlib.sha256(source.identity.encode()).hexdigest(),
        "tokenizer": tokenizer.fingerprint,
    }


def _tokenised(source: Source, tokenizer: Tokenizer) -> Iterator[tuple[np.ndarray, int]]:
    """Token ids of the documents, each followed by a separator, group by group, with the group's characters."""
    for group in _groups(source.pieces()):
        chunks = []
        for piece, ids in zip(group, tokenizer.encode_batch([piece.text for piece in group]), strict=True):
            chunks.append(ids)
            if piece.ends:
                chunks.append(np.array([tokenizer.separator], dtype=ids.dtype))
        yield np.concatenate(chunks), sum(len(piece.text) for piece in group)


def _groups(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    group, chars = [], 0
    for piece in pieces:
        group.append(piece)
        chars += len(piece.text)
        if chars >= GROUP_CHARS:
            yield group
            group, chars = [], 0
    if group:
        yield group
