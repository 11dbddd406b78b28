"""From rows to a law."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import numpy as np

import diloco
from diloco.errors import BadInput
from diloco.laws import axes as ax
from diloco.laws import notes as say
from diloco.laws.arguments import mapping, named, of_type, one_number, sane_level, whole
from diloco.laws.budget import token_ratio
from diloco.laws.certify import Certificate, certify
from diloco.laws.expressions import NUMBERS
from diloco.laws.forms import GENERAL, Form, resolve
from diloco.laws.holdout import HoldOut, hold_out
from diloco.laws.law import Law, Runs
from diloco.laws.misfits import misfits
from diloco.laws.model import bind, limits
from diloco.laws.problem import Problem, Solution, is_exact
from diloco.laws.quantile import t_quantile
from diloco.laws.relations import ON_RELATION, relations
from diloco.laws.robust import fit_problem
from diloco.laws.rows import Rows, read_rows
from diloco.laws.spread import COLLINEAR, moves_with
from diloco.laws.unfitted import WATCHED, constant_note, together_notes, unfitted_notes, unit_notes

_SURPRISE = 0.05
"""Chance that the runs of a clean table draw a remark."""


def fit_law(
    rows: Any,
    form: str | Form = "power-floor",
    *,
    target: str = ax.LOSS,
    loss: str = "robust",
    delta: float = 1e-3,
    fixed: Mapping[str, float] | None = None,
    use_loss_se: bool = False,
    level: float = 0.95,
    holdout: bool = True,
    seed: int = 0,
) -> Law:
    """Fit `form` to the logarithm of `target` over `rows`.

    Args:
        rows: whatever `read_rows` takes, or `Rows`.
        form: a name from `forms.names()`, an expression, or a `Form`.
        loss: "robust" (outliers left out and named, scale from the data), "mse", or "huber" with a fixed `delta`;
            all on the log residual, summed.
        fixed: coefficients of the expression that are given, not fitted.
        use_loss_se: weigh each run by its `loss_se` as 1 / (loss_se / loss)^2.
        level: of the intervals.
        holdout: False leaves out hold-out and influence, for repeated fits.
        seed: of the random starts that certify the fit.

    Raises:
        BadInput: rows that cannot be used, an unknown form, or fewer rows than coefficients.
    """
    level, seed = sane_level(level), whole("seed", seed)
    fixed = _given(fixed)
    of_type("form", form, (str, Form), "a name, an expression or a Form")
    of_type("target", target, str, "the name of a column")
    rows = read_rows(rows, target=target) if not isinstance(rows, Rows) else rows
    form = _resolved(rows, form, target)
    columns = {axis: rows.column(axis) for axis in form.axes}
    _refuse_beyond_numbers(rows, target)
    problem = _problem(rows, form, columns, target, loss, delta, fixed, use_loss_se)
    solution, certificate = _certified(problem, columns, seed)
    labels = [rows.label(i) for i in range(len(rows))]
    held = hold_out(problem, solution, columns, labels, level) if holdout else None
    fitted = np.exp(problem.y_N + solution.residual_N)
    ratio = token_ratio(rows, solution.weights_N > 0)
    runs = Runs(tuple(labels), columns, np.exp(problem.y_N), fitted, solution.weights_N, ratio)
    return Law(
        form=form,
        target=target,
        model=problem.model,
        theta_P=solution.theta_P,
        covariance_PP=solution.covariance_PP if solution.dof > 0 else np.full_like(solution.covariance_PP, np.nan),
        noise=solution.noise,
        dof=solution.dof,
        level=level,
        t=t_quantile((1 + level) / 2, solution.dof),
        runs=runs,
        certificate=certificate,
        holdout=held,
        notes=tuple(_notes(rows, form, runs, certificate, held, solution, target)),
        data_hash=rows.data_hash,
        settings={"loss": loss, "delta": delta, "fixed": fixed, "use_loss_se": use_loss_se, "seed": seed},
        versions=_versions(),
    )


def _resolved(rows: Rows, form: str | Form, target: str) -> Form:
    """The form over these rows. Raises BadInput for one that the rows or the target leave no sense."""
    if form in GENERAL and rows.gaps(["params"]):
        rows.column("params")  # which refuses: without it, a law of the other axes would pass for one in size
    form = resolve(form, general_axes(rows, target), rows.headers | {name: name for name in rows.numbers})
    if target in form.axes:
        raise BadInput(
            f"{named('form', form.expression)} has the target {target} as an axis, which would explain itself: take it "
            "out"
        )
    return form


def _certified(problem: Problem, columns: dict[str, np.ndarray], seed: int) -> tuple[Solution, Certificate]:
    """The fit with its certificate; begun again where a random start found a better optimum."""
    solution = fit_problem(problem)
    certificate, better = certify(problem, solution, columns, seed)
    if better is not None:
        solution = fit_problem(problem, np.stack([better, solution.theta_P]))
        certificate, _ = certify(problem, solution, columns, seed)
    return solution, certificate


def _problem(
    rows: Rows,
    form: Form,
    columns: dict[str, np.ndarray],
    target: str,
    loss: str,
    delta: float,
    fixed: Mapping[str, float],
    use_loss_se: bool,
) -> Problem:
    y_N = np.log(rows.column(target))
    weights = rows.column(ax.WEIGHT).astype(float) if ax.WEIGHT in rows.numbers else np.ones(len(rows))
    if use_loss_se:
        precision = (rows.column(target) / rows.column(ax.LOSS_SE)) ** 2
        weights = weights * precision / precision.mean()
    model = bind(form, columns, fixed)
    problem = Problem(model, y_N, weights, limits(model, y_N, fixed), loss, delta)
    if problem.free < 1:
        raise BadInput(f"{named('fixed', fixed)} gives every coefficient of {form.expression}: leave one out to fit")
    if len(rows) <= problem.free:
        raise BadInput(
            f"{len(rows)} rows cannot determine the {problem.free} coefficients of {form.expression}: "
            f"give at least {problem.free + 1} rows, or use a form with fewer coefficients"
        )
    return problem


def _given(fixed: Any) -> dict[str, float]:
    """Coefficients that are given, each one number. Raises BadInput for anything else."""
    return {
        name: one_number(f"fixed {name}", value) for name, value in mapping("fixed", fixed, "{'floor': 1.69}").items()
    }


def _refuse_beyond_numbers(rows: Rows, target: str) -> None:
    values = rows.column(target)
    for index in np.flatnonzero((values < NUMBERS[0]) | (values > NUMBERS[1]))[:1]:
        wanted = f"{NUMBERS[0]:g} to {NUMBERS[1]:g}"
        raise BadInput(f"{rows.label(index)}: {target} is {values[index]:g}, outside {wanted}: change its units")


def general_axes(rows: Rows, target: str = ax.LOSS) -> list[str]:
    """The axes that `power` and `power-floor` take: what varies, less what merely follows one or several of them."""
    taken: list[str] = []
    for axis in rows.varying([name for name in ax.INPUTS if name != target and name in WATCHED]):
        if all(abs(moves_with(rows.column(axis), rows.column(other))) < COLLINEAR for other in taken):
            taken.append(axis)
    follow = {found.axis for found in relations({a: rows.column(a) for a in taken}) if found.off <= ON_RELATION}
    return [axis for axis in taken if axis not in follow]


def _notes(
    rows: Rows,
    form: Form,
    runs: Runs,
    certificate: Certificate,
    held: HoldOut | None,
    solution: Solution,
    target: str,
) -> list[str]:
    residual_pct = {i: float(100 * np.expm1(-solution.residual_N[i])) for i in solution.outlier_z}
    exact = is_exact(solution.noise)
    if constant := constant_note(target, rows.column(target)):
        return [*rows.notes, *constant]
    notes = [*rows.notes, *(say.exact_notes(certificate) if exact else unfitted_notes(rows, form, target))]
    notes += together_notes(rows, form, target)
    notes += unit_notes(runs.tokens_per_param)
    notes += say.relation_notes(runs.columns)
    notes += say.certificate_notes(certificate, form, exact)
    notes += say.outlier_notes(solution.outlier_z, residual_pct, rows, exact)
    notes += [] if exact else say.rival_note(solution.rival_rows, solution.outlier_z, rows)
    if held and held.impossible:
        notes.append(say.no_holdout_note(held))
    found = misfits(form.size_axis, runs.columns, solution.outlier_z)
    notes += [str(misfit) for misfit in found]
    doubted = {run for misfit in found for run in misfit.runs}
    notes += say.set_aside_notes(held, solution.outlier_z, doubted, rows) if held else []
    if held and not exact:
        surprising_z = t_quantile(1 - _SURPRISE / (2 * len(rows)), solution.dof - 1)
        notes += say.holdout_notes(held, set(solution.outlier_z), target, surprising_z)
    return notes


def _versions() -> dict[str, str]:
    return {"diloco": diloco.__version__, "numpy": np.__version__, "python": platform.python_version()}
