"""Intervals by refitting resampled rows: a check on the delta method's shape. Both take the form as true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diloco.errors import BadInput
from diloco.laws.arguments import of_type, whole
from diloco.laws.law import Law
from diloco.laws.model import limits
from diloco.laws.problem import variance_along
from diloco.laws.quantile import t_quantile
from diloco.laws.solve import minimise

_WEBB = np.sqrt([0.5, 1.0, 1.5])
"""Webb's six points (2014), plus and minus: more distinct draws than +-1 where clusters are few."""

_MOST_FAILURES = 0.05
_ITERATIONS = 1000
_MANY = 1e6


@dataclass(frozen=True)
class Bootstrap:
    """Draws of theta (S, p) around a law."""

    law: Law
    theta_SP: np.ndarray
    method: str
    """"cases" within replicated cells, or "wild" residuals."""
    tried: int
    succeeded: int
    correction: float = 1.0
    """Redrawing m runs of a cell shows (m - 1) / m of their variance."""

    def interval(self, columns: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Percentile limits of the law at `columns`, widened from normal to Student's t for few rows."""
        law = self.law
        points, shape = law.points(columns)
        draws = law.model.at(points).log_value(self.theta_SP)
        center = law.model.at(points).log_value(law.theta_P[None])[0]
        probability = (1 + law.level) / 2
        widen = self.correction * t_quantile(probability, law.dof) / t_quantile(probability, _MANY)
        ends = np.quantile(draws, (1 - probability, probability), axis=0)
        low, high = (np.exp(center + widen * (end - center)).reshape(shape) for end in ends)
        return low, high


def bootstrap(law: Law, draws: int = 400, groups: Sequence[Any] | None = None, seed: int = 0) -> Bootstrap:
    """Refit `draws` resamples of the law's own runs, keeping groups together.

    Where each combination of axes was run more than once, runs are redrawn within it; else residuals, made as wide as
    the noise (HC2), are given one of Webb's weights per group: by default each run is its own group.

    Args:
        groups: one value per run; runs of a group share their weight, as runs of one seed or site should.

    Raises:
        BadInput: groups of another length, or more than 5% of the refits fail, which would leave the tame ones.
    """
    runs = of_type("law", law, Law, "what fit_law or load_law returned").runs
    draws, seed = whole("draws", draws, least=2), whole("seed", seed)
    if groups is not None and len(groups) != len(runs.labels):
        raise BadInput(f"groups has {len(groups)} values for {len(runs.labels)} runs: give one per run")
    kept = np.flatnonzero(runs.weight > 0)
    rng = np.random.default_rng(seed)
    model, y = law.model.take(kept), np.log(runs.target[kept])
    bounds = limits(law.model, np.log(runs.target), law.settings["fixed"])
    cells = _cells(np.stack([runs.columns[axis][kept] for axis in law.form.axes], axis=1))
    replicated = groups is None and np.bincount(cells).min() > 1
    if replicated:
        targets, weights = np.broadcast_to(y, (draws, len(y))), _redrawn(cells, draws, rng) * runs.weight[kept]
    else:
        members = np.arange(len(y)) if groups is None else np.unique(np.asarray(groups)[kept], return_inverse=True)[1]
        targets, weights = wild_targets(law, kept, members, draws, rng), runs.weight[kept]
    start = np.repeat(law.theta_P[None], draws, axis=0)
    found = minimise(model, targets, weights, start, bounds, max_iterations=_ITERATIONS)
    good = found.converged_S & np.isfinite(found.objective_S)
    if good.mean() < 1 - _MOST_FAILURES:
        raise BadInput(
            f"only {good.sum()} of {draws} bootstrap fits converged: no interval; use a form with fewer terms"
        )
    mean_runs = len(y) / (cells.max() + 1)
    method, correction = ("cases", np.sqrt(mean_runs / (mean_runs - 1))) if replicated else ("wild", 1.0)
    return Bootstrap(law, found.theta_SP[good], method, draws, int(good.sum()), correction)


def _cells(axes_NA: np.ndarray) -> np.ndarray:
    return np.unique(np.round(np.log(axes_NA), 9), axis=0, return_inverse=True)[1].ravel()


def _redrawn(cells: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """How often each run occurs (S, n) when runs are drawn with replacement inside their cells."""
    counts = np.zeros((draws, len(cells)))
    for cell in range(cells.max() + 1):
        members = np.flatnonzero(cells == cell)
        counts[:, members] = rng.multinomial(len(members), np.full(len(members), 1 / len(members)), size=draws)
    return counts


def wild_targets(law: Law, kept: np.ndarray, members: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Log targets (S, n) of the runs `kept`: fitted plus the residual times a weight that runs of a group share."""
    _, jacobian = law.model.take(kept).tangent(law.theta_P[None])
    scaled = jacobian[0] * np.sqrt(law.runs.weight[kept])[:, None]
    leverage = variance_along(scaled, law.covariance_PP / law.noise**2)
    fitted = np.log(law.runs.fitted[kept])
    residual = (np.log(law.runs.target[kept]) - fitted) / np.sqrt(np.maximum(1 - leverage, 1e-3))
    shape = (draws, members.max() + 1)
    signs = rng.choice(_WEBB, shape) * rng.choice((-1.0, 1.0), shape)
    return fitted + residual * signs[:, members]
