"""What a law's figures show, as plain lists that any plotting library can draw.

Three figures: the target against size with a curve per level of a second axis, contours of equal target with the
optimal frontier, and what splits of the runs predicted for the runs that they had not seen.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diloco.errors import BadInput
from diloco.laws.axes import TOKENS_PER_PARAM
from diloco.laws.budget import FLOPS_PER_PARAM_TOKEN
from diloco.laws.holdout import HoldOut, Split
from diloco.laws.law import Law
from diloco.laws.report import finite
from diloco.laws.spread import levels

NAMES = ("loss", "contours", "holdout")

BEYOND = 5.0
"""Times the largest run that curves go on for: far enough to see the interval open."""

MOST_CURVES = 6
_MARGIN = 1.15
_CURVE_POINTS = 90
_GRID_POINTS = 60
_BUDGETS = 24


def figures(law: Law) -> dict[str, Any]:
    """The figures "loss", "contours" and "holdout" of a law, JSON-ready; None for one that the law does not have."""
    return finite(dict(zip(NAMES, (loss_figure(law), contour_figure(law), holdout_figure(law)), strict=True)))


def loss_figure(law: Law) -> dict[str, Any]:
    """Curves of the target along the size axis, one per level of a second axis, and the runs with their residuals.

    Further axes follow the size along the curves as they do in the runs, by a power law of their own.
    """
    size, group = law.form.size_axis, _second_axis(law)
    runs = law.runs
    shown = _shown_levels(_values(law, group)) if group else np.array([np.nan])
    low, high = runs.ranges[size]
    x = np.geomspace(low, high * BEYOND, _CURVE_POINTS)
    residual_pct = 100 * (runs.target / runs.fitted - 1)
    return {
        "x_axis": size,
        "group_axis": group,
        "target": law.target,
        "level": law.level,
        "largest": high,
        "following": [axis for axis in _following(law, group) if np.ptp(np.log(runs.columns[axis])) > 1e-9],
        "curves": [_curve(law, x, group, value) for value in shown],
        "runs": [
            {
                "run": runs.labels[i],
                "x": runs.columns[size][i],
                "y": runs.target[i],
                "group": _nearest(shown, _values(law, group)[i]) if group else None,
                "residual_pct": residual_pct[i],
                "left_out": bool(runs.weight[i] == 0),
            }
            for i in range(len(runs.labels))
        ],
        "noise_pct": 100 * law.noise,
    }


def contour_figure(law: Law) -> dict[str, Any] | None:
    """The target over two axes, the runs, and where params and tokens both count, the optimum per budget of FLOPs.

    None for a law of one axis.
    """
    x_axis = law.form.size_axis
    y_axis = "tokens" if _knows_tokens(law) else _second_axis(law)
    if not y_axis:
        return None
    at = {axis: _usual(law.runs.columns[axis]) for axis in law.form.axes if axis not in (x_axis, y_axis)}
    at.pop(TOKENS_PER_PARAM, None)
    x = _padded(law.runs.columns[x_axis], BEYOND)
    y = _padded(_values(law, y_axis), BEYOND if y_axis == "tokens" else 1.0)
    curve = law.curve({x_axis: x[None, :], y_axis: y[:, None], **at})
    frontier, why_not = _frontier(law, x, y, at) if y_axis == "tokens" else (None, "")
    return {
        "x_axis": x_axis,
        "y_axis": y_axis,
        "target": law.target,
        "at": at,
        "x": x.tolist(),
        "y": y.tolist(),
        "value": curve.value.tolist(),
        "runs": {
            "run": list(law.runs.labels),
            "x": law.runs.columns[x_axis].tolist(),
            "y": _values(law, y_axis).tolist(),
            "value": law.runs.target.tolist(),
            "left_out": (law.runs.weight == 0).tolist(),
        },
        "y_levels": levels(_values(law, y_axis)).tolist(),
        "frontier": frontier,
        "why_no_frontier": why_not,
    }


def holdout_figure(law: Law) -> dict[str, Any] | None:
    """What each split of the hold-out, trained on the smaller runs, predicted for the larger ones.

    None for a law without splits.
    """
    if law.holdout is None or not law.holdout.splits:
        return None
    return {
        "size_axis": law.form.size_axis,
        "target": law.target,
        "level": law.holdout.level,
        "splits": [
            {
                "trained_to": split.trained_to,
                "trained": split.trained,
                "mean_error_pct": split.mean_error_pct,
                "runs": _predicted(law, law.holdout, split),
            }
            for split in law.holdout.splits
        ],
    }


def _predicted(law: Law, holdout: HoldOut, split: Split) -> list[dict[str, Any]]:
    size_N = law.runs.columns[law.form.size_axis]
    return [
        {
            "run": law.runs.labels[i],
            "size": size_N[i],
            "measured": law.runs.target[i],
            "predicted": value,
            "low": low,
            "high": high,
            "set_aside": i in holdout.set_aside,
        }
        for i, value, low, high in zip(split.runs, split.predicted, split.low, split.high, strict=True)
    ]


def _knows_tokens(law: Law) -> bool:
    return law.form.size_axis == "params" and bool({"tokens", TOKENS_PER_PARAM} & set(law.form.axes))


def _second_axis(law: Law) -> str:
    """The axis that tells curves apart: replicas before tokens per parameter before the others; "" without one."""
    per_param = [TOKENS_PER_PARAM] if _knows_tokens(law) else []
    for axis in ("replicas", *per_param, *law.form.axes):
        known = axis in law.form.axes or axis in per_param
        if known and axis != law.form.size_axis and levels(_values(law, axis)).size > 1:
            return axis
    return ""


def _values(law: Law, axis: str) -> np.ndarray:
    """(n,) of the runs; tokens and tokens per parameter from each other where the form knows one of them."""
    columns = law.runs.columns
    if axis == TOKENS_PER_PARAM and axis not in columns:
        return columns["tokens"] / columns["params"]
    if axis == "tokens" and axis not in columns:
        return columns[TOKENS_PER_PARAM] * columns["params"]
    return columns[axis]


def _following(law: Law, group: str) -> list[str]:
    set_by_group = {group, "tokens"} if group == TOKENS_PER_PARAM else {group}
    return [axis for axis in law.form.axes if axis != law.form.size_axis and axis not in set_by_group]


def _curve(law: Law, x: np.ndarray, group: str, value: float) -> dict[str, Any]:
    size = law.form.size_axis
    columns = {size: x}
    if group:
        columns[group] = np.full_like(x, value)
    if group == TOKENS_PER_PARAM:
        columns["tokens"] = value * x
    for axis in _following(law, group):
        log_x = np.log(law.runs.columns[size])
        slope, height = np.polyfit(log_x - log_x.mean(), np.log(law.runs.columns[axis]), 1)
        columns[axis] = np.exp(height + slope * (np.log(x) - log_x.mean()))
    curve = law.curve(columns)
    return {
        "group": float(value) if group else None,
        "x": x.tolist(),
        "value": curve.value.tolist(),
        "low": curve.new_low.tolist(),
        "high": curve.new_high.tolist(),
    }


def _shown_levels(values: np.ndarray) -> np.ndarray:
    found = levels(values)
    if found.size <= MOST_CURVES:
        return found
    return found[np.linspace(0, found.size - 1, MOST_CURVES).round().astype(int)]


def _nearest(shown: np.ndarray, value: float) -> float:
    return float(shown[np.argmin(np.abs(np.log(shown / value)))])


def _usual(values: np.ndarray) -> float:
    """The middle one of the levels."""
    found = levels(values)
    return float(found[(found.size - 1) // 2])


def _padded(values: np.ndarray, beyond: float) -> np.ndarray:
    """Over the runs and a margin, and `beyond` times the largest."""
    return np.geomspace(values.min() / max(beyond**0.25, _MARGIN), values.max() * max(beyond, _MARGIN), _GRID_POINTS)


def _frontier(law: Law, x: np.ndarray, y: np.ndarray, at: dict[str, float]) -> tuple[dict[str, Any] | None, str]:
    """Optima over budgets inside the figure, or why there are none."""
    budgets = FLOPS_PER_PARAM_TOKEN * np.geomspace(x[0] * y[0], x[-1] * y[-1], _BUDGETS)
    try:
        optima = [law.optimal(flops, FLOPS_PER_PARAM_TOKEN, **at) for flops in budgets]
    except BadInput as error:
        return None, str(error)
    inside = [best for best in optima if x[0] <= best.params <= x[-1] and y[0] <= best.tokens <= y[-1]]
    if not inside:
        return None, "the optimal sizes lie outside the picture"
    names = ("flops", "params", "params_low", "params_high", "tokens", "loss")
    return {name: [getattr(best, name) for best in inside] for name in names}, ""
