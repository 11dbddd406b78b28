"""A plan's figures in Plotly, from the plain lists of `diloco.plan.pictures`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from diloco import units
from diloco.watch import charts, page

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

COLORS = {
    "one site": charts.NEUTRAL,
    "data parallel": charts.ORANGE,
    "DiLoCo": charts.ACCENT,
    "streaming": charts.GREEN,
}
_PARTS = {
    "compute_s": ("computing", charts.GREEN),
    "between_s": ("waiting for the link", charts.BAD),
    "inside_s": ("waiting inside a site", charts.GOLD),
    "codec_s": ("coding", charts.PURPLE),
    "bubble_s": ("pipeline bubble", charts.SKY),
}
_SLOWER = 3.0
"""Times the slowest configuration that nothing beats, up to which others are shown."""

_LEAST_SHARE = 1e-3
"""Of a bar; a part that is less in every bar has no entry in the legend."""


def window_chart(picture: dict[str, Any] | None) -> str:
    """The chips and each fragment's message over one window; nothing where no messages are sent."""
    if picture is None:
        return ""
    messages, steps = picture["messages"], picture["steps"]
    lanes = ["chips", *(f"fragment {message['fragment']}" for message in messages)]
    figure = charts.figure("seconds since the window began", "", height_px=120 + 20 * len(lanes), barmode="overlay")
    _add_spans(figure, "computing", ["chips"] * len(picture["computing"]), picture["computing"], charts.GREEN)
    _add_spans(figure, "waiting", ["chips"] * len(picture["waiting"]), picture["waiting"], charts.BAD)
    sent = [(message["start_s"], message["landed_s"]) for message in messages]
    _add_spans(figure, "on the link", lanes[1:], sent, charts.ACCENT)
    figure.add_scatter(
        x=[message["needed_s"] for message in messages], y=lanes[1:], mode="markers", name="needed",
        marker={"symbol": "line-ns-open", "size": 13, "color": charts.ORANGE, "line": {"width": 2}},
        hovertemplate="needed at %{x:.4g} s<extra>%{y}</extra>",
    )  # fmt: skip
    figure.update_yaxes(autorange="reversed", showgrid=False, tickfont={"size": 11})
    caption = (
        f"{steps} inner steps of {units.format_duration(picture['step_s'])} ({picture['label']}). A message that lands "
        "right of its mark makes the chips wait."
    )
    return page.chart("One window", caption, charts.to_html(figure, "window"), wide=True)


def utilization_chart(picture: dict[str, Any] | None) -> str:
    """Compute utilisation against the bandwidth between sites; nothing with one site."""
    if picture is None:
        return ""
    figure = charts.figure("bandwidth between sites", "compute utilisation, %", height_px=360)
    for name, shares in picture["lines"].items():
        charts.add_line(
            figure, name, picture["gbit_per_s"], [100 * share for share in shares], COLORS[name], 2.5,
            hovertemplate="%{y:.1f}% at %{x:.3g} Gbit/s<extra>%{fullData.name}</extra>",
        )  # fmt: skip
    _mark(figure, picture["link_gbit_per_s"], "your link")
    low, high = picture["gbit_per_s"][0], picture["gbit_per_s"][-1]
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    ticks = [10.0**power for power in powers]
    labels = [units.format_bandwidth(tick).replace("Gbit/s", "Gbit").replace("Mbit/s", "Mbit") for tick in ticks]
    figure.update_xaxes(type="log", tickvals=ticks, ticktext=[label.replace("bit/s", "bit") for label in labels])
    figure.update_yaxes(range=[0, 104])
    caption = (
        "Share of the time in which the chips compute, each method at its own H. Right of a line's bend more bandwidth "
        "buys nothing."
    )
    return page.chart("What the link allows", caption, charts.to_html(figure, "utilization"))


def breakdown_chart(bars: Sequence[dict[str, Any]], group: str) -> str:
    """A step's seconds by M or by H; nothing where there is one bar or none."""
    shown = [bar for bar in bars if bar["group"] == group]
    if len(shown) < 2:
        return ""
    figure = charts.figure("", "seconds a step", height_px=340, barmode="stack")
    names = [f"<b>{bar['label']}</b>" if bar["own"] else bar["label"] for bar in shown]
    for key, (name, color) in _PARTS.items():
        seconds = [bar[key] for bar in shown]
        if any(bar[key] > _LEAST_SHARE * sum(bar[part] for part in _PARTS) for bar in shown):
            figure.add_bar(x=names, y=seconds, name=name, marker={"color": color},
                           hovertemplate="%{y:.3g} s<extra>%{fullData.name}</extra>")  # fmt: skip
    what = "by number of replicas (M)" if group == "M" else "by sync interval (H)"
    caption = f"An average step, {'at your H' if group == 'M' else 'at your M'}; yours in bold."
    return page.chart(f"Where a step goes, {what}", caption, charts.to_html(figure, f"breakdown_{group}"))


