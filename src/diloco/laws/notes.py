"""The sentences that go with a fit: whatever the numbers alone would keep silent."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np

from diloco.laws.arguments import counted, named
from diloco.laws.certify import Certificate
from diloco.laws.forms import Form
from diloco.laws.holdout import HoldOut
from diloco.laws.relations import listed, relations
from diloco.laws.rows import Rows
from diloco.laws.spread import COLLINEAR, FEW_LEVELS

_ILL_CONDITIONED = 1e4
_FEW_AGREE = 0.25
_ROUNDING = 1e-9
_FEW_DOF = 3
_INFLUENTIAL = 1.0
_WORSE = 1.02
"""Factor over a baseline's error from which on a form does worse: under it, the same law was fitted by other means."""

_MANY_DEVIATIONS = 100
_MOST_PCT = 1000.0


def exact_notes(certificate: Certificate) -> list[str]:
    """For rows that a law fits to rounding, of whose noise nothing can be said."""
    return [
        f"the {certificate.rows - certificate.rows_left_out} runs fit this law exactly, as numbers computed from a "
        f"formula do and measured ones do not: intervals and standard deviations say nothing about real runs"
    ]


def certificate_notes(certificate: Certificate, form: Form, exact: bool = False) -> list[str]:
    """`exact`: the law fits to rounding, so that no other optimum can be better and the noise needs no runs."""
    notes = _design_notes(certificate)
    notes += [_bound_sentence(name, form) for name in certificate.at_bound]
    if certificate.confounded and not _follows(certificate):
        notes.append(_confounded_sentence(certificate.confounded))
    return notes if exact else [*notes, *_solver_notes(certificate)]


def _design_notes(certificate: Certificate) -> list[str]:
    """What the runs cannot say, lying where they lie."""
    notes = []
    for axis, count in certificate.levels.items():
        if count < FEW_LEVELS:
            notes.append(
                f"{axis} takes only {counted(count, 'value')}, through which any curve fits: the exponent says "
                f"nothing about values between or beyond; add runs at a third"
            )
    for pair, correlation in certificate.correlations.items():
        if abs(correlation) > COLLINEAR:
            first, second = pair.split(", ")
            notes.append(
                f"{first} and {second} move together (correlation of logs {correlation:.3f}): their coefficients "
                f"cannot be told apart, and only predictions that keep the same relation hold; "
                f"add runs at other {second} per {first}"
            )
    return notes


def relation_notes(columns: Mapping[str, np.ndarray]) -> list[str]:
    """For an axis of the form that follows several others; of one that follows one, the certificate tells."""
    return [
        f"{follows.axis} goes with {follows.leaders} together in the runs ({follows}): only predictions that keep this "
        f"relation hold; add runs off it"
        for follows in relations(columns)
        if len(follows.powers) > 1
    ]


def _solver_notes(certificate: Certificate) -> list[str]:
    """How far the optimum and the noise are known."""
    notes = []
    if certificate.condition > _ILL_CONDITIONED and not certificate.confounded:
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
        left = counted(certificate.dof, "degree of freedom", "degrees of freedom")
        notes.append(
            f"{certificate.rows - certificate.rows_left_out} runs leave {left}: the intervals rest on almost no "
            f"information about the noise; add runs or use a simpler form"
        )
    return notes


def _follows(certificate: Certificate) -> bool:
    """Whether two axes that are one already say why coefficients cannot be told apart."""
    return any(abs(correlation) > 1 - _ROUNDING for correlation in certificate.correlations.values())


def _confounded_sentence(names: tuple[str, ...]) -> str:
    last = names[-1]
    return (
        f"{listed(names)} cannot be told apart: moving them together changes none of the law's values, so that only "
        f"what they come to together is determined and none has an interval; leave one out of the form, or give it "
        f"with {named('fixed', {last: 1.0})}"
    )


def _bound_sentence(name: str, form: Form) -> str:
    if name in form.amplitudes and form.amplitudes.index(name) == form.floor:
        return f"{name} went to 0, the least it may be: these runs show no floor, so far extrapolations may be too low"
    if name in form.amplitudes:
        return f"{name} went to 0: its term has no effect in these runs, so a form without it says the same"
    return f"{name} ended at the limit of its range: the runs do not determine it, so do not extrapolate along its axis"


