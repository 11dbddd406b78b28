"""What varies between the runs while the form does not know it: a sentence for each kind, so that none is silent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diloco.laws import axes as ax
from diloco.laws.arguments import named, speaks_flags
from diloco.laws.budget import ONE_RATIO
from diloco.laws.forms import Form
from diloco.laws.rows import Rows
from diloco.laws.spread import COLLINEAR, moves_with

WATCHED = ("params", "tokens", "replicas", "sync_every", "fragments", "overlap")
"""Axes that the general forms take up where they vary. Learning rates and batches are tuned per run: not among them."""

_TUNED = ("inner_lr", "batch_tokens", "outer_lr")
_SWEPT_VALUES = 3
"""Values of a tuned column at one point of the other axes, from which on the table is a sweep."""

_NO_CAUSE = (ax.LOSS, ax.LOSS_SE, ax.WEIGHT, ax.FRACTION_DONE, "seed", "bytes_sent", "seconds", "")
"""Numbers that are no cause of a loss, or are meant to vary."""

_REMARKS = ("source", "note", "notes", "comment", "date", "user", "host", "hostname", "machine")
"""Words that are about a run rather than a setting of it."""

_EXPLAINED = 0.95
"""Share of a column's variance that the form's axes must explain for it to follow them."""

_SAME = 1e-9
_LISTED = 8


def unfitted_notes(rows: Rows, form: Form, target: str) -> list[str]:
    """Sentences for columns with gaps, for a sweep, and for the columns that vary unknown to the form."""
    watched = [name for name in WATCHED if name not in form.axes and name != target]
    gaps = rows.gaps(watched)
    notes = [_gap_note(rows, axis, which) for axis, which in gaps.items()]
    swept = _swept(rows, form)
    notes += [_sweep_note(rows, swept)] if swept else []
    known = {*form.axes, *_NO_CAUSE, *gaps, *swept, target}
    varied = {name: _range(rows.numbers[name]) for name in _varied(rows, form, known)}
    varied |= {name: _words(rows.texts[name]) for name in _varied_texts(rows, known)}
    return [*notes, _varied_note(rows, varied)] if varied else notes


def together_note(rows: Rows, form: Form) -> list[str]:
    """For a form that knows one of params and tokens, where these two move as one."""
    known = {"params", "tokens"} & set(form.axes)
    usable = rows.varying(["params", "tokens"])
    if len(known) != 1 or len(usable) < 2 or {ax.TOKENS_PER_PARAM, "flops"} & set(form.axes):
        return []
    params, tokens = rows.column("params"), rows.column("tokens")
    if moves_with(params, tokens) < COLLINEAR:
        return []
    ratio = tokens / params
    if np.ptp(np.log(ratio)) < ONE_RATIO:
        relation = f"tokens = {np.median(ratio):.3g} * params, as in every run"
    else:
        relation = f"the runs' own relation, {ratio.min():.3g} to {ratio.max():.3g} tokens per parameter"
    return [f"the law holds only along {relation}: what tokens and params each do was not varied apart"]


def constant_note(target: str, values: np.ndarray) -> list[str]:
    """For a target that is the same in all runs, which every law with a floor fits."""
    if np.ptp(np.log(values)) > _SAME:
        return []
    return [
        f"{target} is {values[0]:.4g} in each of the {len(values)} runs: there is nothing for a law to explain, and no "
        "coefficient is determined"
    ]


def _gap_note(rows: Rows, axis: str, which: Sequence[int]) -> str:
    empty = "empty" if np.isnan(rows.numbers[axis][which]).all() else "0 or empty"
    empty = "0" if (rows.numbers[axis][which] == 0).all() else empty
    value = rows.numbers[axis][next(i for i in range(len(rows)) if i not in which)]
    way_out = (
        f"choose rows of one value, as in {named('where', {axis: float(value)})}"
        if empty == "0"
        else "fill it in, or take those rows out"
    )
    return (
        f"{axis} is {empty} in {rows.named(which)}, so that the form cannot have it as an axis: as far as it differs "
        f"between runs, its effect is counted as noise; {way_out}"
    )


def _swept(rows: Rows, form: Form) -> dict[str, int]:
    """Tuned column -> most values that it takes at one point of the form's axes; empty where the table is no sweep."""
    axes = [np.round(np.log(rows.column(axis)), 6) for axis in form.axes]
    _, point = np.unique(np.stack(axes, axis=1), axis=0, return_inverse=True)
    points = [np.flatnonzero(point.ravel() == value) for value in range(point.max() + 1)]
    found = {}
    for name in _TUNED:
        if name not in form.axes and name in rows.varying([name]):
            counts = [np.unique(rows.column(name)[which]).size for which in points]
            if np.median(counts) > 1:
                found[name] = max(counts)
    return found if max(found.values(), default=0) >= _SWEPT_VALUES else {}


