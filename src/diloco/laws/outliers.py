"""Which rows are not of the others' law."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from diloco.laws.problem import Problem, Solution, describe, variance_along
from diloco.laws.quantile import regularised_beta, t_quantile
from diloco.laws.solve import minimise
from diloco.laws.start import descend, grid_starts

_RESISTANT_DELTA = 1.5
"""Of the scale from the median absolute residual, while outliers are looked for."""

_SUSPECT = 3.0
_SUSPECT_SHARE = 0.8
"""Runs beyond 3 scales, and beyond this share of what a table of that length may show by chance, are tested."""

_OUTLIER_LEVEL = 0.01
"""Chance that a clean table loses any run."""

_RIVAL_LEVEL = 0.3
"""Chance that a clean table looks as if runs were foreign without proof, and has its intervals widened for it."""

_MOST_OUTLIERS = 0.25
SPARE_DOF = 1
"""Degrees of freedom that leaving runs out must leave."""

_SEARCHED_ROWS = 16
"""Up to which all pairs of rows are tried as the outliers."""

_SEARCH_ITERATIONS = 25
_SETTLED = 1e-2
_MANY = 1e6
_MAD_TO_SD = 1.4826
EXACT = 1e-12
"""Log residuals below this are rounding."""


@dataclass(frozen=True)
class Foreign:
    """`z`: rows to leave out -> standard deviations. `rival_*`: another choice that the rows allow nearly as well."""

    z: dict[int, float] = field(default_factory=dict)
    rival_rows: tuple[int, ...] = ()
    rival_theta_P: np.ndarray | None = None


@dataclass(frozen=True)
class _Search:
    """The fit without each set of `size` rows: many few-row fits, as few runs cannot outvote an outlier."""

    sets: list[tuple[int, ...]]
    objective: np.ndarray
    theta: np.ndarray

    def best(self, without: frozenset[int] = frozenset()) -> int | None:
        """Index of the set whose absence explains the others best; sets that contain `without` do not count."""
        order = np.argsort(self.objective, kind="stable")
        return next((int(i) for i in order if not without or not without <= set(self.sets[i])), None)


def find_outliers(problem: Problem, starts: np.ndarray) -> Foreign:
    """Suspects, put back one after the other unless they prove foreign to the law of the rest."""
    rows = len(problem.y_N)
    most = int(min(rows * _MOST_OUTLIERS, problem.count - problem.free - SPARE_DOF))
    if most < 1:
        return Foreign()
    if rows > _SEARCHED_ROWS:
        return Foreign(_prove(problem, starts, _suspects(problem, starts, most))[0])
    search = _search(problem, starts, min(most, 2))
    z, fit = _prove(problem, starts, list(search.sets[search.best()]))
    rival = _rival(problem, search, z, fit)
    if rival is None:
        return Foreign(z)
    return Foreign(z, tuple(i for i in search.sets[rival] if i not in z), search.theta[rival])


def _prove(problem: Problem, starts: np.ndarray, suspects: list[int]) -> tuple[dict[int, float], Solution | None]:
    rows, seeds = len(problem.y_N), starts
    limit = 1 - _OUTLIER_LEVEL / (2 * rows)
    while suspects:
        kept = np.ones(rows)
        kept[suspects] = 0
        weights = problem.weights_N * kept
        if seeds is starts:
            seeds = np.concatenate([starts, grid_starts(problem.model, problem.y_N, weights, problem.bounds, 2)])
        found = descend(problem.model, problem.y_N, weights, seeds, problem.bounds)
        fit = describe(problem, found.theta_SP[found.best], kept)
        z = _foreign(problem, fit)
        usual = sorted((i for i in suspects if z[i] <= t_quantile(limit, fit.dof)), key=lambda i: z[i])
        if not usual:
            return {i: float(z[i]) for i in suspects}, fit
        suspects = [i for i in suspects if i not in usual[: (len(usual) + 1) // 2]]
        seeds = found.theta_SP[[found.best]]
    return {}, None


def _foreign(problem: Problem, fit: Solution) -> np.ndarray:
    """(n,): how far each row lies from the law of the kept ones, in standard deviations of a new run."""
    _, jacobian = problem.model.tangent(fit.theta_P[None])
    spread = variance_along(jacobian[0], fit.covariance_PP)
    return np.abs(fit.residual_N) / np.sqrt(fit.noise**2 + spread + EXACT**2)


def _suspects(problem: Problem, starts: np.ndarray, most: int) -> list[int]:
    residual = np.abs(_resistant_residual(problem, starts))
    scale = _mad(residual, problem)
    if scale < EXACT:
        scale = max(float(residual.max()) / 1e6, EXACT)
    chance = t_quantile(1 - _OUTLIER_LEVEL / (2 * len(residual)), _MANY)
    threshold = max(_SUSPECT, _SUSPECT_SHARE * chance) * scale
    return [int(i) for i in np.argsort(-residual, kind="stable")[:most] if residual[i] > threshold]


def _search(problem: Problem, starts: np.ndarray, size: int) -> _Search:
    sets = list(combinations(range(len(problem.y_N)), size))
    weights = np.repeat(problem.weights_N[None], len(sets), axis=0)
    np.put_along_axis(weights, np.array(sets), 0.0, axis=1)
    found = minimise(
        problem.model,
        problem.y_N,
        np.tile(weights, (len(starts), 1)),
        np.repeat(starts, len(sets), axis=0),
        problem.bounds,
        max_iterations=_SEARCH_ITERATIONS,
    )
    objective = found.objective_S.reshape(len(starts), len(sets))
    winner = objective.argmin(axis=0)
    theta = found.theta_SP.reshape(len(starts), len(sets), -1)
    return _Search(sets, objective.min(axis=0), theta[winner, np.arange(len(sets))])


def _rival(problem: Problem, search: _Search, z: dict[int, float], fit: Solution | None) -> int | None:
    """A set that might be the foreign one: instead of what was proven, or where nothing was.

    Instead of what was proven, where its squares are within the 95% limit of a profile (Bates and Watts 1988, section
    6.1), however many runs either leaves out.
    """
    best = search.best(frozenset(z))
    if best is None:
        return None
    rows = list(search.sets[best])
    squares = 2 * search.objective[best]
    if fit is not None:
        profile = fit.noise**2 * (fit.dof + t_quantile(0.975, fit.dof) ** 2)
        return best if squares <= profile else None
    whole = problem.model.log_value(_whole(problem, search.theta))[0] - problem.y_N
    share = squares / max(float((problem.weights_N * whole**2).sum()), squares, EXACT**2)
    dof = problem.count - problem.weights_N[rows].sum() - problem.free
    chance = len(search.sets) * regularised_beta(dof / 2, len(rows) / 2, share)
    return best if chance <= _RIVAL_LEVEL else None


def _whole(problem: Problem, starts: np.ndarray) -> np.ndarray:
    found = minimise(problem.model, problem.y_N, problem.weights_N, starts, problem.bounds)
    return found.theta_SP[[found.best]]


def _resistant_residual(problem: Problem, starts: np.ndarray) -> np.ndarray:
    model, y, w = problem.model, problem.y_N, problem.weights_N
    theta, scale = starts, np.inf
    residual = model.log_value(theta[:1])[0] - y
    for _ in range(12):
        new = _mad(residual, problem)
        if new < EXACT or abs(new / scale - 1) < _SETTLED:
            break
        scale = new
        found = descend(model, y, w, theta, problem.bounds, _RESISTANT_DELTA * scale, max_iterations=60)
        theta = found.theta_SP
        residual = model.log_value(theta[[found.best]])[0] - y
    return residual


def _mad(residual: np.ndarray, problem: Problem) -> float:
    """Scale from the weighted median absolute residual, corrected for fitted coefficients."""
    order = np.argsort(np.abs(residual))
    cumulative = np.cumsum(problem.weights_N[order])
    middle = np.abs(residual)[order][np.searchsorted(cumulative, cumulative[-1] / 2)]
    return float(_MAD_TO_SD * middle * np.sqrt(problem.count / max(problem.count - problem.free, 1.0)))
