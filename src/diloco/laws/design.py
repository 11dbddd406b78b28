"""Which runs to do next: those that narrow the law at a target most per FLOP."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from diloco.errors import BadInput
from diloco.laws.arguments import mapping, named, of_type, positive
from diloco.laws.axes import TOKENS_PER_PARAM
from diloco.laws.budget import RULE_OF_THUMB, flops_of
from diloco.laws.law import Law
from diloco.laws.quantile import t_quantile
from diloco.laws.spread import levels

_MOST_RUNS = 20
_MOST_LEVELS = 8
_LEAST_GAIN = 0.01
"""Share of the variance that a run must take away to be worth a line."""


@dataclass(frozen=True)
class NextRun:
    """One run to add, in the order of doing them."""

    axes: dict[str, float]
    flops: float
    half_width_before_pct: float
    """Of the law's interval at the target, before this run and after it."""
    half_width_after_pct: float


def next_runs(
    law: Law,
    budget_flops: float,
    target: Mapping[str, float],
    *,
    candidates: Sequence[Mapping[str, float]] | None = None,
    cost: Callable[[Mapping[str, float]], float] | None = None,
) -> list[NextRun]:
    """Greedy c-optimal design: each step takes the run that lowers the variance at `target` most per FLOP.

    With C the covariance over noise^2, g the law's gradient at the target and j at a candidate, adding the run lowers
    the variance g C g by (g C j)^2 / (1 + j C j): closed form, taking the form and the noise as they were fitted.
    At most one run per candidate.

    Args:
        candidates: points per axis, each perhaps with its `flops`; by default sizes and token counts of the ladder and
            between its rungs.
        cost: FLOPs of a run; by default the candidate's own, or 6 params tokens, with as many tokens per parameter as
            the law's runs had where the law does not know tokens.

    Raises:
        BadInput: a law without intervals or params, a target beyond any number, a candidate that costs nothing, or a
            budget under the cheapest.
    """
    of_type("law", law, Law, "what fit_law or load_law returned")
    target = mapping("target", target, "{'params': 10e9, 'replicas': 4}")
    if not (law.dof > 0 and law.noise > 0):
        raise BadInput(f"law {law.id} has no interval to narrow: fit it on more rows than coefficients")
    budget_flops = positive("budget_flops", budget_flops, math.inf)
    law.predict(**target)
    points = _between_rungs(law, target) if candidates is None else _given(law, candidates)
    prices = np.array([(cost or _cost(law))(point) for point in points])
    if not (prices > 0).all():
        raise BadInput(f"a candidate costs {prices.min():g} FLOPs: give sizes that cost something")
    if not (prices <= budget_flops).any():
        raise BadInput(
            f"{named('budget_flops', budget_flops)} FLOPs buys no candidate, the cheapest costs {prices.min():.3g}: "
            "raise it"
        )
    return _greedy(law, budget_flops, law.log_gradient(target)[0], points, prices)


def _greedy(
    law: Law, left: float, goal_P: np.ndarray, points: list[dict[str, float]], prices: np.ndarray
) -> list[NextRun]:
    """The runs bought one after the other; `left` is the budget in FLOPs, `goal_P` the gradient at the target."""
    gradient_CP = law.log_gradient({axis: np.array([point[axis] for point in points]) for axis in law.form.axes})
    covariance, dof = law.covariance_PP / law.noise**2, law.dof
    chosen: list[NextRun] = []
    free = np.ones(len(points), dtype=bool)
    while (free & (prices <= left)).any() and len(chosen) < _MOST_RUNS:
        reach = gradient_CP @ covariance
        spread = 1 + np.einsum("cp,cp->c", reach, gradient_CP)
        gain = (reach @ goal_P) ** 2 / spread
        worth = free & (prices <= left) & (gain > _LEAST_GAIN * (goal_P @ covariance @ goal_P))
        if not worth.any():
            break
        best = int(np.argmax(np.where(worth, gain / prices, -1.0)))
        before = _half_width_pct(law, goal_P, covariance, dof)
        covariance = covariance - np.outer(reach[best], reach[best]) / spread[best]
        dof += 1
        chosen.append(NextRun(points[best], float(prices[best]), before, _half_width_pct(law, goal_P, covariance, dof)))
        free[best] = False
        left -= prices[best]
    return chosen


def _cost(law: Law) -> Callable[[Mapping[str, float]], float]:
    ratio = law.runs.tokens_per_param

    def cost(point: Mapping[str, float]) -> float:
        per_param = (ratio.at(point) or ratio.middle) if ratio else RULE_OF_THUMB
        return point.get("flops") or flops_of(point, per_param)

    return cost


def _given(law: Law, candidates: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Candidates with every axis of the law. Raises BadInput for one that lacks some, and for none."""
    points = [mapping("candidates", point, "[{'params': 1e9, 'replicas': 1}]") for point in candidates]
    missing = [(number, axis) for number, point in enumerate(points, 1) for axis in law.form.axes if axis not in point]
    if missing or not points:
        lacking = f"number {missing[0][0]} has no {missing[0][1]}" if missing else "are none"
        raise BadInput(f"{named('candidates')} {lacking}: give each of {', '.join(law.form.axes)} for every run")
    return [{name: positive(name, value, math.inf) for name, value in point.items()} for point in points]


def _half_width_pct(law: Law, goal_P: np.ndarray, covariance: np.ndarray, dof: float) -> float:
    deviation = law.noise * float(np.sqrt(max(goal_P @ covariance @ goal_P, 0.0)))
    return 100 * float(np.expm1(t_quantile((1 + law.level) / 2, dof) * deviation))


def _between_rungs(law: Law, target: Mapping[str, Any]) -> list[dict[str, float]]:
    """Every combination of each axis's levels, the middles between them, and the target's value."""
    if "params" not in law.form.axes:
        raise BadInput(
            f"form {law.form.expression} has no params: say which runs are possible with {named('candidates')}"
        )
    choices = {}
    for axis, values in law.runs.columns.items():
        found = levels(values)
        if found.size > _MOST_LEVELS:
            found = np.geomspace(found[0], found[-1], _MOST_LEVELS)
        middles = np.sqrt(found[1:] * found[:-1]) if axis in ("params", "tokens", TOKENS_PER_PARAM) else np.empty(0)
        further = [float(target[axis])] if axis in target else []
        if axis == "params" and axis in target and target[axis] > found[-1]:
            further.append(float(np.sqrt(found[-1]) * np.sqrt(target[axis])))
        choices[axis] = levels(np.array([*found, *middles, *further]))
    return [dict(zip(choices, map(float, point), strict=True)) for point in product(*choices.values())]
