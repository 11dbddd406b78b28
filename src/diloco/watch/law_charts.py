"""A scaling law's figures in Plotly, from the plain lists of `diloco.laws.figures`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from diloco import units
from diloco.watch import charts, page
from diloco.watch.law_words import (
    axis_title,
    axis_value,
    contour_caption,
    holdout_caption,
    loss_caption,
    noise_lines_pct,
    strip_edge_pct,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_MOST_TICKS = 8
_BAND_OPACITY = 0.12
_LINES = 16
_FLAT = 1e-6
"""Relative range under which a law is flat, and has no lines."""

_STRIP_MARGIN = 1.2
"""Times the strip's edge, so that what lies on the edge is drawn whole."""

_MOST_DECADES = 4
"""Up to which 2 and 5 are labelled between powers of ten; every digit would be too many."""

_STRIP = {"zeroline": True, "automargin": True, "title": {"standoff": 8, "font": {"size": 12}}, "nticks": 5}


def loss_chart(picture: dict[str, Any]) -> str:
    """The target against size, a curve and a band per level of the second axis, and the residuals under it."""
    figure = _with_strip(axis_title(picture["x_axis"]), picture["target"], "off the law, %")
    for index, curve in enumerate(picture["curves"]):
        _add_curve(figure, picture, curve, index)
        _add_runs(figure, picture, curve, index)
    for end in noise_lines_pct(picture):
        line = {"color": charts.NEUTRAL, "width": 1, "dash": "dot"}
        figure.add_shape(type="line", xref="paper", yref="y2", x0=0, x1=1, y0=end, y1=end, line=line)
    _log_axis(figure, "x", [x for curve in picture["curves"] for x in curve["x"]])
    heights = [run["y"] for run in picture["runs"]] + [curve["value"][-1] for curve in picture["curves"]]
    margin, edge = 0.08 * (max(heights) - min(heights)), _STRIP_MARGIN * strip_edge_pct(picture)
    figure.update_layout(yaxis_range=[min(heights) - margin, max(heights) + margin], yaxis2_range=[-edge, edge])
    title = f"{picture['target'].capitalize()} against size"
    return page.chart(title, loss_caption(picture), charts.to_html(figure, "loss"), wide=True)


def contour_chart(picture: dict[str, Any] | None) -> str:
    """Lines of equal target, the runs, and the optimal frontier; nothing for a law of one axis."""
    if picture is None:
        return ""
    figure = charts.figure(axis_title(picture["x_axis"]), axis_title(picture["y_axis"]), height_px=440)
    figure.add_contour(
        x=picture["x"], y=picture["y"], z=picture["value"], showscale=False, showlegend=False,
        name=picture["target"], line={"width": 1.2}, colorscale=[[0, charts.ACCENT], [1, charts.SKY]],
        contours={"coloring": "lines", "showlabels": True, "labelfont": {"size": 11}, **_steps(picture["value"])},
        hovertemplate=f"{picture['target']} %{{z:.4g}}<br>%{{x:.4s}}, %{{y:.4s}}<extra></extra>",
    )  # fmt: skip
    for left_out in (False, True):
        runs = [run for run in _columns(picture["runs"]) if run["left_out"] == left_out]
        if runs:
            charts.add_line(
                figure, "left out" if left_out else "runs", [run["x"] for run in runs], [run["y"] for run in runs],
                charts.ORANGE, mode="markers", marker={"size": 7, "symbol": "circle" + "-open" * left_out},
                customdata=[(run["run"], run["value"]) for run in runs],
                hovertemplate="%{customdata[0]}: %{customdata[1]:.4g}<extra></extra>",
            )  # fmt: skip
    if frontier := picture["frontier"]:
        charts.add_line(
            figure, "optimal size for a budget", frontier["params"], frontier["tokens"], charts.GREEN, 2.5,
            customdata=list(zip(frontier["flops"], frontier["loss"], strict=True)),
            hovertemplate="%{customdata[0]:.3g} FLOPs: %{x:.4s} parameters, %{y:.4s} tokens, "
            "%{customdata[1]:.4g}<extra></extra>",
        )  # fmt: skip
    for letter, axis in (("x", picture["x_axis"]), ("y", picture["y_axis"])):
        found = picture["y_levels"] if letter == "y" and axis != "tokens" else []
        _log_axis(figure, letter, picture[letter], found)
    title = f"Lines of equal {picture['target']}"
    return page.chart(title, contour_caption(picture), charts.to_html(figure, "contours"), wide=True)


