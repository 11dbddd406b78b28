"""A scaling law's figures as PNG files, for slides and papers. Needs matplotlib (extra [plots])."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diloco import units
from diloco.errors import BadInput
from diloco.watch.charts import GREEN, NEUTRAL, ORANGE, PALETTE
from diloco.watch.law_words import (
    axis_title,
    axis_value,
    beyond_strip,
    noise_lines_pct,
    signed_percent,
    strip_edge_pct,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 160
_SIZE_INCHES = (7.0, 5.0)
_MARKERS = "osD^vX"
_MOST_TICKS = 8


def write_law_pngs(folder: str | Path, figures: dict[str, Any]) -> list[Path]:
    """Write loss.png and, where the law has them, contours.png and holdout.png, and return their paths.

    Args:
        figures: `laws.figures(law)`.

    Raises:
        BadInput: matplotlib is not installed.
    """
    need_matplotlib(f"folder {folder}", "write_law_page")
    Path(folder).mkdir(parents=True, exist_ok=True)
    drawn = {"loss": loss_png, "contours": contours_png, "holdout": holdout_png}
    return [_save(draw(figures[name]), Path(folder) / f"{name}.png") for name, draw in drawn.items() if figures[name]]


def need_matplotlib(asked: str, instead: str) -> None:
    """Raises BadInput where `asked` cannot be drawn, naming what draws the same figures without matplotlib."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise BadInput(
            f"{asked} needs matplotlib: pip install 'diloco[plots]', or take {instead}, which has the same figures"
        ) from error


def loss_png(picture: dict[str, Any]) -> Figure:
    """The target against size with bands, over the residuals."""
    figure, above, below = _with_strip(axis_title(picture["x_axis"]), picture["target"], "off the law, %")
    edge = strip_edge_pct(picture)
    for index, curve in enumerate(picture["curves"]):
        color = _color(index)
        inside = [x <= picture["largest"] * 1.0001 for x in curve["x"]]
        last = sum(inside)
        if curve["low"][0] is not None:
            above.fill_between(curve["x"], curve["low"], curve["high"], color=color, alpha=0.12, linewidth=0)
        above.plot(curve["x"][:last], curve["value"][:last], color=color)
        above.plot(curve["x"][last - 1 :], curve["value"][last - 1 :], color=color, linestyle=":")
        for left_out in (False, True):
            runs = [r for r in picture["runs"] if r["group"] == curve["group"] and r["left_out"] == left_out]
            name = axis_value(picture["group_axis"], curve["group"]) if curve["group"] is not None else "runs"
            style = {"edgecolors": color, "facecolors": "none" if left_out else color, "marker": _marker(index)}
            x = [run["x"] for run in runs]
            above.scatter(x, [run["y"] for run in runs], label=f"{name}, left out" if left_out else name, **style)
            inside = [run for run in runs if abs(run["residual_pct"]) <= edge]
            below.scatter([run["x"] for run in inside], [run["residual_pct"] for run in inside], **style)
            for run in runs:
                if run not in inside:
                    up = run["residual_pct"] > 0
                    arrow = {"marker": r"$\uparrow$" if up else r"$\downarrow$", "color": color, "s": 60}
                    below.scatter([run["x"]], [edge if up else -edge], **arrow)
            if not runs:
                above.collections[-1].set_label("_")
    for end in (0.0, *noise_lines_pct(picture)):
        below.axhline(end, color=NEUTRAL, linewidth=0.8, linestyle=":" if end else "-")
    _name_beyond(below, picture, edge)
    below.set_ylim(-1.2 * edge, 1.2 * edge)
    _log(above, "x")
    above.legend(frameon=False)
    return figure


def _name_beyond(axes: Axes, picture: dict[str, Any], edge: float) -> None:
    """How far off the runs are that the strip's edge stands for, beside their arrows: once for each place."""
    places: dict[tuple[float, bool], list[str]] = {}
    for run in beyond_strip(picture):
        said = places.setdefault((run["x"], run["residual_pct"] > 0), [])
        said.append(signed_percent(run["residual_pct"]))
    for (x, up), said in places.items():
        axes.annotate(
            ", ".join(said), (x, edge if up else -edge), (8, 0), textcoords="offset points", va="center", fontsize=7
        )


