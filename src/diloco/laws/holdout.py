"""How a law does on runs it has not seen: the largest size left out, then the two largest, then three.

A run that the law's own fit left out as an outlier must not decide how far off the law is, and a law must not choose
what it is tested on. So such runs are set aside, but not where the fit left them out together, by their size or along
another axis (see `misfits`), and the error with them is kept beside the one without.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from diloco.laws.influence import Influence, influence
from diloco.laws.misfits import doubtful
from diloco.laws.problem import EXACT_NOISE, Problem, Solution, variance_along
from diloco.laws.quantile import t_quantile
from diloco.laws.robust import fit_problem
from diloco.laws.spread import coarse_levels, is_level, levels, up_to

_MOST_SPLITS = 3
_LEAST_LEVELS = 3
"""Sizes that a law trained on fewer of them cannot extrapolate from."""


@dataclass(frozen=True)
class Split:
    """Trained on sizes up to `trained_to`, tested on all larger runs but those set aside.

    Errors are the law's against the measured value, in both signs; all but one are of the tested runs alone.
    """

    trained_to: float
    trained: int
    tested: int
    set_aside: int
    mean_error_pct: float
    mean_error_with_all_pct: float
    """With the runs set aside."""
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
    runs: tuple[int, ...]
    """All larger runs, by their places in the rows, and what the law trained without them says about each."""
    predicted: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class HoldOut:
    size_axis: str
    level: float
    """Of the splits' intervals."""
    splits: tuple[Split, ...]
    """The first leaves the largest size out, each further one a size more."""
    set_aside: tuple[int, ...]
    """Runs that are no test, by their places in the rows: outliers to the law, one here and one there."""
    influence: tuple[Influence, ...]
    """The runs and sizes that pull most, strongest first."""
    impossible: str = ""
    """Why there is no split, where there is none."""

    @property
    def error_pct(self) -> float:
        """Mean over the splits of their mean error. NaN without a split."""
        return float(np.mean([split.mean_error_pct for split in self.splits])) if self.splits else float("nan")


def hold_out(
    problem: Problem, solution: Solution, columns: Mapping[str, np.ndarray], labels: list[str], level: float
) -> HoldOut:
    """Splits along the form's size axis, and influence. Each split is its own fit, starts and outliers included."""
    axis = problem.model.form.size_axis
    size_N = columns[axis]
    doubts = doubtful(axis, columns, solution.outlier_z)
    aside = tuple(run for run in sorted(solution.outlier_z) if run not in doubts)
    largest = {*np.flatnonzero(is_level(size_N, size_N.max())).tolist()}
    if largest <= {*aside}:  # which leaves no test of the largest size
        aside = tuple(run for run in aside if run not in largest)
    logs_NA = np.log(np.stack([columns[axis] for axis in problem.model.form.axes], axis=1))
    splits = []
    for edge in coarse_levels(size_N)[-2::-1][:_MOST_SPLITS]:
        small_N = up_to(size_N, edge)
        if problem.weights_N[small_N].sum() > problem.free and levels(size_N[small_N]).size >= _LEAST_LEVELS:
            splits.append(_split(problem, logs_NA, small_N, float(edge), aside, level))
    why = "" if splits else f"holding out the largest {axis} leaves too few runs or fewer than {_LEAST_LEVELS} sizes"
    return HoldOut(axis, level, tuple(splits), aside, influence(problem, solution, size_N, labels), why)


def errors_pct(split: Split, target_N: np.ndarray, without: Collection[int] = ()) -> np.ndarray:
    """Signed errors in % on the larger runs of a split, but those `without`; `target_N` is of all rows."""
    kept = [place for place, run in enumerate(split.runs) if run not in without]
    predicted, runs = np.array(split.predicted)[kept], np.array(split.runs)[kept]
    return 100 * (predicted / target_N[runs] - 1)


def inside_share(split: Split, target_N: np.ndarray, without: Collection[int] = ()) -> float:
    """Of the same runs, those inside the law's own interval."""
    kept = [place for place, run in enumerate(split.runs) if run not in without]
    target, rounding = target_N[np.array(split.runs)[kept]], np.exp(EXACT_NOISE)
    low, high, value = (np.array(ends)[kept] for ends in (split.low, split.high, split.predicted))
    return float(
        ((np.minimum(low, value / rounding) <= target) & (target <= np.maximum(high, value * rounding))).mean()
    )


def _split(
    problem: Problem, logs_NA: np.ndarray, small_N: np.ndarray, edge: float, aside: tuple[int, ...], level: float
) -> Split:
    train, larger = np.flatnonzero(small_N), np.flatnonzero(~small_N)
    fit = fit_problem(problem.take(train))
    value, half = _answers(problem, fit, larger, level)
    counts = ~np.isin(larger, aside)
    test, kept = larger[counts], train[fit.weights_N > 0]
    error = value - problem.y_N[larger]
    carried, linear = _carried(problem, logs_NA, kept, test), _log_linear(problem, logs_NA, kept, test)
    with np.errstate(over="ignore"):
        return Split(
            trained_to=edge,
            trained=len(train),
            tested=len(test),
            set_aside=len(larger) - len(test),
            mean_error_pct=_mean_pct(error[counts]),
            mean_error_with_all_pct=_mean_pct(error),
            bias_pct=float(100 * np.expm1(error[counts]).mean()),
            inside_share=float((np.abs(error) <= np.maximum(half, EXACT_NOISE))[counts].mean()),
            half_width_pct=float(100 * np.expm1(half[counts]).mean()),
            carried_error_pct=_mean_pct(carried - problem.y_N[test]),
            log_linear_error_pct=_mean_pct(linear - problem.y_N[test]),
            runs=tuple(larger.tolist()),
            predicted=tuple(np.exp(value).tolist()),
            low=tuple(np.exp(value - half).tolist()),
            high=tuple(np.exp(value + half).tolist()),
        )


def _answers(problem: Problem, fit: Solution, rows: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """(n,): log of the law at these rows, and the half width of the interval of a new run."""
    value, jacobian = problem.model.take(rows).tangent(fit.theta_P[None])
    if fit.dof <= 0:
        return value[0], np.full(len(rows), np.inf)
    variance = fit.noise**2 + variance_along(jacobian[0], fit.covariance_PP)
    return value[0], t_quantile((1 + level) / 2, fit.dof) * np.sqrt(variance)


def _mean_pct(log_error: np.ndarray) -> float:
    return float(100 * np.abs(np.expm1(log_error)).mean())


def _carried(problem: Problem, logs_NA: np.ndarray, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    size = np.exp(logs_NA[train, problem.model.form.axes.index(problem.model.form.size_axis)])
    largest = train[is_level(size, size.max())]
    distance = np.abs(logs_NA[test][:, None] - logs_NA[largest][None]).sum(axis=2)
    return problem.y_N[largest][distance.argmin(axis=1)]


def _log_linear(problem: Problem, logs_NA: np.ndarray, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    root = np.sqrt(problem.weights_N[train])[:, None]
    center = logs_NA[train].mean(axis=0)
    design = np.concatenate([np.ones((len(logs_NA), 1)), logs_NA - center], axis=1)
    found = np.linalg.lstsq(design[train] * root, problem.y_N[train] * root[:, 0], rcond=1e-10)[0]
    return design[test] @ found