def holdout_chart(picture: dict[str, Any] | None) -> str:
    """What was predicted for runs that the law had not seen, against what they measured; nothing without a split."""
    if picture is None:
        return ""
    figure = _with_strip(f"measured {picture['target']}", f"predicted {picture['target']}", "error, %")
    measured = [run["measured"] for split in picture["splits"] for run in split["runs"]]
    ends = [min(measured), max(measured)]
    charts.add_line(figure, "as measured", ends, ends, charts.NEUTRAL, 1, line={"dash": "dot"}, hoverinfo="skip")
    # The widest bars first, so that they lie under the others.
    for index, split in reversed(list(enumerate(picture["splits"]))):
        name = f"trained up to {axis_value(picture['size_axis'], split['trained_to'])}"
        _add_predicted(figure, split["runs"], name, index)
    figure.update_layout(legend_traceorder="reversed")
    title = "Predicted for runs not seen"
    return page.chart(title, holdout_caption(picture), charts.to_html(figure, "holdout"), wide=True)


def _with_strip(x_title: str, y_title: str, strip_title: str) -> Figure:
    """A figure with a lower strip that shares its x axis."""
    figure = charts.figure(x_title, y_title, height_px=520)
    figure.update_layout(
        yaxis={"domain": [0.33, 1]},
        yaxis2={**_STRIP, "domain": [0, 0.25], "title_text": strip_title},
        xaxis={"anchor": "y2"},
    )
    return figure


def _add_curve(figure: Figure, picture: dict[str, Any], curve: dict[str, Any], index: int) -> None:
    """Solid where there are runs, dotted beyond, in a band for a new run."""
    color, name = _color(index), _group_name(picture, curve["group"])
    x, inside = curve["x"], sum(value <= picture["largest"] * 1.0001 for value in curve["x"])
    if curve["low"][0] is not None:
        charts.add_line(
            figure, name, [*x, *reversed(x)], [*curve["high"], *reversed(curve["low"])], color, 0, fill="toself",
            fillcolor=_faded(color), hoverinfo="skip", legendgroup=name, showlegend=False,
        )  # fmt: skip
    for part, dash in ((slice(None, inside), "solid"), (slice(inside - 1, None), "dot")):
        charts.add_line(
            figure, name, x[part], curve["value"][part], color, line={"dash": dash}, legendgroup=name, showlegend=False
        )


def _add_runs(figure: Figure, picture: dict[str, Any], curve: dict[str, Any], index: int) -> None:
    """Runs in both panels; hollow where left out of the fit, and at the strip's edge where they lie beyond."""
    name, color, edge = _group_name(picture, curve["group"]), _color(index), strip_edge_pct(picture)
    for left_out in (False, True):
        runs = [r for r in picture["runs"] if r["group"] == curve["group"] and r["left_out"] == left_out]
        shape = charts.SYMBOLS[index % len(charts.SYMBOLS)]
        residual = [run["residual_pct"] for run in runs]
        options = {
            "mode": "markers",
            "marker": {"symbol": shape + "-open" * left_out, "size": 8, "color": color},
            "legendgroup": name,
            "customdata": residual,
            "text": [run["run"] + ", left out" * left_out for run in runs],
            "hovertemplate": "%{text}<br>%{customdata:+.2f}% off the law<extra></extra>",
        }
        x, y = [run["x"] for run in runs], [run["y"] for run in runs]
        charts.add_line(figure, name, x, y, color, showlegend=bool(runs) and not left_out, **options)
        strip = [max(-edge, min(edge, value)) for value in residual]
        arrows = [shape if abs(y) <= edge else "arrow-up" if y > 0 else "arrow-down" for y in residual]
        marker = options.pop("marker") | {"symbol": [arrow + "-open" * left_out for arrow in arrows]}
        charts.add_line(figure, name, x, strip, color, showlegend=False, yaxis="y2", marker=marker, **options)