def _sweep_note(rows: Rows, swept: dict[str, int]) -> str:
    listed = ", ".join(f"{count} values of {name}" for name, count in swept.items())
    tool = named("hyperparameters", "rates.json") if speaks_flags() else "fit_hyperparameters(rows).best_runs()"
    can = all(rows.has(name) and not rows.unusable(name) for name in ("params", "replicas", "batch_tokens", "inner_lr"))
    way_out = f"fit the best of each with {tool}" if can else "keep the best run of each"
    return (
        f"the runs are a sweep (up to {listed} where the form's axes are the same), and those off the optimum lie "
        f"above the law of tuned runs: {way_out}"
    )


def _varied(rows: Rows, form: Form, known: set[str]) -> list[str]:
    """Numeric columns that vary and do not follow the form's axes; inputs that laws know first."""
    logs = [np.log(rows.column(axis)) for axis in form.axes]
    design = np.stack([np.ones(len(rows)), *logs], axis=1)
    if {"params", "tokens"} <= set(rows.numbers):
        known = {*known, "flops", ax.TOKENS_PER_PARAM}
    names = [name for name in rows.numbers if not {name, ax.canonical(name)} & known]
    found = []
    for name in sorted(names, key=lambda name: name not in ax.INPUTS):
        values = rows.numbers[name]
        some = np.isfinite(values)
        if not some.any() or np.ptp(values[some]) <= _SAME * np.abs(values[some]).max() or _is_counter(values):
            continue
        y = np.log(values[some]) if (values[some] > 0).all() else values[some]
        left = y - design[some] @ np.linalg.lstsq(design[some], y, rcond=1e-10)[0]
        if left.var() > (1 - _EXPLAINED) * y.var():
            found.append(name)
    return found


def _is_counter(values: np.ndarray) -> bool:
    """Whether it numbers the rows."""
    return bool(len(values) > 2 and (np.diff(values) == 1).all())


def _varied_texts(rows: Rows, known: set[str]) -> list[str]:
    """Text columns of a few values, each in several rows: settings, where names and dates differ in every row."""
    settings = [name for name in rows.texts if name not in (*ax.TEXTS, *_REMARKS, *known)]
    kinds = {name: len(set(rows.texts[name]) - {""}) for name in settings}
    return [name for name, count in kinds.items() if 1 < count <= len(rows) / 2]


def _range(values: np.ndarray) -> str:
    return f"{np.nanmin(values):.4g} to {np.nanmax(values):.4g}"


def _words(cells: Sequence[str]) -> str:
    found = list(dict.fromkeys(cell for cell in cells if cell))
    return ", ".join(found[:3]) + ", ..." * (len(found) > 3)


def _varied_note(rows: Rows, varied: dict[str, str]) -> str:
    first = next(iter(varied))
    value = next(cell for cell in rows.texts[first] if cell) if first in rows.texts else np.nanmax(rows.numbers[first])
    keep = named("where", {first: value if isinstance(value, str) else float(value)})
    if len(varied) == 1:
        vary = f"varies from {varied[first]}" if first in rows.numbers else f"varies ({varied[first]})"
        counted_as = "its effect is counted as noise; add it, or keep one value with"
        return f"{first} {vary} and is not in the form: {counted_as} {keep}"
    shown = ", ".join(f"{name} ({what})" for name, what in list(varied.items())[:_LISTED])
    more = f" and {len(varied) - _LISTED} more" if len(varied) > _LISTED else ""
    return (
        f"{shown}{more} vary and are not in the form: their effect is counted as noise; add those that matter, or keep "
        f"one value of each, as in {keep}"
    )
