"""Bounded Levenberg-Marquardt for many small fits at once.

S problems, n rows, p parameters. Certifying a fit, splitting it for a hold-out and a bootstrap are hundreds of fits of
the same few parameters: in one batch they cost what a handful costs one by one, which is why this is not a loop over a
library's solver. The tests hold it against scipy's. Levenberg-Marquardt with Marquardt's scaling; a Huber loss enters
by reweighting; variables at a bound with the gradient pushing outward are held for that step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diloco.laws.model import Model

MAX_ITERATIONS = 300
_STEP_TOLERANCE = 1e-11
_GAIN_TOLERANCE = 1e-13
_NEARLY_NEWTON = 1e-3
"""Damping under which a step that gains nothing means an optimum rather than a short step."""

_STALLED = 1e12
"""Damping at which no step in any direction gains: as near to the optimum as rounding allows."""

_IDLE = 20
"""Iterations in a row without a gain, after which an optimum is reached: a term on its way to 0 never stops moving."""


@dataclass(frozen=True)
class Solutions:
    theta_SP: np.ndarray
    objective_S: np.ndarray
    """Sum of weights times Huber of the residual: half the weighted sum of squares without a delta."""
    converged_S: np.ndarray

    @property
    def best(self) -> int:
        return int(np.argmin(self.objective_S))


def huber(residual: np.ndarray, delta: float | np.ndarray) -> np.ndarray:
    """r^2/2 up to `delta`, straight beyond it."""
    size = np.abs(residual)
    inside = np.minimum(size, delta)
    return inside * (size - inside / 2)


def minimise(
    model: Model,
    y: np.ndarray,
    weights: np.ndarray,
    start_SP: np.ndarray,
    bounds: tuple[np.ndarray, np.ndarray],
    delta: float = np.inf,
    max_iterations: int = MAX_ITERATIONS,
) -> Solutions:
    """Least squares or Huber of log f - y, from each start.

    Args:
        y: log targets, (n,) for all problems or (S, n).
        weights: likewise, at least 0.
        bounds: lower and upper (p,); equal entries are held.
        delta: where Huber's loss turns straight; infinity is least squares.
    """
    lower, upper = bounds
    theta = np.clip(start_SP, lower, upper)
    n_sets = len(theta)
    y_SN, w_SN = np.broadcast_to(y, (n_sets, y.shape[-1])), np.broadcast_to(weights, (n_sets, y.shape[-1]))
    residual, jacobian = _evaluate(model, theta, y_SN)
    objective = (w_SN * huber(residual, delta)).sum(axis=1)
    converged = np.zeros(n_sets, dtype=bool)
    damping, growth = np.full(n_sets, 1e-2), np.full(n_sets, 2.0)
    idle = np.zeros(n_sets, dtype=int)
    live = np.arange(n_sets)
    for _ in range(max_iterations):
        hessian, gradient = _normal_equations(residual, jacobian, w_SN[live], delta)
        step = _steps(hessian, gradient, theta[live], lower, upper, damping[live])
        trial = np.clip(theta[live] + step, lower, upper)
        moved = np.abs(trial - theta[live])
        new_residual, new_jacobian = _evaluate(model, trial, y_SN[live])
        new = (w_SN[live] * huber(new_residual, delta)).sum(axis=1)
        gained = objective[live] - new
        better = np.isfinite(new) & (gained >= 0)
        settled = (moved <= _STEP_TOLERANCE * (1 + np.abs(trial))).all(axis=1)
        settled |= better & (gained <= _GAIN_TOLERANCE * objective[live]) & (damping[live] < _NEARLY_NEWTON)
        idle[live] = np.where(better & (gained > _GAIN_TOLERANCE * objective[live]), 0, idle[live] + 1)
        settled |= idle[live] >= _IDLE
        theta[live[better]], objective[live[better]] = trial[better], new[better]
        residual = np.where(better[:, None], new_residual, residual)
        jacobian = np.where(better[:, None, None], new_jacobian, jacobian)
        damping[live] = np.where(
            better, np.maximum(damping[live] / 9, 1e-14), np.maximum(damping[live], 1e-8) * growth[live]
        )
        growth[live] = np.where(better, 2.0, growth[live] * 2)
        settled |= damping[live] > _STALLED
        converged[live[settled]] = True
        live, residual, jacobian = live[~settled], residual[~settled], jacobian[~settled]
        if not live.size:
            break
    return Solutions(theta, objective, converged)


def _evaluate(model: Model, theta: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    value, jacobian = model(theta)
    return value - y, jacobian


def _normal_equations(
    residual: np.ndarray, jacobian: np.ndarray, weights: np.ndarray, delta: float
) -> tuple[np.ndarray, np.ndarray]:
    if np.isfinite(delta):
        weights = weights * np.minimum(1.0, delta / np.maximum(np.abs(residual), 1e-300))
    weighted = (jacobian * weights[:, :, None]).transpose(0, 2, 1)
    return weighted @ jacobian, (weighted @ residual[:, :, None])[:, :, 0]


def _steps(
    hessian: np.ndarray,
    gradient: np.ndarray,
    theta: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    damping: np.ndarray,
) -> np.ndarray:
    held = (lower == upper) | ((theta <= lower) & (gradient > 0)) | ((theta >= upper) & (gradient < 0))
    free = ~held
    hessian = hessian * (free[:, :, None] & free[:, None, :])
    diagonal = np.einsum("spp->sp", hessian)
    scale = np.maximum(diagonal, 1e-14 * diagonal.max(axis=1, keepdims=True) + 1e-200)
    root = np.sqrt(scale)
    system = hessian / (root[:, :, None] * root[:, None, :])
    index = np.arange(system.shape[1])
    system[:, index, index] += damping[:, None] + held
    step = np.linalg.solve(system, -(gradient * free / root)[:, :, None])[:, :, 0] / root
    return np.where(held, 0.0, step)
