"""Each run's pull on a law: what leaving it, or all runs of one size, out would do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diloco.laws.problem import EXACT_NOISE, Problem, Solution, covariance_of, is_exact, variance_along
from diloco.laws.spread import is_level, levels

_SHOWN = 10
_MOST_SIZES = 12
"""A size axis with more levels is a continuous one: its levels are single runs."""


@dataclass(frozen=True)
class Influence:
    """What leaving one run, or all runs of one size, out would do (closed form at the optimum)."""

    what: str
    index: int | None
    error_pct: float
    """How far it lies off the law without it; positive above, where a hold-out's bias is negative."""
    z: float
    """That error in standard deviations of a new run."""
    moves: dict[str, float]
    """Exponent, under its axis's name and with its real sign -> how far it moves, in its standard errors."""

    @property
    def largest_move(self) -> float:
        return max((abs(value) for value in self.moves.values()), default=0.0)


def influence(problem: Problem, solution: Solution, size_N: np.ndarray, labels: list[str]) -> tuple[Influence, ...]:
    """The strongest pulls of single runs, then of whole sizes; runs left out of the fit come first with their z."""
    if not solution.dof > 1 or is_exact(solution.noise):
        return ()
    pull = _Pull(problem, solution)
    runs = [pull.of(labels[i], np.array([i])) for i in pull.candidates()]
    axis, found = problem.model.form.size_axis, levels(size_N)
    groups = (
        {value: np.flatnonzero(is_level(size_N, value)) for value in found} if 2 < found.size <= _MOST_SIZES else {}
    )
    sizes = [pull.of(f"all runs at {axis} {value:.4g}", rows) for value, rows in groups.items() if len(rows) > 1]
    return (*sorted(runs, key=lambda item: -abs(item.z)), *sorted(sizes, key=lambda item: -item.largest_move))


class _Pull:
    """Deletion at the optimum: with C = (J^T W J)^-1, theta moves by C J_g^T (I - H_gg)^-1 W r_g.

    Not the solution's own covariance, which is wider where another reading of the runs is held open.
    """

    def __init__(self, problem: Problem, solution: Solution) -> None:
        self.problem, self.solution = problem, solution
        weights_N = solution.weights_N
        self.jacobian_NP = problem.model.tangent(solution.theta_P[None])[1][0]
        self.scaled_NP = self.jacobian_NP * np.sqrt(weights_N)[:, None]
        self.residual_N = solution.residual_N * np.sqrt(weights_N)
        self.c_PP = covariance_of(problem.model, self.jacobian_NP, weights_N, solution.theta_P, problem.bounds)

    def candidates(self) -> list[int]:
        """Rows with the largest deleted residuals, rows left out first."""
        leverage_N = variance_along(self.scaled_NP, self.c_PP)
        deleted = np.abs(self.residual_N) / np.sqrt(np.maximum(1 - leverage_N, 1e-9))
        deleted[list(self.solution.outlier_z)] = np.inf
        return [int(i) for i in np.argsort(-deleted, kind="stable")[: max(_SHOWN, len(self.solution.outlier_z))]]

    def of(self, what: str, rows: np.ndarray) -> Influence:
        hat = self.scaled_NP[rows] @ self.c_PP @ self.scaled_NP[rows].T
        solved = np.linalg.pinv(np.eye(len(rows)) - hat, rcond=1e-9, hermitian=True) @ self.residual_N[rows]
        move_P = self.c_PP @ self.scaled_NP[rows].T @ solved
        error_N = -(self.solution.residual_N[rows] + self.jacobian_NP[rows] @ move_P)
        worst = int(np.argmax(np.abs(error_N)))
        index = int(rows[0]) if len(rows) == 1 else None
        proven = self.solution.outlier_z.get(index) if index is not None else None
        if proven is not None:
            z = proven * np.sign(error_N[0])
        else:
            leverage = np.diag(hat)[worst]
            spread = np.sqrt(1 + max(leverage / max(1 - leverage, 1e-9), 0))
            z = error_N[worst] / max(self._noise_without(rows, solved) * spread, EXACT_NOISE)
        with np.errstate(over="ignore"):
            error_pct = float(100 * np.expm1(error_N[worst]))
        return Influence(what, index, error_pct, float(z), self._in_errors(move_P))

    def _noise_without(self, rows: np.ndarray, solved: np.ndarray) -> float:
        left = max((self.residual_N**2).sum() - self.residual_N[rows] @ solved, 0.0)
        dof = self.solution.dof - self.solution.weights_N[rows].sum()
        return float(np.sqrt(left / dof)) if dof >= 1 else self.solution.noise

    def _in_errors(self, move_P: np.ndarray) -> dict[str, float]:
        """Each exponent's move in its standard errors; without those that have none."""
        form, names = self.problem.model.form, self.problem.model.names
        se_P = np.sqrt(np.diag(self.solution.covariance_PP))
        moves = {}
        for key, ((name, sign), *_) in form.coefficient_keys().items():
            i = names.index(name)
            if name in form.exponents and se_P[i] > 0:
                moves[key] = float(sign * move_P[i] / se_P[i])
        return moves
