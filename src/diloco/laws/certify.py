"""What a fit says about itself: do other starts agree, what sits at a bound, what the design cannot tell apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from diloco.laws.problem import NO_EFFECT, Problem, Solution, column_sizes
from diloco.laws.solve import minimise
from diloco.laws.spread import levels, moves_with
from diloco.laws.start import random_starts, representatives

RANDOM_STARTS = 20
_START_ITERATIONS = 150
_AGREE = 1e-4
"""Relative excess of the objective up to which a start has found the same optimum."""

_BETTER = 1e-6

_SAME_EFFECT = 1e-11
"""Singular value, as a share of the largest, under which coefficients act as one: above rounding, below any data."""

_MOVES = 1e-4


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
    confounded: tuple[str, ...]
    """Coefficients that the law cannot tell apart: moving them together changes no run's prediction."""
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
    condition, confounded = _condition(problem, solution)
    certificate = Certificate(
        converged=solution.converged,
        starts=len(starts),
        agree_share=float(agree.mean()),
        runner_up=float(others.min()) if others.size else None,
        at_bound=_at_bound(problem, solution),
        condition=condition,
        confounded=confounded,
        correlations={f"{a}, {b}": moves_with(columns[a], columns[b]) for a, b in combinations(axes, 2)},
        levels={axis: levels(columns[axis]).size for axis in axes},
        rows=len(problem.y_N),
        rows_left_out=len(solution.outlier_z),
        dof=solution.dof,
    )
    return certificate, better


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


def _condition(problem: Problem, solution: Solution) -> tuple[float, tuple[str, ...]]:
    """Condition of the Jacobian, columns scaled to length 1, and the coefficients that its null directions move.

    These are told in the coordinates of the expression: an amplitude there depends on the exponents beside it.
    """
    model, (lower, upper) = problem.model, problem.bounds
    _, jacobian = model.tangent(solution.theta_P[None])
    columns = jacobian[0] * np.sqrt(solution.weights_N)[:, None]
    length = np.linalg.norm(columns, axis=0)
    moves = length > NO_EFFECT * column_sizes(model, jacobian[0], solution.weights_N)
    free = (lower < upper) & moves
    if not free.any():
        return float("inf"), ()
    triangle = np.linalg.qr(columns[:, free] / length[free], mode="r")
    _, singular, directions = np.linalg.svd(triangle)
    lost = np.ones(len(directions), dtype=bool)
    lost[: len(singular)] = singular < _SAME_EFFECT * singular[0]
    null_PV = np.zeros((len(free), int(lost.sum())))
    null_PV[free] = directions[lost].T / length[free][:, None]
    moved = (np.abs(model.to_natural() @ null_PV) * length[:, None] > _MOVES).any(axis=1) & free
    has_condition = moves[lower < upper].all() and singular[-1] > 0
    condition = float(singular[0] / singular[-1]) if has_condition else float("inf")
    return condition, tuple(name for name, is_moved in zip(model.names, moved, strict=True) if is_moved)
