"""How a law does on runs it has not seen: the largest size, ordered splits, and each run's pull on the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from diloco.laws.problem import Problem, Solution, covariance_of
from diloco.laws.quantile import t_quantile
from diloco.laws.robust import fit_problem
from diloco.laws.spread import levels

_MOST_SPLITS = 3
_MOST_LEVELS = 12
"""Of the size axis; a finer one is cut at quantiles."""

_LEAST_LEVELS = 3
"""Sizes that a law trained on fewer of them cannot extrapolate from."""

_SHOWN = 10

EXACT_NOISE = 1e-7
"""Log residuals that are rounding: of numbers written with seven digits, or computed in single precision."""


@dataclass(frozen=True)
class Split:
    """Trained on sizes up to `trained_to`, tested on all larger runs. Errors: the law against the measured value."""

    trained_to: float
    trained: int
    tested: int
    mean_error_pct: float
    bias_pct: float
    """Negative: the law promised too little loss."""
    inside_share: float
    """Of the tested runs, those inside the law's own interval."""
    half_width_pct: float
    """Mean half width of that interval."""
    carried_error_pct: float
    """Mean error of the dumb baseline: the nearest run of the largest trained size, carried over. Both baselines know
    the runs that the law does: none that it left out."""
    log_linear_error_pct: float
    """Mean error of the other one: a power of every axis without a floor."""


@dataclass(frozen=True)
class Influence:
    """What leaving one run, or all runs of one size, out would do (closed form at the optimum)."""

    what: str
    index: int | None
    error_pct: float
    """Of the law without it, on it."""
    z: float
    """That error in standard deviations of a new run."""
    moves: dict[str, float]
    """Exponent, under its axis's name and with its real sign -> how far it moves, in its standard errors."""

    @property
    def largest_move(self) -> float:
        return max((abs(value) for value in self.moves.values()), default=0.0)


@dataclass(frozen=True)
class HoldOut:
    size_axis: str
    splits: tuple[Split, ...]
    """The first leaves the largest size out, each further one a size more."""
    influence: tuple[Influence, ...]
    """The runs and sizes that pull most, strongest first."""
    impossible: str = ""
    """Why there is no split, where there is none."""

    @property
    def error_pct(self) -> float:
        """Mean over the splits of their mean error: what forms are compared by. NaN without a split."""
        return float(np.mean([split.mean_error_pct for split in self.splits])) if self.splits else float("nan")


def is_exact(noise: float) -> bool:
    """Whether a law fits its rows to rounding."""
    return noise < EXACT_NOISE


def hold_out(
    problem: Problem,
    solution: Solution,
    columns: Mapping[str, np.ndarray],
    labels: list[str],
    level: float,
) -> HoldOut:
    """Splits along the form's size axis, and influence. Each split is its own fit, starts and outliers included."""
    axis = problem.model.form.size_axis
    edges = _edges(columns[axis])
    splits = []
    for edge in edges[-2::-1][:_MOST_SPLITS]:
        train = np.flatnonzero(columns[axis] <= edge * (1 + 1e-9))
        enough = problem.weights_N[train].sum() > problem.free and levels(columns[axis][train]).size >= _LEAST_LEVELS
        if enough:
            splits.append(_split(problem, columns, train, float(edge), level))
    why = "" if splits else f"holding out the largest {axis} leaves too few runs or fewer than {_LEAST_LEVELS} sizes"
    return HoldOut(axis, tuple(splits), influence(problem, solution, columns[axis], labels), why)


def _edges(size_N: np.ndarray) -> np.ndarray:
    found = levels(size_N)
    if found.size <= _MOST_LEVELS:
        return found
    return levels(np.quantile(size_N, np.linspace(0, 1, _MOST_LEVELS + 1)[1:], method="lower"))


def _split(problem: Problem, columns: Mapping[str, np.ndarray], train: np.ndarray, edge: float, level: float) -> Split:
    test = np.setdiff1d(np.arange(len(problem.y_N)), train)
    part = problem.take(train)
    fit = fit_problem(part)
    value, jacobian = problem.model.take(test).tangent(fit.theta_P[None])
    error = value[0] - problem.y_N[test]
    spread = np.einsum("np,pq,nq->n", jacobian[0], fit.covariance_PP, jacobian[0])
    half = (
        t_quantile((1 + level) / 2, fit.dof) * np.sqrt(fit.noise**2 + spread)
        if fit.dof > 0
        else np.full(len(test), np.inf)
    )
    logs = np.log(np.stack([columns[axis] for axis in problem.model.form.axes], axis=1))
    kept = train[fit.weights_N > 0]
    carried, linear = _carried(problem, logs, kept, test), _log_linear(problem, logs, kept, test)
    return Split(
        trained_to=edge,
        trained=len(train),
        tested=len(test),
        mean_error_pct=_mean_pct(error),
        bias_pct=float(100 * np.expm1(error).mean()),
        inside_share=float((np.abs(error) <= np.maximum(half, EXACT_NOISE)).mean()),
        half_width_pct=float(100 * np.expm1(half).mean()),
        carried_error_pct=_mean_pct(carried - problem.y_N[test]),
        log_linear_error_pct=_mean_pct(linear - problem.y_N[test]),
    )


