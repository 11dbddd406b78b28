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
from diloco.laws.arguments import named, sane_level
from diloco.laws.certify import certify
from diloco.laws.forms import GENERAL, Form, resolve
from diloco.laws.holdout import hold_out, is_exact
from diloco.laws.law import Law, Runs
from diloco.laws.model import bind, limits
from diloco.laws.problem import Problem, Solution
from diloco.laws.quantile import t_quantile
from diloco.laws.robust import fit_problem
from diloco.laws.rows import Rows, read_rows

_WATCHED = ("params", "tokens", "replicas", "sync_every", "fragments", "overlap")
"""Columns that must not vary unnoticed. Learning rates and batches are tuned per run, and so not among them."""

_EXPLAINED = 0.95
"""Share of a column's variance that the form's axes must explain for it to follow them."""

_COLLINEAR = 0.98
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
    sane_level(level)
    if seed < 0:
        raise BadInput(f"{named('seed', seed)} is below 0: give 0 or more")
    rows = read_rows(rows, target=target) if not isinstance(rows, Rows) else rows
    if form in GENERAL and rows.gaps(["params"]):
        rows.column("params")  # which refuses: without it, a law of the other axes would pass for one in size
    form = resolve(form, general_axes(rows, target), rows.headers | {name: name for name in rows.numbers})
    if target in form.axes:
        raise BadInput(
            f"{named('form', form.expression)} has the target {target} as an axis, which would explain itself: take it "
            "out"
        )
    columns = {axis: rows.column(axis) for axis in form.axes}
    problem = _problem(rows, form, columns, target, loss, delta, fixed or {}, use_loss_se)
    solution = fit_problem(problem)
    certificate, better = certify(problem, solution, columns, seed)
    if better is not None:
        solution = fit_problem(problem, np.stack([better, solution.theta_P]))
        certificate, _ = certify(problem, solution, columns, seed)
    labels = [rows.label(i) for i in range(len(rows))]
    held = hold_out(problem, solution, columns, labels, level) if holdout else None
    fitted = np.exp(problem.y_N + solution.residual_N)
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
        runs=Runs(tuple(labels), columns, np.exp(problem.y_N), fitted, solution.weights_N),
        certificate=certificate,
        holdout=held,
        notes=tuple(_notes(rows, form, certificate, held, solution, target)),
        data_hash=rows.data_hash,
        settings={"loss": loss, "delta": delta, "fixed": dict(fixed or {}), "use_loss_se": use_loss_se, "seed": seed},
        versions=_versions(),
    )


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
        raise BadInput(
            f"{named('fixed', dict(fixed))} gives every coefficient of {form.expression}: leave one out to fit"
        )
    if len(rows) <= problem.free:
        raise BadInput(
            f"{len(rows)} rows cannot determine the {problem.free} coefficients of {form.expression}: "
            f"give at least {problem.free + 1} rows, or use a form with fewer coefficients"
        )
    return problem


def general_axes(rows: Rows, target: str = ax.LOSS) -> list[str]:
    """The axes that `power` and `power-floor` take: what varies, less what merely follows what is already taken."""
    taken: list[str] = []
    for axis in rows.varying([name for name in ax.INPUTS if name != target and name in _WATCHED]):
        logs = np.log(rows.column(axis))
        if all(abs(np.corrcoef(logs, np.log(rows.column(other)))[0, 1]) < _COLLINEAR for other in taken):
            taken.append(axis)
    return taken


def _notes(rows: Rows, form: Form, certificate: Any, held: Any, solution: Solution, target: str) -> list[str]:
    residual_pct = {i: float(100 * np.expm1(-solution.residual_N[i])) for i in solution.outlier_z}
    exact = is_exact(solution.noise)
    unknown = [name for name in _WATCHED if name not in form.axes and name != target]
    notes = say.column_notes(rows, _unexplained(rows, form, unknown), rows.gaps(unknown))
    notes += say.exact_notes(certificate) if exact else []
    notes += say.certificate_notes(certificate, form, exact)
    notes += say.outlier_notes(solution.outlier_z, residual_pct, rows, exact)
    notes += [] if exact else say.rival_note(solution.rival_rows, solution.outlier_z, rows)
    if held and held.impossible:
        notes.append(say.no_holdout_note(held))
    if held and not exact:
        surprising_z = t_quantile(1 - _SURPRISE / (2 * len(rows)), solution.dof - 1)
        notes += say.holdout_notes(held, set(solution.outlier_z), target, surprising_z)
    return notes


def _unexplained(rows: Rows, form: Form, unknown: list[str]) -> list[str]:
    logs = [np.log(rows.column(axis)) for axis in form.axes]
    design = np.stack([np.ones(len(rows)), *logs], axis=1)
    found = []
    for axis in rows.varying(unknown):
        values = np.log(rows.column(axis))
        left = values - design @ np.linalg.lstsq(design, values, rcond=1e-10)[0]
        if left.var() > (1 - _EXPLAINED) * values.var():
            found.append(axis)
    return found


def _versions() -> dict[str, str]:
    return {"diloco": diloco.__version__, "numpy": np.__version__, "python": platform.python_version()}
