"""Tokenizers: bytes, byte-level BPE trained on the sources, or a tokenizers JSON file."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from pathlib import Path
from typing import Protocol

import numpy as np

from diloco.errors import BadInput
from diloco.train.data.config import DataConfig, bpe_vocab
from diloco.train.data.files import write_atomically
from diloco.train.data.sources import Source

SEPARATOR = "<|sep|>"
END_OF_TEXT = (SEPARATOR, "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|im_end|>", "</s>", "<eos>", "[SEP]")
"""Tokens that can stand between two documents, in order of preference."""

BPE_TEXT_BYTES = 50_000_000
"""Most text a BPE tokenizer is trained on, over all sources."""


class Tokenizer(Protocol):
    """Text to token ids and back. `separator` is the id between two documents; equal `fingerprint`s mean equal ids."""

    vocab_size: int
    separator: int
    fingerprint: str
    json: str | None
    """The tokenizer as a tokenizers JSON file has it; None for bytes, which need none."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]: ...

    def count_bytes(self, ids: np.ndarray) -> int:
        """UTF-8 bytes of the text of `ids`, a separator counted as one."""
        ...


class ByteTokenizer:
    """One token a UTF-8 byte; byte 0 separates documents."""

    vocab_size = 256
    separator = 0
    fingerprint = "bytes"
    json = None

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8", "replace"))

    def decode(self, ids: list[int]) -> str:
        _check_ids(ids, self.vocab_size)
        return bytes(ids).decode("utf-8", "replace")

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        return [np.frombuffer(text.encode("utf-8", "replace"), dtype=np.uint8) for text in texts]

    def count_bytes(self, ids: np.ndarray) -> int:
        return len(ids)


class JsonTokenizer:
    """A tokenizer of the `tokenizers` library, from its JSON file. Raises `BadInput` if the file cannot be used."""

    def __init__(self, path: Path):
        from tokenizers import Tokenizer as FastTokenizer

        try:
            content = path.read_bytes()
            self.json = content.decode("utf-8")
            self._fast = FastTokenizer.from_str(self.json)
        except Exception as error:  # the library raises bare Exception
            raise BadInput(f"tokenizer {path} is not a readable tokenizers JSON file: {error}") from error
        # Files often carry the truncation and padding of the model they were made for.
        self._fast.no_truncation()
        self._fast.no_padding()
        # Text that happens to spell a special token is text.
        self._fast.encode_special_tokens = True
        vocab = self._fast.get_vocab()
        separator = next((vocab[token] for token in END_OF_TEXT if token in vocab), None)
        if separator is None:
            raise BadInput(f"tokenizer {path} has no token that ends a text: add one of {', '.join(END_OF_TEXT)}")
        self.separator = separator
        self.vocab_size = max(vocab.values()) + 1
        self.fingerprint = hashlib.sha256(content).hexdigest()

    def encode(self, text: str) -> list[int]:
        return self._fast.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        _check_ids(ids, self.vocab_size)
        return self._fast.decode(ids, skip_special_tokens=False)

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        encodings = self._fast.encode_batch(texts, add_special_tokens=False)
        return [np.asarray(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def count_bytes(self, ids: np.ndarray) -> int:
        text = self._fast.decode(ids.tolist(), skip_special_tokens=True)
        return len(text.encode("utf-8")) + int((ids == self.separator).sum())


def open_tokenizer(config: DataConfig, sources: list[Source]) -> Tokenizer:
    """The tokenizer that `config.tokenizer` names; `bpe:N` is trained at the first call and kept in the cache."""
    if config.tokenizer == "bytes":
        return ByteTokenizer()
    size = bpe_vocab(config.tokenizer)
    if size is None:
        return JsonTokenizer(Path(config.tokenizer).expanduser())
    parts = [size, config.heldout, config.max_tokens, config.text_field, [(s.spec, s.identity) for s in sources]]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    path = config.cache_path / f"bpe-{size}-{key}.json"
    if path.exists():
        try:
            return JsonTokenizer(path)
        except BadInput as error:
            warnings.warn(f"{error}; training it again", stacklevel=2)
    _train_bpe(size, config, sources, path)
    return JsonTokenizer(path)


def _train_bpe(size: int, config: DataConfig, sources: list[Source], path: Path) -> None:
    from tokenizers import Tokenizer as FastTokenizer
    from tokenizers import decoders, models, pre_tokenizers, trainers

    fast = FastTokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=[SEPARATOR],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [text for source in sources for text in training_text(source, config, BPE_TEXT_BYTES // len(sources))]
    fast.train_from_iterator(texts, trainer)
    if fast.get_vocab_size() < size:
        warnings.warn(
            f"tokenizer bpe:{size} found only {fast.get_vocab_size()} tokens in so little text and has that many",
            stacklevel=3,
        )
    write_atomically(path, fast.to_str().encode("utf-8"))


def training_text(source: Source, config: DataConfig, cap_bytes: int) -> list[str]:
    """The first `cap_bytes` of a source, or its first 1 - heldout if that is less: held-out text shapes no tokenizer.

    The fraction is one of bytes here and one of tokens in the split, so the two ends differ a little.
    """
    enough_bytes = math.ceil(cap_bytes / (1 - config.heldout))
    if config.max_tokens:
        # A token has at least one byte, so these bytes cannot reach past the tokens that will be kept.
        enough_bytes = min(enough_bytes, config.max_tokens)
    texts, total_bytes = [], 0
    for piece in source.pieces():
        texts.append(piece.text.encode("utf-8"))
        total_bytes += len(texts[-1])
        if total_bytes >= enough_bytes:
            break
    keep_bytes = int(min(total_bytes, enough_bytes) * (1 - config.heldout))
    kept = []
    for text in texts:
        kept.append(text[:keep_bytes].decode("utf-8", "ignore"))
        keep_bytes -= min(len(text), keep_bytes)
    return [text for text in kept if text]


def _check_ids(ids: list[int], vocab_size: int) -> None:
    if len(ids) and not (0 <= min(ids) and max(ids) < vocab_size):
        raise BadInput(
            f"token id {max(ids) if max(ids) >= vocab_size else min(ids)} is outside the vocabulary of {vocab_size}"
        )