def contours_png(picture: dict[str, Any]) -> Figure:
    """Lines of equal target, the runs, and the optimal frontier."""
    figure = _figure()
    axes = figure.add_subplot()
    # Before the contours: the gaps for their labels are cut by distance on the page.
    _log(axes, "x")
    _log(axes, "y", [] if picture["y_axis"] == "tokens" else picture["y_levels"])
    lines = axes.contour(picture["x"], picture["y"], picture["value"], levels=14, colors=[PALETTE[0]], linewidths=0.9)
    axes.clabel(lines, fmt="%.3g", fontsize=8)
    runs = list(zip(*(picture["runs"][name] for name in ("x", "y", "left_out")), strict=True))
    for left_out in (False, True):
        x, y = ([run[place] for run in runs if run[2] == left_out] for place in (0, 1))
        if x:
            filled = {"facecolors": "none" if left_out else ORANGE, "edgecolors": ORANGE}
            axes.scatter(x, y, s=18, label="left out" if left_out else "runs", zorder=3, **filled)
    if frontier := picture["frontier"]:
        axes.plot(frontier["params"], frontier["tokens"], color=GREEN, linewidth=2, label="optimal size for a budget")
    axes.set_xlabel(axis_title(picture["x_axis"]))
    axes.set_ylabel(axis_title(picture["y_axis"]))
    axes.set_title(f"equal {picture['target']}", fontsize=10)
    axes.legend(frameon=False)
    return figure


def holdout_png(picture: dict[str, Any]) -> Figure:
    """Predicted against measured for runs that the law had not seen, over the error."""
    target = picture["target"]
    figure, above, below = _with_strip(f"measured {target}", f"predicted {target}", "error, %")
    measured = [run["measured"] for split in picture["splits"] for run in split["runs"]]
    above.plot([min(measured), max(measured)], [min(measured), max(measured)], color=NEUTRAL, linestyle=":")
    # The widest bars first, so that they lie under the others.
    for index, split in reversed(list(enumerate(picture["splits"]))):
        name = f"trained up to {axis_value(picture['size_axis'], split['trained_to'])}"
        style = {"color": _color(index), "marker": _marker(index), "markersize": 4, "linestyle": "", "elinewidth": 0.8}
        # The legend shows the first marker, which is to be a filled one.
        for run in sorted(split["runs"], key=lambda run: run["set_aside"]):
            low, high = (run[end] or run["predicted"] for end in ("low", "high"))
            bars = [[run["predicted"] - low], [high - run["predicted"]]]
            style["markerfacecolor"] = "none" if run["set_aside"] else style["color"]
            above.errorbar([run["measured"]], [run["predicted"]], yerr=bars, label=name, **style)
            unit = 100 / run["measured"]
            in_pct = [[length * unit for length in bar] for bar in bars]
            below.errorbar([run["measured"]], [run["predicted"] * unit - 100], yerr=in_pct, **style)
            name = "_"
    below.axhline(0, color=NEUTRAL, linewidth=0.8)
    above.legend(frameon=False, reverse=True)
    return figure


def _figure() -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=_SIZE_INCHES, layout="constrained")


def _with_strip(x_title: str, y_title: str, strip_title: str) -> tuple[Figure, Axes, Axes]:
    figure = _figure()
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    above.set_ylabel(y_title)
    below.set_ylabel(strip_title)
    below.set_xlabel(x_title)
    return figure, above, below


def _log(axes: Axes, letter: str, found: list[float] | None = None) -> None:
    """Logarithmic, with B for billions; at the levels themselves where they are few."""
    (axes.set_xscale if letter == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if letter == "x" else axes.yaxis
    if found and len(found) <= _MOST_TICKS:
        axis.set_ticks(found)
        axis.set_ticks([], minor=True)
    axis.set_major_formatter(lambda value, _: units.format_count(value))


def _save(figure: Figure, path: Path) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.png")
    try:
        figure.savefig(temporary, dpi=DPI)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _color(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


def _marker(index: int) -> str:
    return _MARKERS[index % len(_MARKERS)]
