"""One fit of one form to one set of rows.

The default loss is least squares of the log residual on the runs that belong together. Runs that do not are found from
a fit that they cannot pull (Huber, its delta from the median residual, until it settles; all pairs where runs are few),
then tested one by one as new observations under the law of the others, at a level for the whole table; what remains is
fitted by least squares with a wide Huber, whose scale again comes from the data. Clean tables are thereby fitted at
full efficiency.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diloco.laws.outliers import EXACT, SPARE_DOF, Foreign, find_outliers
from diloco.laws.problem import Problem, Solution, describe, noise_of
from diloco.laws.solve import Solutions
from diloco.laws.start import descend, grid_starts

STARTS = 6
_WIDE_DELTA = 2.5
"""Of the noise's scale, in the final fit."""

_SETTLED = 1e-3


def fit_problem(problem: Problem, starts_SP: np.ndarray | None = None) -> Solution:
    """The best fit found from `starts_SP`, or from the grid's."""
    y, w = problem.y_N, problem.weights_N
    if starts_SP is None:
        starts_SP = grid_starts(problem.model, y, w, problem.bounds, STARTS)
    delta = problem.delta if problem.loss == "huber" else np.inf
    found = _descend(problem, starts_SP, delta)
    theta, converged = found.theta_SP[found.best], bool(found.converged_S[found.best])
    kept = np.ones(len(y), dtype=bool)
    if problem.loss != "robust" or problem.count - problem.free <= SPARE_DOF:
        return describe(problem, theta, kept, delta, converged)
    foreign = find_outliers(problem, found.theta_SP[np.argsort(found.objective_S)[:3]])
    seeds = theta[None]
    if foreign.z:
        kept[list(foreign.z)] = False
        seeds = np.concatenate([seeds, grid_starts(problem.model, y, w * kept, problem.bounds, 2)])
    theta, delta, converged = _settle(problem.with_weights(w * kept), seeds)
    return _hold_both(problem, describe(problem, theta, kept, delta, converged), foreign)


def _hold_both(problem: Problem, solution: Solution, foreign: Foreign) -> Solution:
    """Where other runs may be the foreign ones, widen the covariance until it reaches the law without those."""
    if foreign.rival_theta_P is None:
        return replace(solution, outlier_z=foreign.z)
    apart = foreign.rival_theta_P - solution.theta_P
    if (floor := problem.model.form.floor) is not None:
        apart[floor] = np.exp(foreign.rival_theta_P[floor]) - np.exp(solution.theta_P[floor])
    covariance = solution.covariance_PP + np.outer(apart, apart)
    return replace(solution, outlier_z=foreign.z, rival_rows=foreign.rival_rows, covariance_PP=covariance)


def _descend(problem: Problem, starts_SP: np.ndarray, delta: float = np.inf) -> Solutions:
    """`descend`; where it did not arrive, also from there without one term or the other.

    A term that the rows do not want goes to 0, which its logarithm never reaches, in ever shorter steps.
    """
    model, y, w, (lower, upper) = problem.model, problem.y_N, problem.weights_N, problem.bounds
    found = descend(model, y, w, starts_SP, problem.bounds, delta)
    terms = np.flatnonzero(lower[: model.terms] < upper[: model.terms])
    if found.converged_S[found.best] or len(terms) < 2:
        return found
    without_SP = np.repeat(found.theta_SP[[found.best]], len(terms), axis=0)
    without_SP[np.arange(len(terms)), terms] = lower[terms]
    more = descend(model, y, w, without_SP, problem.bounds, delta)
    return more if more.objective_S.min() <= found.objective_S.min() else found


def _settle(problem: Problem, starts: np.ndarray) -> tuple[np.ndarray, float, bool]:
    """Least squares, then Huber at `_WIDE_DELTA` of the scale, until the scale stays: (theta, delta, converged)."""
    model, y, w = problem.model, problem.y_N, problem.weights_N
    found = _descend(problem, starts)
    theta, delta, converged = found.theta_SP[found.best], np.inf, bool(found.converged_S[found.best])
    for _ in range(30):
        residual = model.log_value(theta[None])[0] - y
        noise, _ = noise_of(residual, w, problem.free, delta)
        new = _WIDE_DELTA * noise
        if not new > EXACT or np.abs(residual[w > 0]).max() <= new:
            return (theta, delta, converged) if np.isinf(delta) else (theta, new, converged)
        if abs(new / delta - 1) < _SETTLED:
            break
        delta = new
        found = _descend(problem, theta[None], delta)
        theta, converged = found.theta_SP[0], bool(found.converged_S[0])
    return theta, delta, converged
