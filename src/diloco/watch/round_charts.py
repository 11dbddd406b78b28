"""What a run's rounds did and cost: how far the replicas drifted, what the outer step made of it, bytes and seconds."""

from __future__ import annotations

from collections.abc import Sequence

from diloco.watch import charts, page
from diloco.watch.summary import Summary, data_parallel_bytes

_HEIGHT_PX = 260
_STEP = "inner step at which it was sent"
_LEGEND_LINES = 12


def round_charts(summary: Summary) -> str:
    """Nothing without rounds."""
    if not summary.rounds:
        return ""
    several = (summary.facts.get("replicas") or 1) > 1
    shown = [_norm_chart(summary), _bytes_chart(summary), _time_chart(summary)]
    if several:
        shown = [_spread_chart(summary), _cosine_chart(summary), *shown]
    return page.grid(shown)


def _spread_chart(summary: Summary) -> str:
    figure = charts.figure(_STEP, "distance to the merged weights", _HEIGHT_PX, yaxis_rangemode="tozero")
    if len(summary.fragments) == 1:
        charts.add_line(figure, "largest", *_series(summary.rounds, "spread_max"), charts.NEUTRAL, 1.4)
    _add_fragments(figure, summary, "spread_median", "median")
    if failed := [event for event in summary.rounds if not event.get("committed")]:
        charts.add_line(
            figure, "round failed", [sent_step(event) for event in failed], [0] * len(failed), charts.BAD,
            mode="markers", marker={"symbol": "x", "size": 8}, cliponaxis=False,
        )  # fmt: skip
    what = "" if len(summary.fragments) == 1 else " Median over the replicas, fragment by fragment."
    caption = f"How far the replicas' weights were from the merged ones, just before each round.{what}"
    return page.chart("Replica spread", caption, charts.to_html(figure, "spread"))


def _cosine_chart(summary: Summary) -> str:
    figure = charts.figure(_STEP, "cosine", _HEIGHT_PX)
    _add_fragments(figure, summary, "cosine_median", "median")
    figure.update_yaxes(rangemode="tozero")
    caption = "Each replica's outer gradient against the merged one: 1 is full agreement."
    return page.chart("Agreement", caption, charts.to_html(figure, "cosine"))


def _norm_chart(summary: Summary) -> str:
    figure = charts.figure(_STEP, "norm", _HEIGHT_PX, yaxis_rangemode="tozero")
    if len(summary.fragments) == 1:
        charts.add_line(figure, "outer gradient", *_series(summary.rounds, "outer_gradient_norm"), charts.NEUTRAL, 1.4)
        caption = "How far the replicas moved on average, and how far the anchor followed."
    else:
        caption = "How far the anchor moved in each round, fragment by fragment."
    _add_fragments(figure, summary, "outer_update_norm", "outer update")
    return page.chart("Outer step", caption, charts.to_html(figure, "outer_step"))


def _bytes_chart(summary: Summary) -> str:
    figure = charts.figure("inner step", "bytes sent per replica", _HEIGHT_PX)
    steps = charts.thin(_column(summary.rounds, "step"))
    sent = _running_sum(summary.rounds, "bytes_sent")
    charts.add_line(figure, "this run", steps, charts.thin(sent), charts.ACCENT)
    caption = "Everything sent in rounds so far."
    inside = _running_sum(summary.rounds, "site_bytes_sent")
    if inside and inside[-1]:
        outside = [all_sent - site for all_sent, site in zip(sent, inside, strict=True)]
        charts.add_line(figure, "out of its site", steps, charts.thin(outside), charts.ORANGE, 1.4)
    if summary.bytes_data_parallel:
        per_step = data_parallel_bytes(summary.facts["params"], 1, summary.facts["replicas"])
        charts.add_line(
            figure, "data parallel", steps, [step * per_step for step in steps], charts.NEUTRAL, 1.4,
            line={"dash": "dash"},
        )  # fmt: skip
        caption = "Data parallel would sum an fp32 gradient over the replicas at every step."
    figure.update_yaxes(type="log", exponentformat="SI", ticksuffix="B", dtick=1)
    return page.chart("Bytes", caption, charts.to_html(figure, "bytes"))


def _time_chart(summary: Summary) -> str:
    """What the inner steps lost, over what the round took in all: with overlap the one is less than the other."""
    figure = charts.figure(_STEP, "seconds per round", _HEIGHT_PX, yaxis_rangemode="tozero")
    parts = (
        ("waiting for others", "wait_s", charts.ORANGE),
        ("on the wire", "wire_s", charts.SKY),
        ("encoding and outer step", "encode_s", charts.NEUTRAL),
    )
    for name, key, color in parts:
        charts.add_line(figure, name, *_series(summary.rounds, key), color, 1.4)
    charts.add_line(figure, "inner steps stood still", *_series(summary.rounds, "stall_s"), charts.ACCENT, 2.4)
    virtual = "" if summary.virtual_s is None else " Time on the network is that of the simulated link."
    caption = f"What each round took, and how much of it the training waited for.{virtual}"
    return page.chart("Time of a round", caption, charts.to_html(figure, "time"))


def _add_fragments(figure: charts.Figure, summary: Summary, key: str, name: str) -> None:
    """A line per fragment: they differ in size, so one line through all of them would only zigzag."""
    if len(summary.fragments) == 1:
        charts.add_line(figure, name, *_series(summary.rounds, key), charts.ACCENT)
        return
    for index, fragment in enumerate(summary.fragments):
        events = [event for event in summary.rounds if event.get("fragment", 0) == fragment]
        color = charts.PALETTE[index % len(charts.PALETTE)]
        dash = charts.DASHES[index // len(charts.PALETTE) % len(charts.DASHES)]
        charts.add_line(figure, f"fragment {fragment}", *_series(events, key), color, 1.6, line={"dash": dash})
    figure.update_layout(showlegend=len(summary.fragments) <= _LEGEND_LINES)


def _series(events: Sequence[dict], key: str) -> tuple[list, list]:
    """(steps, values), thinned alike."""
    return charts.thin([sent_step(event) for event in events]), charts.thin(_column(events, key))


def sent_step(event: dict) -> int:
    return event.get("sent_step", event["step"])


def _column(events: Sequence[dict], key: str) -> list:
    return [event.get(key) for event in events]


def _running_sum(events: Sequence[dict], key: str) -> list[float]:
    total, sums = 0, []
    for event in events:
        total += event.get(key) or 0
        sums.append(total)
    return sums