def _columns(table: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """A table of columns as one of rows."""
    return [dict(zip(table, cells, strict=True)) for cells in zip(*table.values(), strict=True)]


def _add_predicted(figure: Figure, runs: list[dict[str, Any]], name: str, index: int) -> None:
    """In both panels; those set aside hollow and apart, since the legend shows the first marker of a trace."""
    for aside in (False, True):
        if some := [run for run in runs if run["set_aside"] == aside]:
            _add_bars(figure, some, name, index, aside)


def _add_bars(figure: Figure, runs: list[dict[str, Any]], name: str, index: int, aside: bool) -> None:
    x, color = [run["measured"] for run in runs], _color(index)
    symbol = charts.SYMBOLS[index % len(charts.SYMBOLS)] + "-open" * aside
    for axis, scale in (("y", None), ("y2", 100.0)):
        y, up, down = _with_bars(runs, scale)
        charts.add_line(
            figure, name, x, y, color, mode="markers", marker={"symbol": symbol, "size": 8}, legendgroup=name,
            showlegend=axis == "y" and not aside, yaxis=axis, text=[run["run"] for run in runs],
            error_y={"type": "data", "array": up, "arrayminus": down, "thickness": 1, "width": 3, "color": color},
            hovertemplate="%{text}: %{y:.4g}<extra></extra>" if axis == "y" else "%{text}: %{y:+.2f}%<extra></extra>",
        )  # fmt: skip


def _with_bars(runs: list[dict[str, Any]], percent: float | None) -> tuple[list[float], list[float], list[float]]:
    """(value, up, down) of each prediction: in the target's unit, or in % of what was measured."""
    of = [(run["predicted"], run["high"] or run["predicted"], run["low"] or run["predicted"]) for run in runs]
    unit = [1.0 if percent is None else percent / run["measured"] for run in runs]
    zero = [0.0 if percent is None else percent for _ in runs]
    values = [value * u - z for (value, _, _), u, z in zip(of, unit, zero, strict=True)]
    up = [(high - value) * u for (value, high, _), u in zip(of, unit, strict=True)]
    down = [(value - low) * u for (value, _, low), u in zip(of, unit, strict=True)]
    return values, up, down


def _steps(value: list[list[float]]) -> dict[str, float]:
    """Contours at round values, about a dozen of them."""
    low, high = min(map(min, value)), max(map(max, value))
    rough = max(high - low, _FLAT * high) / _LINES
    power = 10.0 ** math.floor(math.log10(rough))
    size = next(step * power for step in (1, 2, 5, 10) if step * power >= rough)
    return {"start": math.ceil(low / size) * size, "end": high, "size": size}


def _log_axis(figure: Figure, letter: str, values: list[float], found: list[float] | None = None) -> None:
    """Logarithmic over `values`, with B for billions; at the levels in `found` where they are few."""
    axis = {"type": "log", "exponentformat": "B", "minor": {"dtick": "D1", "showgrid": False}}
    axis |= {"dtick": "D2"} if max(values) < 10**_MOST_DECADES * min(values) else {}
    if found and len(found) <= _MOST_TICKS:
        axis |= {"tickvals": found, "ticktext": [units.format_count(value) for value in found]}
    figure.update_layout({f"{letter}axis": axis})


def _group_name(picture: dict[str, Any], value: float | None) -> str:
    return axis_value(picture["group_axis"], value) if value is not None else "runs"


def _color(index: int) -> str:
    return charts.PALETTE[index % len(charts.PALETTE)]


def _faded(color: str) -> str:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{_BAND_OPACITY})"
