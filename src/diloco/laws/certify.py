"""What a fit says about itself: do other starts agree, what sits at a bound, what the design cannot tell apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from diloco.laws.problem import Problem, Solution
from diloco.laws.solve import minimise
from diloco.laws.start import random_starts, representatives

RANDOM_STARTS = 20
_START_ITERATIONS = 150
_AGREE = 1e-4
"""Relative excess of the objective up to which a start has found the same optimum."""

_BETTER = 1e-6

_SAME_LEVEL = 1e-6


@dataclass(frozen=True)
class Certificate:
    converged: bool
    starts: int
    agree_share: float
    """Of the random starts, those that end at the optimum reported."""
    runner_up: float | None
    """Objective of the next best optimum that a start found, as a multiple of the best; None where none differs."""
    at_bound: tuple[str, ...]
    condition: float
    """Of the Jacobian with columns of length 1; infinite where a coefficient has no effect of its own."""
    correlations: dict[str, float]
    """Between the logs of each pair of axes, as "params, tokens"."""
    levels: dict[str, int]
    """Different values of each axis."""
    rows: int
    rows_left_out: int
    dof: float


def certify(
    problem: Problem, solution: Solution, columns: Mapping[str, np.ndarray], seed: int
) -> tuple[Certificate, np.ndarray | None]:
    """The certificate, and a better theta where a random start found one.

    With many rows the starts descend on rows that stand for all, and so does the fit that they are compared with.
    """
    weights = np.where(solution.weights_N > 0, problem.weights_N, 0.0)
    rows = representatives(problem.model, weights)
    small, y, w = problem.model.take(rows), problem.y_N[rows], weights[rows]
    starts = random_starts(small, y, w, problem.bounds, RANDOM_STARTS, seed)
    everyone = np.concatenate([starts, solution.theta_P[None]])
    found = minimise(small, y, w, everyone, problem.bounds, solution.delta, _START_ITERATIONS)
    rounding = 1e-20 * w.sum()
    excess = (found.objective_S[:-1] + rounding) / (found.objective_S[-1] + rounding)
    agree = excess <= 1 + _AGREE
    better = found.theta_SP[found.best] if excess.min() < 1 - _BETTER else None
    others = excess[~agree]
    axes = problem.model.form.axes
    certificate = Certificate(
        converged=solution.converged,
        starts=len(starts),
        agree_share=float(agree.mean()),
        runner_up=float(others.min()) if others.size else None,
        at_bound=_at_bound(problem, solution),
        condition=_condition(problem, solution),
        correlations={f"{a}, {b}": _correlation(columns[a], columns[b]) for a, b in combinations(axes, 2)},
        levels={axis: levels(columns[axis]).size for axis in axes},
        rows=len(problem.y_N),
        rows_left_out=len(solution.outlier_z),
        dof=solution.dof,
    )
    return certificate, better


def levels(values: np.ndarray) -> np.ndarray:
    """The different values of an axis, ascending; values closer than rounding are one."""
    ordered = np.sort(values)
    first = np.concatenate([[True], np.diff(np.log(ordered)) > _SAME_LEVEL])
    return ordered[first]


def _at_bound(problem: Problem, solution: Solution) -> tuple[str, ...]:
    lower, upper = problem.bounds
    span = np.where(upper > lower, upper - lower, 1.0)
    near = (solution.theta_P - lower < 1e-6 * span) | (upper - solution.theta_P < 1e-6 * span)
    share = _term_shares(problem, solution)
    names = []
    for i, name in enumerate(problem.model.names):
        vanished = i < problem.model.terms and share[i] < 1e-6
        if lower[i] < upper[i] and (near[i] or vanished):
            names.append(name)
    return tuple(names)


def _term_shares(problem: Problem, solution: Solution) -> np.ndarray:
    """(K,): the largest share of the law that each term has on any row."""
    g_KN = problem.model.log_terms(solution.theta_P[None])[:, 0]
    return np.exp(g_KN - np.logaddexp.reduce(g_KN, axis=0)).max(axis=1)


def _condition(problem: Problem, solution: Solution) -> float:
    _, jacobian = problem.model.tangent(solution.theta_P[None])
    lower, upper = problem.bounds
    columns = jacobian[0][:, lower < upper] * np.sqrt(solution.weights_N)[:, None]
    length = np.linalg.norm(columns, axis=0)
    length = np.where(length > 1e-9 * length.max(), length, np.inf)
    singular = np.linalg.svd(columns / length, compute_uv=False)
    return float(singular[0] / singular[-1]) if singular[-1] > 0 else float("inf")


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    x, y = np.log(a), np.log(b)
    spread = x.std() * y.std()
    return float(((x - x.mean()) * (y - y.mean())).mean() / spread) if spread > 1e-12 else 0.0