def _mean_pct(log_error: np.ndarray) -> float:
    with np.errstate(over="ignore"):
        return float(100 * np.abs(np.expm1(log_error)).mean())


def _carried(problem: Problem, logs_NA: np.ndarray, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    size = logs_NA[:, problem.model.form.axes.index(problem.model.form.size_axis)]
    largest = train[size[train] >= size[train].max() - 1e-6]
    distance = np.abs(logs_NA[test][:, None] - logs_NA[largest][None]).sum(axis=2)
    return problem.y_N[largest][distance.argmin(axis=1)]


def _log_linear(problem: Problem, logs_NA: np.ndarray, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    root = np.sqrt(problem.weights_N[train])[:, None]
    center = logs_NA[train].mean(axis=0)
    design = np.concatenate([np.ones((len(logs_NA), 1)), logs_NA - center], axis=1)
    found = np.linalg.lstsq(design[train] * root, problem.y_N[train] * root[:, 0], rcond=1e-10)[0]
    return design[test] @ found


def influence(problem: Problem, solution: Solution, size_N: np.ndarray, labels: list[str]) -> tuple[Influence, ...]:
    """The strongest pulls of single runs, then of whole sizes; runs left out of the fit come first with their z."""
    _, jacobian = problem.model.tangent(solution.theta_P[None])
    if not solution.dof > 1 or is_exact(solution.noise):
        return ()
    pull = _Pull(problem, solution, jacobian[0])
    runs = [pull.of(labels[i], np.array([i])) for i in pull.candidates(_SHOWN)]
    found = levels(size_N)
    axis = problem.model.form.size_axis
    groups = {value: np.flatnonzero(np.abs(np.log(size_N / value)) < 1e-6) for value in found}
    sizes = [
        pull.of(f"all runs at {axis} {value:.4g}", rows)
        for value, rows in (groups.items() if 2 < found.size <= _MOST_LEVELS else ())
        if len(rows) > 1
    ]
    ordered = sorted(runs, key=lambda item: -abs(item.z)) + sorted(sizes, key=lambda item: -item.largest_move)
    return tuple(item for item in ordered if item.what)


class _Pull:
    """Deletion at the optimum: with C = (J^T W J)^-1, theta moves by C J_g^T (I - H_gg)^-1 W r_g.

    Not the solution's own covariance, which is wider where another reading of the runs is held open.
    """

    def __init__(self, problem: Problem, solution: Solution, jacobian_NP: np.ndarray) -> None:
        self.problem, self.solution = problem, solution
        root = np.sqrt(solution.weights_N)
        self.scaled_NP = jacobian_NP * root[:, None]
        self.residual_N = solution.residual_N * root
        self.jacobian_NP = jacobian_NP
        weights = solution.weights_N
        self.c_PP = covariance_of(problem.model, jacobian_NP, weights, solution.theta_P, problem.bounds)
        self.leverage_N = np.einsum("np,pq,nq->n", self.scaled_NP, self.c_PP, self.scaled_NP)

    def candidates(self, count: int) -> list[int]:
        """Rows with the largest deleted residuals, rows left out first."""
        deleted = np.abs(self.residual_N) / np.sqrt(np.maximum(1 - self.leverage_N, 1e-9))
        deleted[list(self.solution.outlier_z)] = np.inf
        return [int(i) for i in np.argsort(-deleted, kind="stable")[: max(count, len(self.solution.outlier_z))]]

    def of(self, what: str, rows: np.ndarray) -> Influence:
        solution = self.solution
        hat = self.scaled_NP[rows] @ self.c_PP @ self.scaled_NP[rows].T
        solved = np.linalg.pinv(np.eye(len(rows)) - hat, rcond=1e-9, hermitian=True) @ self.residual_N[rows]
        move_P = self.c_PP @ self.scaled_NP[rows].T @ solved
        left = np.maximum((self.residual_N**2).sum() - self.residual_N[rows] @ solved, 0.0)
        dof = max(solution.dof - solution.weights_N[rows].sum(), 1e-9)
        noise = np.sqrt(left / dof) if dof >= 1 else solution.noise
        error_N = -(solution.residual_N[rows] + self.jacobian_NP[rows] @ move_P)
        spread = noise * np.sqrt(1 + np.maximum(np.diag(hat) / np.maximum(1 - np.diag(hat), 1e-9), 0))
        worst = int(np.argmax(np.abs(error_N)))
        se = np.sqrt(np.diag(solution.covariance_PP))
        model = self.problem.model
        moves = {
            key: float(sign * move_P[i] / se[i])
            for key, ((name, sign), *_) in model.form.coefficient_keys().items()
            if name in model.form.exponents and se[i := model.names.index(name)] > 0
        }
        z = solution.outlier_z.get(int(rows[0])) if len(rows) == 1 else None
        z = z * np.sign(error_N[0]) if z is not None else error_N[worst] / max(spread[worst], EXACT_NOISE)
        index = int(rows[0]) if len(rows) == 1 else None
        return Influence(what, index, float(100 * np.expm1(error_N[worst])), float(z), moves)