def goodput_chart(picture: dict[str, Any]) -> str:
    """Goodput against the size of the fleet."""
    figure = charts.figure("chips", "goodput, %", height_px=360)
    for (name, shares), color in zip(
        picture["lines"].items(), (charts.ORANGE, charts.ACCENT, charts.GREEN), strict=True
    ):
        charts.add_line(
            figure, name, picture["chips"], [100 * share for share in shares], color, 2.5, mode="lines+markers",
            marker={"size": 6}, hovertemplate="%{y:.1f}% on %{x:.3s} chips<extra>%{fullData.name}</extra>",
        )  # fmt: skip
    _mark(figure, picture["own_chips"], "yours")
    figure.update_xaxes(type="log", dtick=1, exponentformat="SI")
    figure.update_yaxes(range=[0, 104])
    caption = f"Share of all chip-time that trains the model, played failure by failure. {picture['assumed']}."
    return page.chart("What failures leave", caption, charts.to_html(figure, "goodput"))


def front_chart(search: dict[str, Any] | None, law: str) -> str:
    """Loss against days of what was tried, with what nothing beats; nothing without a search."""
    if search is None:
        return ""
    figure = charts.figure("days", f"loss (law {law})", height_px=380)
    colors = (charts.NEUTRAL, charts.ACCENT, charts.PURPLE, charts.GOLD, charts.SKY)
    longest = _SLOWER * max(point["days"] for point in search["front"])
    cloud = [point for point in search["cloud"] if point["days"] <= longest]
    for index, sites in enumerate(sorted({point["sites"] for point in cloud})):
        points = [point for point in cloud if point["sites"] == sites]
        _add_points(figure, units.format_things(sites, "site"), points, colors[index % len(colors)], 7, 0.45)
    _add_points(figure, "nothing beats these", search["front"], charts.GREEN, 13, 1.0, "diamond")
    if search["best"]:
        _add_points(figure, search["goal"], [search["best"]], charts.ORANGE, 17, 1.0, "star")
    figure.update_xaxes(rangemode="tozero")
    caption = (
        f"Some of {search['tried']:,} configurations; hover for replicas and dollars. The loss moves with what its law "
        "knows, and with nothing else."
    )
    return page.chart("What else there is", caption, charts.to_html(figure, "front"), wide=True)


def _add_points(
    figure: Figure,
    name: str,
    points: Sequence[dict[str, Any]],
    color: str,
    size: int,
    opacity: float,
    symbol: str = "circle",
) -> None:
    figure.add_scatter(
        x=[point["days"] for point in points], y=[point["loss"] for point in points], mode="markers", name=name,
        marker={"color": color, "size": size, "opacity": opacity, "symbol": symbol},
        customdata=[[point["replicas"], _usd(point["cost_usd"])] for point in points],
        hovertemplate="%{x:.3g} days, loss %{y:.4g}, M = %{customdata[0]}, %{customdata[1]}<extra></extra>",
    )  # fmt: skip


def _usd(value: float | None) -> str:
    return "no price" if value is None else units.format_usd(value)


def _add_spans(figure: Figure, name: str, lanes: Sequence[str], spans: Sequence[Sequence[float]], color: str) -> None:
    if not spans:
        return
    figure.add_bar(
        x=[end - start for start, end in spans], base=[start for start, _ in spans], y=list(lanes), orientation="h",
        name=name, marker={"color": color}, width=0.7,
        customdata=[[start, end] for start, end in spans],
        hovertemplate="%{customdata[0]:.4g} to %{customdata[1]:.4g} s<extra>%{fullData.name}</extra>",
    )  # fmt: skip


def _mark(figure: Figure, x: float, text: str) -> None:
    """A line across at x of a logarithmic axis, named at its foot."""
    figure.add_vline(x=x, line={"color": charts.NEUTRAL, "width": 1.5, "dash": "dot"})
    figure.add_annotation(
        x=math.log10(x), y=0.02, yref="paper", text=text, showarrow=False, xanchor="left", yanchor="bottom", xshift=4,
        font={"size": 12},
    )  # fmt: skip
