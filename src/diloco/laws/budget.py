"""What a run is worth in tokens and FLOPs: how many tokens a parameter gets where nobody says, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from diloco.laws.axes import TOKENS_PER_PARAM
from diloco.laws.rows import Rows

RULE_OF_THUMB = 20.0
"""Tokens per parameter where nothing is known (arXiv:2203.15556)."""

FLOPS_PER_PARAM_TOKEN = 6.0

ONE_RATIO = 0.02
"""Difference of logs up to which tokens per parameter are the same in all runs."""


@dataclass(frozen=True)
class TokenRatio:
    """Tokens per parameter of the runs that a law was fitted on."""

    low: float
    middle: float
    """The median."""
    high: float

    @property
    def is_one(self) -> bool:
        return math.log(self.high / self.low) < ONE_RATIO

    def __str__(self) -> str:
        return f"{self.middle:.3g}" if self.is_one else f"{self.low:.3g} to {self.high:.3g}"

    def has(self, ratio: float) -> bool:
        """Whether the runs had this ratio, or some under and some over it."""
        return self.low * math.exp(-ONE_RATIO) <= ratio <= self.high * math.exp(ONE_RATIO)


def token_ratio(rows: Rows, kept: np.ndarray) -> TokenRatio | None:
    """Of the rows `kept` (n,) bool; None where they do not say it."""
    told = [name for name in (TOKENS_PER_PARAM, "tokens", "params") if name in rows.numbers]
    if not rows.has(TOKENS_PER_PARAM) or any(rows.unusable(name) for name in told):
        return None
    ratio = rows.column(TOKENS_PER_PARAM)[kept]
    return TokenRatio(float(ratio.min()), float(np.median(ratio)), float(ratio.max()))


def tokens_of(
    params: float, tokens: float | None, ratio: TokenRatio | None, whose: str = "the law's runs"
) -> tuple[float, list[str]]:
    """Tokens of a run, and where nobody gave them a sentence on where they are from; `ratio` is of `whose` runs."""
    if tokens is not None:
        return tokens, []
    if ratio is None:
        why = f"a rule of thumb: {whose} do not say"
        return RULE_OF_THUMB * params, [f"tokens are taken as {RULE_OF_THUMB:g} per parameter, {why}"]
    why = f"as in {whose}" if ratio.is_one else f"the middle of {whose} ({ratio})"
    return ratio.middle * params, [f"tokens are taken as {ratio.middle:.3g} per parameter, {why}"]


def flops_of(axes: Mapping[str, float], tokens_per_param: float = RULE_OF_THUMB) -> float:
    """6 params tokens; `tokens_per_param` where the axes say nothing of tokens."""
    tokens = axes.get("tokens", axes["params"] * axes.get(TOKENS_PER_PARAM, tokens_per_param))
    return FLOPS_PER_PARAM_TOKEN * axes["params"] * tokens
