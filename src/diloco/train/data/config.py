"""What to train on: the options of the data pipeline and their checks."""

from __future__ import annotations

import difflib
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from diloco.errors import BadInput

BPE_MIN_VOCAB = 257
"""256 bytes and the separator."""

BPE_MAX_VOCAB = 1_000_000
"""Several times the largest in use; the library ends the process when it runs out of memory."""


@dataclass(frozen=True)
class DataConfig:
    """Options of the data pipeline. Raises `BadInput` for a value that cannot be used."""

    sources: tuple[str, ...] = ("stdlib",)
    """Where the text comes from: `stdlib` (this Python's own sources, no download), a text, .jsonl or .parquet file, a
    folder of them, or `hf:NAME[:CONFIG]` (a streamed Hugging Face dataset). `=WEIGHT` at the end sets the share of the
    batch, in steps of 1/1000 (`a.txt=3`, `hf:allenai/c4:en=0.7`); the default weight is 1, whatever the size of the
    source."""
    tokenizer: str = "bytes"
    """`bytes` (256 tokens), `bpe:N` (byte-level BPE with N tokens, trained once on the sources), or a tokenizers JSON
    file."""
    seq_len: int = 256
    """Tokens predicted per sequence."""
    heldout: float = 0.05
    """Fraction of each source that is never trained on (its tail, at least one sequence)."""
    max_tokens: int = 0
    """Most tokens taken from each source; 0 takes everything. Streamed sources need it."""
    text_field: str = "text"
    """Field or column that holds the text in JSONL, parquet and Hugging Face sources."""
    seed: int = 0
    """Seed of the data order; a run adds its own seed to it. The held-out part does not depend on it."""
    shards: Literal["shuffled", "contiguous"] = "shuffled"
    """`shuffled`: all replicas draw from the whole data in one global order. `contiguous`: each replica has its own
    stretch of the data (deliberately unlike shards)."""
    overlap: float = 0.0
    """Fraction (0 to 0.5) of a replica's samples that its right neighbour also sees."""
    cache_dir: str = ""
    """Folder for tokenised sources; empty is $XDG_CACHE_HOME/diloco or ~/.cache/diloco."""

    def __post_init__(self) -> None:
        if not self.sources:
            raise BadInput("data.sources is empty: name at least one, for instance stdlib")
        if self.seq_len < 1:
            raise BadInput(f"data.seq_len is {self.seq_len}, but a sequence needs at least 1 token")
        if not 0 < self.heldout < 1:
            raise BadInput(f"data.heldout is {self.heldout}, but it must lie between 0 and 1, for instance 0.05")
        if self.max_tokens < 0:
            raise BadInput(f"data.max_tokens is {self.max_tokens}: give a number of tokens, or 0 for everything")
        if not 0 <= self.overlap <= 0.5:
            raise BadInput(f"data.overlap is {self.overlap}, but it must lie between 0 and 0.5, for instance 0.05")
        if self.shards not in ("shuffled", "contiguous"):
            raise BadInput(f"data.shards is {self.shards!r}: choose shuffled or contiguous")
        _check_tokenizer(self.tokenizer)
        self._check_sources()

    def _check_sources(self) -> None:
        specs = [split_weight(source)[0] for source in self.sources]
        for spec in specs:
            if specs.count(spec) > 1:
                raise BadInput(f"data.sources names {spec} twice: name it once and give it a weight, as in {spec}=2")
            if spec.startswith("hf:") and not self.max_tokens:
                raise BadInput(f"source {spec} is streamed, so max_tokens must say how much of it to take (it is 0)")

    @property
    def cache_path(self) -> Path:
        """The folder in which tokenised sources are kept."""
        if self.cache_dir:
            return Path(self.cache_dir).expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "diloco"


def split_weight(source: str) -> tuple[str, float]:
    """Split `a.txt=3` into `("a.txt", 3.0)`; a path that itself exists keeps its `=`."""
    spec, equals, weight_text = source.rpartition("=")
    if not equals or Path(source).exists():
        return source, 1.0
    try:
        weight = float(weight_text)
    except ValueError:
        raise BadInput(
            f"source {source}: the weight {weight_text!r} is not a number, write for instance {spec}=0.7"
        ) from None
    if not (weight > 0 and math.isfinite(weight)):
        raise BadInput(f"source {source}: the weight must be a finite number above 0, as in {spec}=0.7")
    return spec, weight


def bpe_vocab(tokenizer: str) -> int | None:
    """N of `bpe:N`, or None for any other tokenizer."""
    if not tokenizer.startswith("bpe:"):
        return None
    digits = tokenizer[len("bpe:") :]
    if not digits.isdecimal() or not BPE_MIN_VOCAB <= int(digits) <= BPE_MAX_VOCAB:
        raise BadInput(
            f"data.tokenizer {tokenizer}: bpe:N needs a whole number N of at least {BPE_MIN_VOCAB} (256 bytes and a "
            f"separator) and at most {BPE_MAX_VOCAB}, as in bpe:4096"
        )
    return int(digits)


def _check_tokenizer(tokenizer: str) -> None:
    if tokenizer == "bytes" or bpe_vocab(tokenizer) is not None:
        return
    if not Path(tokenizer).expanduser().is_file():
        close = difflib.get_close_matches(tokenizer.partition(":")[0], ["bytes", "bpe"], n=1)
        hint = {"bytes": "did you mean bytes", "bpe": "did you mean bpe:4096"}[close[0]] + "?" if close else ""
        raise BadInput(
            f"data.tokenizer {tokenizer!r} is neither bytes, nor bpe:N, nor a tokenizers JSON file that exists"
            + (f" ({hint})" if hint else "")
        )
