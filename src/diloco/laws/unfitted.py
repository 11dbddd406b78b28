"""What varies between the runs while the form does not know it: a sentence for each kind, so that none is silent."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from diloco.laws import axes as ax
from diloco.laws.arguments import named, speaks_flags
from diloco.laws.budget import ONE_RATIO, SANE_RATIO, TokenRatio
from diloco.laws.forms import Form
from diloco.laws.relations import relation
from diloco.laws.rows import Rows

WATCHED = ("params", "tokens", "replicas", "sync_every", "fragments", "overlap")
"""Axes that the general forms take up where they vary. Learning rates and batches are tuned per run: not among them."""

_TUNED = ("inner_lr", "batch_tokens", "outer_lr")
_SWEPT_VALUES = 3
"""Values of a tuned column at one point of the other axes, from which on the table is a sweep."""

_TOLD = tuple(dict.fromkeys((*ax.SIZES, *WATCHED)))
"""Axes that are never left out of a form without a word. Tuned ones go with the size: that is what tuning is."""

_NO_CAUSE = (ax.LOSS, ax.LOSS_SE, ax.WEIGHT, ax.FRACTION_DONE, "seed", "bytes_sent", "seconds", "")
"""Numbers that are no cause of a loss, or are meant to vary."""

_REMARKS = ("source", "note", "notes", "comment", "date", "user", "host", "hostname", "machine")
"""Words that are about a run rather than a setting of it."""

_EXPLAINED = 0.95
"""Share of a column's variance that the form's axes must explain for it to follow them."""

_OF_LOSS = re.compile(r"loss|perplexity|ppl|pct|percent|accuracy|(^|_)(acc|score|bp[bc]|nll|error|gap|diff|delta)(_|$)")
"""In the name of a column that comes out of a run, unless its values come again, as those of a setting do."""

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


def together_notes(rows: Rows, form: Form, target: str) -> list[str]:
    """For each axis that the form does not know and that moves as one with those it does."""
    columns = {axis: rows.column(axis) for axis in form.axes}
    known = {*_determined(form), target}
    notes = []
    for name in rows.varying([name for name in _TOLD if name not in known]):
        follows = relation(name, columns | {name: rows.column(name)}, form.axes, _EXPLAINED)
        if follows and len(follows.powers) == 1:
            # The one that people think of as following: tokens = 20 * params, whichever the form knows.
            first, last = sorted((name, follows.leaders), key=[*_TOLD, *form.axes].index)
            follows = relation(last, columns | {name: rows.column(name)}, [first], _EXPLAINED)
        if follows:
            exactly = follows.off < ONE_RATIO
            how = f"{follows}, as in every run" if exactly else f"the runs' own relation, about {follows}"
            notes.append(f"the law holds only along {how}: what {follows.axes} each do was not varied apart")
    return notes


def unit_notes(ratio: TokenRatio | None) -> list[str]:
    """Where tokens and parameters are so unlike in number that their units must be."""
    if ratio is None or (SANE_RATIO[0] <= ratio.high and ratio.low <= SANE_RATIO[1]):
        return []
    return [
        f"the runs have {ratio} tokens per parameter: are tokens counted in other units, such as billions, than params?"
    ]


def _determined(form: Form) -> set[str]:
    """What the form's axes know by definition: a size counted in another way, tokens by their number per parameter."""
    known = set(form.axes)
    known |= set(ax.SIZES) if known & set(ax.SIZES) else set()
    two_of_three = len(known & {"params", "tokens", "flops"}) > 1 or {"params", ax.TOKENS_PER_PARAM} <= known
    return known | ({"params", "tokens"} if two_of_three else set())


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
    """Numeric columns that vary and do not follow the form's axes; inputs that laws know first.

    Without those that come out of a run: another value in most rows, and signed or named after a result.
    """
    logs = [np.log(rows.column(axis)) for axis in form.axes]
    design = np.stack([np.ones(len(rows)), *logs], axis=1)
    if {"params", "tokens"} <= set(rows.numbers):
        known = {*known, "flops", ax.TOKENS_PER_PARAM}
    names = [name for name in rows.numbers if not {name, ax.canonical(name)} & known]
    found = []
    for name in sorted(names, key=lambda name: name not in ax.INPUTS):
        values = rows.numbers[name]
        some = np.isfinite(values)
        measured = np.unique(values[some]).size > some.sum() / 2
        if measured and ((values[some] < 0).any() or _OF_LOSS.search(name)):
            continue
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
    axes = [name for name in varied if name in rows.numbers and not rows.unusable(name)]
    if len(varied) == 1:
        vary = f"varies from {varied[first]}" if first in rows.numbers else f"varies ({varied[first]})"
        add = "add it, or " if axes else ""
        return f"{first} {vary} and is not in the form: its effect is counted as noise; {add}keep one value with {keep}"
    shown = ", ".join(f"{name} ({what})" for name, what in list(varied.items())[:_LISTED])
    more = f" and {len(varied) - _LISTED} more" if len(varied) > _LISTED else ""
    which = "those that matter" + (f" of {', '.join(axes[:_LISTED])}" if len(axes) < len(varied) else "")
    add = f"add {which}, or " if axes else ""
    return (
        f"{shown}{more} vary and are not in the form: their effect is counted as noise; {add}keep one value of each, "
        f"as in {keep}"
    )
