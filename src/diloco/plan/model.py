"""Shapes of models: what a size name stands for, and the operations of one token."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from diloco.errors import BadInput
from diloco.plan.toml import read_toml
from diloco.units import format_count, parse_count

VOCAB, SEQ_LEN, HEAD_WIDTH, FFN_PER_WIDTH = 32_000, 2048, 64, 4
ATTENTION_FLOPS = 6
"""For each token, channel and layer of a sequence: scores and their use, 4 forward, 8 backward, half of them masked."""

LAYERS_PER_HEAD = 0.75
"""Every model of arXiv:2503.09799 Table 3 has 3 layers for 4 heads of 64 channels: one size, one shape."""

LEAST_PARAMS, MOST_PARAMS = 1e3, 1e17


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer."""

    name: str
    params: float
    """All of them, tied embeddings once: what crosses the wire and lies in memory."""
    layers: int
    width: int
    heads: int
    ffn: int
    vocab: int = VOCAB
    seq_len: int = SEQ_LEN
    active_params: float | None = None
    """Those that one token uses, for a mixture of experts; None for all of them."""
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("params", "layers", "width", "heads", "ffn", "vocab", "seq_len"):
            if not getattr(self, name) >= 1:
                raise BadInput(f"{name} of model {self.name} is {getattr(self, name):g}: give 1 or more")
        if self.active_params is not None and not 0 < self.active_params <= self.params:
            raise BadInput(
                f"active_params of model {self.name} is {self.active_params:g}: give at most params, {self.params:g}"
            )

    @property
    def flops_per_token(self) -> float:
        """6 N, forward 2 and backward 4, with N the parameters that a token uses (arXiv:2503.09799 Appendix A), and
        6 L d for each token by which a sequence is longer than `SEQ_LEN`.

        Attention's own are 12 L d s over s tokens, half of them masked. Up to `SEQ_LEN` they are left to the MFU, which
        counts 6 N.
        """
        longer = max(0, self.seq_len - SEQ_LEN)
        return self.weight_flops_per_token + ATTENTION_FLOPS * self.layers * self.width * longer

    @property
    def weight_flops_per_token(self) -> float:
        """6 N."""
        return 6 * (self.active_params or self.params)


def counted_params(layers: int, width: int, vocab: int = VOCAB, ffn: int | None = None) -> float:
    """4 d^2 + 2 d f a layer, and a tied embedding of V d: 12 d^2 L + V d for f = 4 d."""
    return float(layers * (4 * width**2 + 2 * width * (ffn or FFN_PER_WIDTH * width)) + vocab * width)


def shape_of(params: float, vocab: int = VOCAB, seq_len: int = SEQ_LEN) -> ModelShape:
    """The shape that the papers' rule gives a size: 3 layers for 4 heads of 64 channels. `params` is kept as given.

    Raises:
        BadInput: params outside 1e3 to 1e17.
    """
    if not LEAST_PARAMS <= params <= MOST_PARAMS:
        near = min(max(params, LEAST_PARAMS), MOST_PARAMS) if params == params else LEAST_PARAMS
        raise BadInput(f"params is {params:g}: give {LEAST_PARAMS:g} to {MOST_PARAMS:g}, the nearest is {near:g}")
    low, high = 0.0, 1e6
    while high - low > 1e-6 * high:
        heads = (low + high) / 2
        width = HEAD_WIDTH * heads
        low, high = (heads, high) if _continuous(heads, width, vocab) < params else (low, heads)
    heads = max(1, round(low))
    layers = max(1, round(low * LAYERS_PER_HEAD))
    width = HEAD_WIDTH * heads
    source = "3 layers for 4 heads of 64 channels, as in arXiv:2503.09799v1 Table 3"
    return ModelShape(format_count(params), params, layers, width, heads, FFN_PER_WIDTH * width, vocab, seq_len,
                      source=source)  # fmt: skip


def get_model(name: str | float, seq_len: int | None = None) -> ModelShape:
    """A model by name, `10b` or `llama3-405b`, or else the shape of a size such as `7b`.

    Raises:
        BadInput: neither a known name nor a number of parameters.
    """
    known = known_models()
    found = known.get(str(name).strip().lower())
    if found is None:
        text = str(name).strip()
        if not text[:1].isdigit() and not text.startswith((".", "-", "+")):
            near = difflib.get_close_matches(text.lower(), known, n=3, cutoff=0.4)
            hint = f"did you mean {', '.join(near)}? " if near else ""
            raise BadInput(f"params is {name!r}: {hint}give a number such as 7b, or one of {', '.join(known)}")
        found = shape_of(parse_count(name, "params", "7b"))
    if seq_len is None:
        return found
    return ModelShape(**{**{k: getattr(found, k) for k in found.__dataclass_fields__}, "seq_len": seq_len})


@cache
def known_models() -> dict[str, ModelShape]:
    """The shapes of data/models.toml by name."""
    entries = read_toml(resources.files("diloco.plan") / "data" / "models.toml")["model"]
    return {name: _shape(name, entry) for name, entry in entries.items()}


def _shape(name: str, entry: dict[str, Any]) -> ModelShape:
    layers, width, vocab = entry["layers"], entry["width"], entry.get("vocab", VOCAB)
    ffn = entry.get("ffn", FFN_PER_WIDTH * width)
    counted = counted_params(layers, width, vocab, ffn)
    return ModelShape(
        name=name,
        params=parse_count(entry["params"], "params") if "params" in entry else counted,
        layers=layers,
        width=width,
        heads=entry.get("heads", width // HEAD_WIDTH),
        ffn=ffn,
        vocab=vocab,
        seq_len=entry.get("seq_len", SEQ_LEN),
        active_params=parse_count(entry["active_params"], "active_params") if "active_params" in entry else None,
        source=entry["source"],
    )


def _continuous(heads: float, width: float, vocab: int) -> float:
    return 12 * width**2 * LAYERS_PER_HEAD * heads + vocab * width if math.isfinite(width) else math.inf
