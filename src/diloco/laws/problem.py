"""A form bound to rows and a loss, and what a fit of it found."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from diloco.errors import BadInput
from diloco.laws.arguments import positive
from diloco.laws.model import Model
from diloco.laws.solve import huber

NO_EFFECT = 1e-9
"""Length of a column, as a share of what it could be, up to which its coefficient does nothing."""

LOSSES = ("robust", "mse", "huber")

EXACT_NOISE = 1e-7
"""Log residuals that are rounding: of numbers written with seven digits, or computed in single precision."""


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
        if not isinstance(self.loss, str) or self.loss not in LOSSES:
            raise BadInput(f"fit loss '{self.loss}' is not known: use one of {', '.join(LOSSES)}")
        positive("delta", self.delta, np.inf)

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
    scaled_NP = jacobian_NP * np.sqrt(weights_N)[:, None]
    length = np.linalg.norm(scaled_NP, axis=0)
    inside = (theta_P > lower) & (theta_P < upper)
    if model.form.floor is not None:
        inside[model.form.floor] = True
    free = inside & (lower < upper) & (length > NO_EFFECT * column_sizes(model, jacobian_NP, weights_N))
    covariance = np.zeros((len(length), len(length)))
    unit_NP = scaled_NP[:, free] / length[free]
    inverse = np.linalg.pinv(unit_NP.T @ unit_NP, rcond=1e-14, hermitian=True)
    covariance[np.ix_(free, free)] = inverse / np.outer(length[free], length[free])
    return covariance


def variance_along(jacobian_NP: np.ndarray, covariance_PP: np.ndarray) -> np.ndarray:
    """(n,): variance of the log of the law at points with these derivatives."""
    return np.einsum("np,pq,nq->n", jacobian_NP, covariance_PP, jacobian_NP)


def is_exact(noise: float) -> bool:
    """Whether a law fits its rows to rounding."""
    return noise < EXACT_NOISE


def column_sizes(model: Model, jacobian_NP: np.ndarray, weights_N: np.ndarray) -> np.ndarray:
    """(p,): about how long a column of the tangent is where its coefficient's term is all of the law.

    So that a coefficient without effect is told from one in large units, such as the b of params^(a + b*params).
    """
    count, q = model.mu_KQ.shape
    sizes = np.ones(jacobian_NP.shape[1])
    sizes[count : count + q] = np.abs(model.phi_KNQ).max(axis=(0, 1)) if q else sizes[count : count + q]
    if model.form.floor is not None:
        sizes[model.form.floor] = np.abs(jacobian_NP[:, model.form.floor]).max()
    return sizes * np.sqrt(max(float(weights_N.sum()), 0.0))
