"""A form bound to rows and a loss, and what a fit of it found."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from diloco.errors import BadInput
from diloco.laws.model import Model
from diloco.laws.solve import huber

LOSSES = ("robust", "mse", "huber")


@dataclass(frozen=True)
class Problem:
    """Rows bound to a form: log targets y (n,), weights (n,), bounds of theta, and the loss."""

    model: Model
    y_N: np.ndarray
    weights_N: np.ndarray
    bounds: tuple[np.ndarray, np.ndarray]
    loss: str = "robust"
    delta: float = 1e-3
    """Of the loss "huber" alone."""

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise BadInput(f"fit loss '{self.loss}' is not known: use one of {', '.join(LOSSES)}")
        if not self.delta > 0:
            raise BadInput(f"huber delta {self.delta} must be above 0: 0.001 is usual on log losses")

    @property
    def count(self) -> float:
        """Rows, a row of weight 2 counting twice."""
        return float(self.weights_N.sum())

    @property
    def free(self) -> int:
        return int((self.bounds[0] < self.bounds[1]).sum())

    def take(self, index: np.ndarray) -> Problem:
        kept = self.model.take(index), self.y_N[index], self.weights_N[index]
        return Problem(*kept, self.bounds, self.loss, self.delta)

    def with_weights(self, weights_N: np.ndarray) -> Problem:
        return Problem(self.model, self.y_N, weights_N, self.bounds, self.loss, self.delta)


@dataclass(frozen=True)
class Solution:
    theta_P: np.ndarray
    objective: float
    residual_N: np.ndarray
    """log fitted - log target, of every row, left out or not."""
    weights_N: np.ndarray
    """What each row weighed in the end: 0 left out, below its own weight where Huber turned straight."""
    noise: float
    """Standard deviation of the log residual; NaN without degrees of freedom."""
    dof: float
    covariance_PP: np.ndarray
    """Of theta; 0 for what is pinned, at a bound, or without effect."""
    delta: float
    converged: bool
    outlier_z: dict[int, float] = field(default_factory=dict)
    """Rows left out -> how many standard deviations of a new run they lie from the law of the others."""
    rival_rows: tuple[int, ...] = ()
    """Rows that might be the foreign ones instead: the covariance holds both explanations."""


def describe(
    problem: Problem, theta: np.ndarray, kept: np.ndarray, delta: float = np.inf, converged: bool = True
) -> Solution:
    """The solution at `theta` with the rows `kept` (n,) in the fit."""
    weights = problem.weights_N * kept
    value, jacobian = problem.model.tangent(theta[None])
    residual = value[0] - problem.y_N
    noise, dof = noise_of(residual, weights, problem.free, delta)
    final = weights * np.minimum(1.0, delta / np.maximum(np.abs(residual), 1e-300))
    covariance = covariance_of(problem.model, jacobian[0], weights, theta, problem.bounds) * noise**2
    objective = float((weights * huber(residual, delta)).sum())
    return Solution(theta, objective, residual, final, noise, dof, covariance, delta, converged)


def noise_of(residual: np.ndarray, weights: np.ndarray, free: int, delta: float) -> tuple[float, float]:
    """Scale of the noise (Huber and Ronchetti 2009, eq. 7.81, H1; plain least squares without clipping) and dof."""
    dof = float(weights.sum() - free)
    if dof <= 0:
        return float("nan"), dof
    clipped = np.clip(residual, -delta, delta)
    inside = (weights * (np.abs(residual) <= delta)).sum() / weights.sum()
    correction = 1 + free / weights.sum() * (1 - inside) / max(inside, 1e-9)
    return float(np.sqrt((weights * clipped**2).sum() / dof) / max(inside, 1e-9) * correction), dof


def covariance_of(
    model: Model,
    jacobian_NP: np.ndarray,
    weights_N: np.ndarray,
    theta_P: np.ndarray,
    bounds: tuple[np.ndarray, np.ndarray],
) -> np.ndarray:
    """(J^T W J)^-1 (p, p) over the coefficients that the data can move, J being the model's tangent."""
    lower, upper = bounds
    information = (jacobian_NP * weights_N[:, None]).T @ jacobian_NP
    diagonal = np.diag(information)
    inside = (theta_P > lower) & (theta_P < upper)
    if model.form.floor is not None:
        inside[model.form.floor] = True
    free = inside & (lower < upper) & (diagonal > 1e-18 * diagonal.max())
    covariance = np.zeros_like(information)
    root = np.sqrt(diagonal[free])
    scaled = information[np.ix_(free, free)] / np.outer(root, root)
    covariance[np.ix_(free, free)] = np.linalg.pinv(scaled, rcond=1e-14, hermitian=True) / np.outer(root, root)
    return covariance
