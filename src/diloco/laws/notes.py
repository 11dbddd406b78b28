"""The sentences that go with a fit: whatever the numbers alone would keep silent."""

from __future__ import annotations

from diloco.laws.certify import Certificate
from diloco.laws.forms import Form
from diloco.laws.holdout import HoldOut
from diloco.laws.rows import Rows

_FEW_LEVELS = 3
_COLLINEAR = 0.98
_ILL_CONDITIONED = 1e4
_FEW_AGREE = 0.25
_FEW_DOF = 3
_INFLUENTIAL = 1.0


def certificate_notes(certificate: Certificate, form: Form) -> list[str]:
    notes = []
    for axis, count in certificate.levels.items():
        if count < _FEW_LEVELS:
            notes.append(
                f"{axis} takes only {count} value{'s' * (count > 1)}, through which any curve fits: the exponent says "
                f"nothing about values between or beyond; add runs at a third"
            )
    for pair, correlation in certificate.correlations.items():
        if abs(correlation) > _COLLINEAR:
            first, second = pair.split(", ")
            notes.append(
                f"{first} and {second} move together (correlation of logs {correlation:.3f}): their coefficients "
                f"cannot be told apart, and only predictions that keep the same relation hold; "
                f"add runs at other {second} per {first}"
            )
    for name in certificate.at_bound:
        notes.append(_bound_sentence(name, form))
    if certificate.condition > _ILL_CONDITIONED:
        notes.append(
            f"the fit is ill-conditioned ({certificate.condition:.1e}): coefficients trade off against each other, so "
            f"read predictions inside the runs' range, not single coefficients"
        )
    if certificate.agree_share < _FEW_AGREE:
        notes.append(
            f"only {certificate.agree_share:.0%} of {certificate.starts} random starts end at this optimum: the best "
            f"found may not be the best there is"
        )
    if not certificate.converged:
        notes.append("the solver stopped before it converged: take the coefficients as approximate")
    if 0 < certificate.dof < _FEW_DOF:
        notes.append(
            f"{certificate.rows - certificate.rows_left_out} runs leave {certificate.dof:g} degrees of freedom: the "
            f"intervals rest on almost no information about the noise; add runs or use a simpler form"
        )
    return notes


def _bound_sentence(name: str, form: Form) -> str:
    if name in form.amplitudes and form.amplitudes.index(name) == form.floor:
        return f"{name} went to 0, the least it may be: these runs show no floor, so far extrapolations may be too low"
    if name in form.amplitudes:
        return f"{name} went to 0: its term has no effect in these runs, so a form without it says the same"
    return f"{name} ended at the limit of its range: the runs do not determine it, so do not extrapolate along its axis"


def outlier_notes(outlier_z: dict[int, float], residual_pct: dict[int, float], rows: Rows) -> list[str]:
    """For the rows that were left out; `residual_pct` is the run above the law, as a share of the law."""
    notes = []
    for index, z in sorted(outlier_z.items()):
        side = "above" if residual_pct[index] > 0 else "below"
        notes.append(
            f"{rows.label(index)} was left out: it lies {abs(residual_pct[index]):.1f}% {side} the law of the other "
            f"runs ({z:.0f} standard deviations); look at that run"
        )
    return notes


def rival_note(rival_rows: tuple[int, ...], left_out: dict[int, float], rows: Rows) -> list[str]:
    """Where the runs allow another choice of which of them is foreign."""
    if not rival_rows:
        return []
    which = " and ".join(rows.label(i) for i in rival_rows)
    instead = "instead, the others would agree about as well" if left_out else "the others would agree much better"
    return [f"without {which} {instead}, which so few runs cannot settle: the intervals hold both readings"]


def holdout_notes(holdout: HoldOut, left_out: set[int], target: str, surprising_z: float) -> list[str]:
    """`surprising_z`: standard deviations that no clean run among so many should lie off."""
    notes = []
    if holdout.impossible:
        notes.append(f"no hold-out: {holdout.impossible}, so nothing here says how well the law extrapolates")
    for item in holdout.influence:
        if item.index is not None and item.index not in left_out and abs(item.z) > surprising_z:
            notes.append(
                f"{item.what} lies {abs(item.error_pct):.1f}% {'above' if item.error_pct > 0 else 'below'} the law of "
                f"the other runs ({abs(item.z):.0f} standard deviations) and was kept in the fit: look at it"
            )
        moved = {name: by for name, by in item.moves.items() if abs(by) > _INFLUENTIAL}
        if item.index is not None and item.index not in left_out and moved:
            by = ", ".join(f"{name} by {abs(value):.1f}" for name, value in moved.items())
            notes.append(f"{item.what} alone moves {by} standard errors: the answer hangs on that run")
    for split in holdout.splits[:1]:
        best = min(split.carried_error_pct, split.log_linear_error_pct)
        if split.mean_error_pct > best:
            which = "the last size carried over" if best == split.carried_error_pct else "a power law without a floor"
            notes.append(
                f"with the largest {holdout.size_axis} held out, {which} predicts its {target} better "
                f"({best:.2f}% against {split.mean_error_pct:.2f}%): do not trust this form beyond the runs"
            )
        if split.inside_share < 0.5:
            notes.append(
                f"with the largest {holdout.size_axis} held out, only {split.inside_share:.0%} of its runs lie inside "
                f"the law's interval: the form is wrong by more than the noise, so intervals are too narrow"
            )
    return notes


def column_notes(rows: Rows, form: Form, unexplained: list[str]) -> list[str]:
    """For columns that vary without the form knowing."""
    notes = list(rows.notes)
    for axis in unexplained:
        values = rows.column(axis)
        notes.append(
            f"{axis} varies from {values.min():.4g} to {values.max():.4g} and is not in the form: its effect is "
            f"counted as noise; add it, or keep one value with where"
        )
    return notes
