"""What a run is worth in tokens and FLOPs: how many tokens a parameter gets where nobody says, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from diloco.laws.axes import TOKENS_PER_PARAM
from diloco.laws.relations import ON_RELATION, relation
from diloco.laws.rows import Rows

RULE_OF_THUMB = 20.0
"""Tokens per parameter where nothing is known (arXiv:2203.15556)."""

FLOPS_PER_PARAM_TOKEN = 6.0

ONE_RATIO = 0.02
"""Difference of logs up to which tokens per parameter are the same in all runs."""


_A_RELATION = math.log(1.25)
"""Spread of tokens per parameter from which on it is worth following, where it follows the size or the replicas."""

_EXPLAINED = 0.95
_DIGITS = 12
"""Of a ratio, beyond which it is the rounding of a division."""

SANE_RATIO = (1e-3, 1e6)
"""Tokens per parameter outside which the two are likely counted in different units."""


@dataclass(frozen=True)
class TokenRatio:
    """Tokens per parameter of the runs that a law was fitted on."""

    low: float
    middle: float
    """The median."""
    high: float
    told: int = 0
    """Runs that say it."""
    of: int = 0
    """Runs that the law was fitted on."""
    factor: float = 0.0
    powers: dict[str, float] = field(default_factory=dict)
    """Where the runs follow one: tokens per parameter = factor * product of axis^power, over params and replicas."""

    @property
    def is_one(self) -> bool:
        return math.log(self.high / self.low) < ONE_RATIO

    def __str__(self) -> str:
        return f"{self.middle:.3g}" if self.is_one else f"{self.low:.3g} to {self.high:.3g}"

    def continued(self, point: Mapping[str, float]) -> float | None:
        """What the runs' relation comes to at `point`; None where there is none, or it needs more than `point` says."""
        if not self.powers or not set(self.powers) <= set(point):
            return None
        return self.factor * math.prod(point[name] ** power for name, power in self.powers.items())

    def at(self, point: Mapping[str, float]) -> float | None:
        """The same, within what the runs had: no relation holds for ever."""
        followed = self.continued(point)
        return None if followed is None else min(max(followed, self.low), self.high)

    def has(self, ratio: float, point: Mapping[str, float], beyond: bool = False) -> bool:
        """Whether the runs had this ratio at such a point, or some under and some over it.

        `beyond` the runs' sizes their relation is a guess, so that any ratio that they had is as good.
        """
        followed = None if beyond else self.at(point)
        if followed is not None:
            return abs(math.log(ratio / followed)) <= ON_RELATION
        return self.low * math.exp(-ONE_RATIO) <= ratio <= self.high * math.exp(ONE_RATIO)


def token_ratio(rows: Rows, kept: np.ndarray) -> TokenRatio | None:
    """Of the rows `kept` (n,) bool that say it; None where none does."""
    told = [name for name in (TOKENS_PER_PARAM, "tokens", "params") if name in rows.numbers]
    says = kept & ~np.isin(np.arange(len(rows)), [i for name in told for i in rows.unusable(name)])
    if not says.any() or not ({TOKENS_PER_PARAM} <= set(told) or {"tokens", "params"} <= set(told)):
        return None
    some = rows.take(np.flatnonzero(says))
    ratio = some.column(TOKENS_PER_PARAM)
    low, middle, high = (float(f"{value:.{_DIGITS}g}") for value in (ratio.min(), np.median(ratio), ratio.max()))
    leaders = {name: some.column(name) for name in some.varying(["params", "replicas"])}
    found = relation(TOKENS_PER_PARAM, {TOKENS_PER_PARAM: ratio, **leaders}, list(leaders), _EXPLAINED)
    follows = found is not None and found.off <= ON_RELATION and math.log(high / low) > _A_RELATION
    powers = {"factor": math.exp(found.log_factor), "powers": found.powers} if follows else {}
    return TokenRatio(low, middle, high, int(says.sum()), int(kept.sum()), **powers)


def tokens_of(
    params: float,
    tokens: float | None,
    ratio: TokenRatio | None,
    whose: str = "the law's runs",
    replicas: float | None = None,
) -> tuple[float, list[str]]:
    """Tokens of a run, and where nobody gave them a sentence on where they are from; `ratio` is of `whose` runs.

    Where the runs' tokens per parameter follow params or replicas, so do these; without `replicas` only the first.
    """
    if tokens is not None:
        return tokens, []
    if ratio is None:
        why = f"a rule of thumb: {whose} do not say"
        return RULE_OF_THUMB * params, [f"tokens are taken as {RULE_OF_THUMB:g} per parameter, {why}"]
    point = _point(params, replicas)
    followed, continued = ratio.at(point), ratio.continued(point)
    if followed and continued and abs(math.log(followed / continued)) > ON_RELATION:
        end = "least" if followed > continued else "most"
        why = f"the {end} of {whose} ({ratio}): their relation to {' and '.join(ratio.powers)} would give "
        why += f"{continued:.3g} here, which none of them had"
    elif followed is not None:
        why = f"which goes with {' and '.join(ratio.powers)} in {whose} ({ratio})"
    else:
        why = f"as in {whose}" if ratio.is_one else f"the middle of {whose} ({ratio})"
    some = f", {ratio.told} of {ratio.of} of which say" if ratio.told < ratio.of else ""
    per_param = followed or ratio.middle
    return per_param * params, [f"tokens are taken as {per_param:.3g} per parameter, {why}{some}"]


def other_ratio(
    name: str, ratio: TokenRatio | None, point: Mapping[str, float], ranges: Mapping[str, tuple[float, float]]
) -> list[str]:
    """Where a law called `name`, which does not know tokens, is asked about more or fewer than its runs had.

    `ranges` are those of the runs, per axis.
    """
    if ratio is None or not {"params", "tokens"} <= set(point):
        return []
    asked = point["tokens"] / point["params"]
    known = {axis: point[axis] / np.clip(point[axis], *ranges[axis]) for axis in {*point} & {*ranges} & {*ratio.powers}}
    beyond = any(abs(math.log(times)) > ONE_RATIO for times in known.values())
    if ratio.has(asked, point, beyond):
        return []
    followed = None if beyond else ratio.at(point)
    here = f"{ratio}" if followed is None else f"{followed:.3g}"
    such = "" if followed is None else f" at such {' and '.join(ratio.powers)}"
    return [f"{name} holds at {here} tokens per parameter{such}, not at {asked:.3g}"]


def _point(params: float, replicas: float | None) -> dict[str, float]:
    return {"params": params} | ({} if replicas is None else {"replicas": replicas})


def flops_of(axes: Mapping[str, float], tokens_per_param: float = RULE_OF_THUMB) -> float:
    """6 params tokens; `tokens_per_param` where the axes say nothing of tokens."""
    tokens = axes.get("tokens", axes["params"] * axes.get(TOKENS_PER_PARAM, tokens_per_param))
    return FLOPS_PER_PARAM_TOKEN * axes["params"] * tokens
