"""Several forms on the same rows, ranked by what they say about runs they have not seen."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from diloco.errors import BadInput
from diloco.laws.arguments import named, of_type
from diloco.laws.axes import COUNTING_AXES, LOSS, TOKENS_PER_PARAM
from diloco.laws.fit import fit_law, general_axes
from diloco.laws.forms import Form, names, resolve
from diloco.laws.holdout import errors_pct, inside_share
from diloco.laws.law import Law
from diloco.laws.notes import percent
from diloco.laws.report import finite
from diloco.laws.rows import Rows, read_rows
from diloco.laws.unfitted import WATCHED

TOLERANCE = 1.5
"""Forms whose hold-out error is within this factor of the best cannot be told apart by it."""

_COUNTING_DISAGREES = 0.1
"""Between exponents under two ways to count parameters, from which on no claim about the exponent holds."""


@dataclass(frozen=True)
class Comparison:
    """Laws by mean hold-out error, best first, each knowing the others that the hold-out cannot tell from it."""

    laws: tuple[Law, ...]
    scores: dict[str, float]
    """Form -> what the ranking is by: mean hold-out error in % over the splits that all forms have, on equal runs."""
    set_aside: tuple[int, ...]
    """Runs that count for no form, by their places in the rows: most forms set them aside as outliers."""
    left_out: dict[str, str]
    """Form -> why it could not be fitted to these rows."""

    @property
    def best(self) -> Law:
        return self.laws[0]

    def table(self) -> list[dict[str, Any]]:
        """One line a form, JSON-ready."""
        return [finite(self._line(law)) for law in self.laws]

    def _line(self, law: Law) -> dict[str, Any]:
        largest = law.holdout.splits[0] if law.holdout and law.holdout.splits else None
        errors = errors_pct(largest, law.runs.target, self.set_aside) if largest else np.array([math.nan])
        return {
            "form": law.form.name,
            "expression": law.form.expression,
            "rms_residual_pct": law.rms_residual_pct,
            "holdout_error_pct": self.scores[law.form.name],
            "largest_out_error_pct": float(np.abs(errors).mean()),
            "largest_out_bias_pct": float(errors.mean()),
            "largest_out_inside_share": inside_share(largest, law.runs.target, self.set_aside) if largest else math.nan,
            "indistinguishable": law is self.best or law.form.name in {o.form.name for o in self.best.alternatives},
        }


def compare_forms(
    rows: Any, forms: str | Form | Sequence[str | Form] = (), *, target: str = LOSS, **settings: Any
) -> Comparison:
    """Fit each form (all that the rows have the axes for, if none are given) and rank them by hold-out.

    Args:
        rows, target, settings: as for `fit_law`.

    Raises:
        BadInput: no form can be fitted, with the reasons.
    """
    rows = read_rows(rows, target=target) if not isinstance(rows, Rows) else rows
    forms = [forms] if isinstance(forms, (str, Form)) else forms
    for form in forms:
        of_type("forms", form, (str, Form), "names, expressions or Forms")
    if not (asked := list(forms) or _applicable(rows, target)):
        raise BadInput(
            f"no form has its axes in these rows: of {', '.join(WATCHED)}, none varies by itself; give an expression "
            f"over their columns, as in {named('form', 'A*flops^a + floor')}"
        )
    laws, left_out = [], {}
    for form in asked:
        try:
            laws.append(fit_law(rows, form, target=target, **settings))
        except BadInput as error:
            left_out[form if isinstance(form, str) else form.name] = str(error)
    if not laws:
        reasons = "; ".join(dict.fromkeys(left_out.values()))
        raise BadInput(f"none of the forms {', '.join(left_out)} can be fitted to these rows: {reasons}")
    aside = _set_aside(laws)
    scores = _scores(laws, aside)
    laws = [_noting(law, scores[law.form.name], aside) for law in laws]
    laws.sort(key=lambda law: (math.isnan(scores[law.form.name]), scores[law.form.name]))
    within = [law for law in laws if scores[law.form.name] <= TOLERANCE * scores[laws[0].form.name]] or laws[:1]
    return Comparison(tuple(_knowing(law, within) for law in laws), scores, aside, left_out)


def _set_aside(laws: list[Law]) -> tuple[int, ...]:
    """The runs that more than half of the forms set aside: no form may choose by itself what it is ranked by, and none
    that fits too badly to see an outlier may bring it back for all."""
    held = [law.holdout for law in laws if law.holdout and law.holdout.splits]
    votes = Counter(run for holdout in held for run in holdout.set_aside)
    return tuple(sorted(run for run, count in votes.items() if count > len(held) / 2))


def _scores(laws: list[Law], aside: tuple[int, ...]) -> dict[str, float]:
    """Form -> mean hold-out error in % over the splits that every form has: fewer coefficients allow harder splits."""
    splits = {
        law.form.name: {
            split.trained_to: float(np.abs(errors_pct(split, law.runs.target, aside)).mean())
            for split in (law.holdout.splits if law.holdout else ())
        }
        for law in laws
    }
    some = [found for found in splits.values() if found]
    common = set.intersection(*map(set, some)) if some else set()
    return {
        name: float(np.mean([found[edge] for edge in common])) if common and found else math.nan
        for name, found in splits.items()
    }


def _noting(law: Law, score: float, aside: tuple[int, ...]) -> Law:
    """The law with a sentence on why its own hold-out error is not the one that it is ranked by, where it is not."""
    own = law.holdout_error_pct
    if math.isnan(score) or math.isnan(own) or percent(own) == percent(score):
        return law
    tested = {run for split in law.holdout.splits for run in split.runs}
    mine, theirs = tested & {*law.holdout.set_aside}, tested & {*aside}
    back, gone = sorted(mine - theirs), sorted(theirs - mine)
    why = [f"counts {_labels(law, back)}, which most forms keep in their own"] * bool(back)
    why += [f"leaves out {_labels(law, gone)}, as most forms do"] * bool(gone)
    why = why or ["is over the splits that every form has"]
    return replace(
        law,
        notes=(
            *law.notes,
            f"the comparison ranks this form by a hold-out error of {percent(score)} where its own is {percent(own)}: "
            f"the comparison {' and '.join(why)}",
        ),
    )


def _labels(law: Law, runs: Sequence[int]) -> str:
    return ", ".join(law.runs.labels[run] for run in runs)


def _knowing(law: Law, within: list[Law]) -> Law:
    return replace(law, alternatives=tuple(other for other in within if other is not law)) if law in within else law


def _applicable(rows: Rows, target: str) -> list[str]:
    """Forms over every axis that varies by itself, and over no other; of equal forms the first."""
    varying, found, seen = general_axes(rows, target), [], set()
    derived = {TOKENS_PER_PARAM} if "tokens" in varying else set()
    for name in names() if varying else []:
        form = resolve(name, varying)
        shape = (form.bend, tuple(tuple(term.exponents.values()) for term in form.terms))
        missed = set(varying) - set(form.axes) - ({"tokens"} if TOKENS_PER_PARAM in form.axes else set())
        if name != "article" and shape not in seen and not missed and set(form.axes) <= set(varying) | derived:
            seen.add(shape)
            found.append(name)
    return found


def counting_table(rows: Any, form: str | Form = "power-floor", **settings: Any) -> dict[str, Any]:
    """The form under each way to count parameters that the rows have: exponent of size, hold-out error, and a verdict.

    Raises:
        BadInput: as for `fit_law`.
    """
    rows = read_rows(rows) if not isinstance(rows, Rows) else rows
    base = resolve(form, general_axes(rows))
    laws = {axis: fit_law(rows, base.with_axis("params", axis), **settings) for axis in COUNTING_AXES if rows.has(axis)}
    exponents = {axis: law.coefficients[axis] for axis, law in laws.items()}
    spread = max(exponents.values()) - min(exponents.values()) if exponents else 0.0
    if spread > _COUNTING_DISAGREES:
        verdict = f"exponents differ by {spread:.2f} between ways to count parameters: claim none without saying which"
    else:
        verdict = f"exponents agree within {spread:.2f} between ways to count parameters"
    errors = {axis: law.holdout_error_pct for axis, law in laws.items()}
    return finite({"exponents": exponents, "holdout_error_pct": errors, "spread": spread, "verdict": verdict})