def outlier_notes(
    outlier_z: dict[int, float], residual_pct: dict[int, float], rows: Rows, exact: bool = False
) -> list[str]:
    """For the rows that were left out; `residual_pct` is the run above the law, as a share of the law."""
    notes = []
    for index, z in sorted(outlier_z.items()):
        side = "above" if residual_pct[index] > 0 else "below"
        how_far = "which those fit exactly" if exact else deviations(z)
        notes.append(
            f"{rows.label(index)} was left out: it lies {percent(residual_pct[index])} {side} the law of the other "
            f"runs ({how_far}); look at that run"
        )
    return notes


def rival_note(rival_rows: tuple[int, ...], left_out: dict[int, float], rows: Rows) -> list[str]:
    """Where the runs allow another choice of which of them is foreign."""
    if not rival_rows:
        return []
    which = " and ".join(rows.label(i) for i in rival_rows)
    instead = "instead, the others would agree about as well" if left_out else "the others would agree much better"
    return [f"without {which} {instead}, which so few runs cannot settle: the intervals hold both readings"]


def set_aside_notes(holdout: HoldOut, left_out: Iterable[int], doubted: Collection[int], rows: Rows) -> list[str]:
    """Which runs that the fit left out are no test of it, with both errors; and which are one all the same.

    `doubted` are those where the law may be what is wrong.
    """
    notes = []
    tested = {i for split in holdout.splits for i in split.runs}
    if aside := sorted(tested & {*holdout.set_aside}):
        count = len(holdout.splits)
        with_all = sum(split.mean_error_with_all_pct for split in holdout.splits) / count
        notes.append(
            f"the hold-out sets aside {rows.named(aside)}, which the fit left out: in the mean over its "
            f"{counted(count, 'split')} the law is {percent(holdout.error_pct)} off the other larger runs and "
            f"{percent(with_all)} with {'that one' if len(aside) == 1 else 'those'}"
        )
    counted_in = (tested & {*left_out}) - {*holdout.set_aside}
    for which, why in (
        (counted_in & {*doubted}, "there the law may be what is wrong"),
        (counted_in - {*doubted}, f"nothing else was run at the largest {holdout.size_axis}"),
    ):
        if which:
            notes.append(
                f"the hold-out counts {rows.named(sorted(which))}, which the fit left out, all the same: {why}"
            )
    return notes


def holdout_notes(holdout: HoldOut, left_out: set[int], target: str, surprising_z: float) -> list[str]:
    """`surprising_z`: standard deviations that no clean run among so many should lie off."""
    notes = []
    for item in holdout.influence:
        if item.index is not None and item.index not in left_out and abs(item.z) > surprising_z:
            notes.append(
                f"{item.what} lies {percent(item.error_pct)} {'above' if item.error_pct > 0 else 'below'} the law of "
                f"the other runs ({deviations(item.z)}) and was kept in the fit: look at it"
            )
        moved = {name: by for name, by in item.moves.items() if abs(by) > _INFLUENTIAL}
        if item.index is not None and item.index not in left_out and moved:
            by = " and ".join(f"of {name} by {abs(value):.1f}" for name, value in moved.items())
            notes.append(f"{item.what} alone moves the exponent {by} standard errors: the answer hangs on that run")
    for split in holdout.splits[:1]:
        best = min(split.carried_error_pct, split.log_linear_error_pct)
        if split.mean_error_pct > _WORSE * best:
            which = "the last size carried over" if best == split.carried_error_pct else "a power law without a floor"
            notes.append(
                f"with the largest {holdout.size_axis} held out, {which} predicts its {target} better "
                f"({percent(best)} against {percent(split.mean_error_pct)}): do not trust this form beyond the runs"
            )
        if split.inside_share < 0.5:
            notes.append(
                f"with the largest {holdout.size_axis} held out, only {split.inside_share:.0%} of its runs lie inside "
                f"the law's interval: the form is wrong by more than the noise, so intervals are too narrow"
            )
    return notes


def no_holdout_note(holdout: HoldOut) -> str:
    return f"no hold-out: {holdout.impossible}, so nothing here says how well the law extrapolates"


def percent(value: float) -> str:
    """ "1.4%", "0.002%" where tenths would show nothing, and no more than that where it says no more."""
    if abs(value) > _MOST_PCT:
        return f"more than {_MOST_PCT:g}%"
    return f"{abs(value):.1f}%" if abs(value) >= 1 else f"{abs(value):.2g}%"


def deviations(z: float) -> str:
    """ "4 standard deviations"; a count in the millions says no more than that it is far."""
    count = f"{abs(z):.0f}" if abs(z) <= _MANY_DEVIATIONS else f"more than {_MANY_DEVIATIONS}"
    return f"{count} standard deviations"
