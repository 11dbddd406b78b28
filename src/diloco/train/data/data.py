"""Batches of a tokenised data set.

A source of T tokens is cut once: tokens [0, n*L + 1) are for training, the rest is held out (L = seq_len). Training
window i covers tokens [i*L, i*L + L + 1), so that its last target is the first input of window i + 1; held-out windows
lie likewise in the held-out part. No token is in both parts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from diloco.errors import BadInput
from diloco.train.data.cache import Corpus, Progress, open_corpus
from diloco.train.data.config import DataConfig, split_weight
from diloco.train.data.order import BLOCK, Order, apportion
from diloco.train.data.sources import Source, open_source
from diloco.train.data.tokenizer import Tokenizer, open_tokenizer

BYTES_CHUNK_TOKENS = 1 << 16
BYTES_CHUNKS = 64
"""bytes_per_token is measured on at most 64 chunks of 65536 held-out tokens, evenly spread."""


def open_data(config: DataConfig, *, progress: Progress | None = None, tokenizer: Tokenizer | None = None) -> Data:
    """Tokenise the sources, or find them in the cache, and open them memory-mapped.

    `progress` is called with (source, fraction tokenised); `tokenizer` takes the place of the configured one. Raises
    `BadInput` for a source, tokenizer or size that cannot be used.
    """
    specs, weights = zip(*(split_weight(source) for source in config.sources), strict=True)
    sources = [open_source(spec, config.text_field) for spec in specs]
    _check_nesting(specs)
    block_counts = apportion(BLOCK, weights)
    for source, count in zip(config.sources, block_counts, strict=True):
        if count == 0:
            raise BadInput(
                f"source {source} has less than 1/{BLOCK} of the total weight: raise its weight or leave it out"
            )
    tokenizer = tokenizer or open_tokenizer(config, sources)
    corpora = []
    for source in sources:
        corpus = open_corpus(source, tokenizer, config.text_field, config.max_tokens, config.cache_path, progress)
        _check_length(source, corpus, config)
        corpora.append(corpus)
    return Data(config, tokenizer, corpora, block_counts)


class Data:
    """Training and held-out batches of token ids.

    `train_tokens` and `heldout_tokens` count predicted tokens (windows times seq_len), `bytes_per_token` is measured on
    the held-out part (a document separator counts as one byte), and `fingerprint` is the same wherever tokens,
    tokenizer and split are.
    """

    def __init__(self, config: DataConfig, tokenizer: Tokenizer, corpora: list[Corpus], block_counts: np.ndarray):
        self.config = config
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        splits = [split_windows(len(corpus.tokens), config.seq_len, config.heldout) for corpus in corpora]
        self._train = [corpus.tokens[: n * config.seq_len + 1] for corpus, (n, _) in zip(corpora, splits, strict=True)]
        self._heldout = [
            corpus.tokens[n * config.seq_len + 1 :] for corpus, (n, _) in zip(corpora, splits, strict=True)
        ]
        self._heldout_windows = [held for _, held in splits]
        self._shares = block_counts / BLOCK
        self._order = Order(
            samples=tuple(n for n, _ in splits),
            block_counts=tuple(int(count) for count in block_counts),
            seed=config.seed,
            shards=config.shards,
            overlap=config.overlap,
        )
        self._first_ids = np.cumsum([0, *self._order.samples[:-1]])
        self._offsets_T = np.arange(config.seq_len + 1)
        self.train_tokens = sum(self._order.samples) * config.seq_len
        self.heldout_tokens = sum(self._heldout_windows) * config.seq_len
        identity = [
            tokenizer.fingerprint,
            config.seq_len,
            splits,
            [c.sha256 for c in corpora],
            self._order.block_counts,
        ]
        self.fingerprint = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
        self.bytes_per_token = self._measure_bytes_per_token()

    def batch(self, step: int, replica: int, replicas: int, sequences: int) -> torch.Tensor:
        """Token ids, int64 [sequences / replicas, seq_len + 1], of one replica at one step.

        `sequences` is the global batch over all replicas. A pure function of the config and the arguments: there is no
        state to save or restore. Raises `BadInput` if the replicas do not divide `sequences`.
        """
        ids = self.sample_ids(step, replica, replicas, sequences)
        source = np.searchsorted(self._first_ids, ids, side="right") - 1
        batch_BT = np.empty((len(ids), self.config.seq_len + 1), dtype=np.int64)
        for k, tokens in enumerate(self._train):
            here = source == k
            batch_BT[here] = self._windows(tokens, ids[here] - self._first_ids[k])
        return torch.from_numpy(batch_BT)

    def sample_ids(self, step: int, replica: int, replicas: int, sequences: int) -> np.ndarray:
        """Global sample ids, int64 [sequences / replicas], of the batch with the same arguments."""
        return self._order.sample_ids(step, replica, replicas, sequences)

    def heldout_batches(self, sequences: int, limit: int) -> Iterator[torch.Tensor]:
        """Held-out token ids, int64 [<= sequences, seq_len + 1], in a fixed order: at most `limit` sequences in all.

        They are spread evenly over the held-out part of each source, and the sources have their training weights: if
        one is too short for its share of `limit`, all give fewer.
        """
        if sequences < 1 or limit < 1:
            raise BadInput(f"evaluation of {limit} sequences in batches of {sequences}: both must be at least 1")
        total = min(limit, *(int(n / share) for n, share in zip(self._heldout_windows, self._shares, strict=True)))
        windows_BT = []
        for tokens, n, count in zip(self._heldout, self._heldout_windows, apportion(total, self._shares), strict=True):
            count = min(int(count), n)
            windows_BT.append(self._windows(tokens, np.arange(count) * n // max(count, 1)))
        all_BT = np.concatenate(windows_BT)
        for first in range(0, len(all_BT), sequences):
            yield torch.from_numpy(all_BT[first : first + sequences].astype(np.int64))

    def _windows(self, tokens: np.ndarray, index: np.ndarray) -> np.ndarray:
        return tokens[index[:, None] * self.config.seq_len + self._offsets_T]

    def _measure_bytes_per_token(self) -> float:
        ratios = []
        for tokens in self._heldout:
            chunks = -(-len(tokens) // BYTES_CHUNK_TOKENS)
            used = np.arange(min(chunks, BYTES_CHUNKS)) * chunks // min(chunks, BYTES_CHUNKS)
            parts = [tokens[i * BYTES_CHUNK_TOKENS : (i + 1) * BYTES_CHUNK_TOKENS] for i in used]
            ratios.append(sum(self.tokenizer.count_bytes(part) for part in parts) / sum(len(part) for part in parts))
        return float(np.dot(ratios, self._shares))


def split_windows(tokens: int, seq_len: int, heldout: float) -> tuple[int, int]:
    """Training and held-out windows of a source with `tokens` tokens; each part holds one token more than its windows
    predict."""
    windows = (tokens - 2) // seq_len
    held = min(max(1, round(windows * heldout)), windows - 1)
    return windows - held, held


def _check_length(source: Source, corpus: Corpus, config: DataConfig) -> None:
    needed = 2 * config.seq_len + 2
    if len(corpus.tokens) < needed:
        raise BadInput(
            f"source {source.spec} gives {len(corpus.tokens)} tokens, but seq_len {config.seq_len} needs at least "
            f"{needed} (one training and one held-out sequence): use more text or a shorter seq_len"
        )


def _check_nesting(specs: tuple[str, ...]) -> None:
    paths = {
        spec: Path(spec).expanduser().resolve() for spec in specs if spec != "stdlib" and not spec.startswith("hf:")
    }
    for inner, path in paths.items():
        for outer, folder in paths.items():
            if inner != outer and (path == folder or folder in path.parents):
                raise BadInput(
                    f"source {inner} lies inside source {outer}, so that held-out text would be trained on: "
                    "name only one of the two"
                )
