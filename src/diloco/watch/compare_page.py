"""The pieces of a comparison: headline, table, loss curves, final losses."""

from __future__ import annotations

from textwrap import wrap

from diloco import units
from diloco.watch import charts, page
from diloco.watch.compare import PLAIN, Comparison, Group
from diloco.watch.summary import Summary

_SETTING_LABELS = {"sync_every": "H", "batch_tokens": "batch", "params": "parameters", "fragments": "P"}
_COUNTS = ("params", "params_embedding", "params_body", "tokens", "batch_tokens")
_LABEL_WIDTH = 20
_EARLY_SHARE = 0.1
"""The picture's top is the highest loss after this share of the tokens: the first fall would flatten the rest."""


def comparison_headline(comparison: Comparison) -> str:
    """How far the best setting other than data parallel is from data parallel."""
    lines = comparison.table()
    best = next((line for line in lines if line["difference_percent"] is not None), None)
    if best is None:
        group = comparison.groups[0]
        text = [f"the lowest held-out loss: {group_name(comparison, group)}, {_seeds(lines[0]['n'])}"]
        return page.headline(units.format_loss(lines[0]["loss_mean"]), "nats per token", text)
    group = comparison.groups[lines.index(best)]
    text = [f"the best without data parallel: {group_name(comparison, group)}", _interval_sentence(best)]
    return page.headline(units.format_change(best["difference_percent"]), "loss against data parallel", text)


def comparison_table_section(comparison: Comparison) -> str:
    """A line per group, best first."""
    settings = comparison.shown_settings
    columns = [*(_SETTING_LABELS.get(s, s.replace("_", " ")) for s in settings)]
    columns += ["loss", "vs data parallel", "95% interval", "sd over seeds", "n", "sent per replica", "note"]
    rows = []
    for line in comparison.table():
        interval = (line["difference_low_percent"], line["difference_high_percent"])
        rows.append(
            [
                *(_setting(setting, line[setting]) for setting in settings),
                units.format_loss(line["loss_mean"]),
                units.format_change(line["difference_percent"]),
                units.NONE if interval[0] is None else " to ".join(map(units.format_change, interval)),
                units.NONE if line["loss_sd"] is None else f"{line['loss_sd']:.2g}",
                str(line["n"]),
                units.format_bytes(line["bytes_sent_mean"]),
                line["note"],
            ]
        )
    return page.section("Settings, best first", page.table(columns, rows))


def curves_chart(comparison: Comparison, summaries: list[Summary]) -> str:
    """Held-out loss of every run against tokens, a colour per group, a line per seed."""
    figure = charts.figure("training tokens, all replicas", "held-out loss, nats per token", height_px=420)
    summary_of = dict(zip(comparison.runs, summaries, strict=True))
    highest_late, lowest = [], []
    for index, group in enumerate(comparison.groups):
        color, symbol, dash = group_style(comparison, index)
        for run in group.folders:
            evals = [event for event in summary_of[run].evals if event.get("tokens")]
            tokens, losses = [event["tokens"] for event in evals], [event["loss"] for event in evals]
            late = [y for x, y in zip(tokens, losses, strict=True) if x >= _EARLY_SHARE * tokens[-1] and y == y]
            highest_late += [max(late)] if late else []
            lowest += [min(late)] if late else []
            name = group_name(comparison, group)
            charts.add_line(
                figure, name, tokens, losses, color, 1.8, 0.9, mode="lines+markers", legendgroup=name,
                showlegend=run is group.folders[0], marker={"symbol": symbol, "size": 6}, line={"dash": dash},
            )  # fmt: skip
    if lowest:
        margin = 0.04 * (max(highest_late) - min(lowest)) or 0.05
        figure.update_yaxes(range=[min(lowest) - margin, max(highest_late) + margin])
    figure.update_xaxes(exponentformat="SI", rangemode="tozero")
    caption = "Held-out text, one line a seed. The first fall is above the picture; double-click shows it."
    return page.chart("Loss curves", caption, charts.to_html(figure, "curves"), wide=True)


def link_chart(comparison: Comparison, summaries: list[Summary]) -> str:
    """Held-out loss against the time over a simulated link, of the runs that simulate one; nothing without any."""
    summary_of = dict(zip(comparison.runs, summaries, strict=True))
    figure = charts.figure("seconds over the simulated link", "held-out loss, nats per token", height_px=420)
    late = []
    for index, group in enumerate(comparison.groups):
        color, symbol, dash = group_style(comparison, index)
        name, named = group_name(comparison, group), False
        for run in group.folders:
            evals = [event for event in summary_of[run].evals if event.get("virtual_s") is not None]
            if not evals:
                continue
            seconds, losses = [event["virtual_s"] for event in evals], [event["loss"] for event in evals]
            late += [y for x, y in zip(seconds, losses, strict=True) if x >= _EARLY_SHARE * seconds[-1] and y == y]
            charts.add_line(
                figure, name, seconds, losses, color, 1.8, 0.9, mode="lines+markers", legendgroup=name,
                showlegend=not named, marker={"symbol": symbol, "size": 6}, line={"dash": dash},
            )  # fmt: skip
            named = True
    if not figure.data:
        return ""
    if late:
        margin = 0.04 * (max(late) - min(late)) or 0.05
        figure.update_yaxes(range=[min(late) - margin, max(late) + margin])
    figure.update_xaxes(rangemode="tozero")
    caption = "When each run would have reached a loss: measured compute, and its bytes over its link."
    return page.chart("Time to loss", caption, charts.to_html(figure, "link"), wide=True)


def final_chart(comparison: Comparison) -> str:
    """Final losses, a dot a seed, a bar for the mean; best on top."""
    names = ["<br>".join(wrap(group_name(comparison, group), _LABEL_WIDTH)) for group in comparison.groups]
    figure = charts.figure("final held-out loss, nats per token", "", height_px=90 + 46 * len(names), showlegend=False)
    for index, group in enumerate(comparison.groups):
        color, symbol, _ = group_style(comparison, index)
        losses = group.losses
        charts.add_line(
            figure, names[index], losses, [names[index]] * len(losses), color, mode="markers",
            marker={"symbol": symbol, "size": 9, "opacity": 0.75}, hovertemplate="%{x:.5g}<extra>%{y}</extra>",
        )  # fmt: skip
        if len(losses) > 1:
            charts.add_line(
                figure, "mean", [group.mean], [names[index]], color, mode="markers",
                marker={"symbol": "line-ns", "size": 22, "line": {"width": 2.5, "color": color}},
                hovertemplate="mean %{x:.5g}<extra></extra>",
            )  # fmt: skip
    figure.update_yaxes(autorange="reversed", title_text=None, ticksuffix="  ")
    caption = "A dot a seed, a bar for their mean."
    return page.chart("Final losses", caption, charts.to_html(figure, "final"), wide=True)


def group_name(comparison: Comparison, group: Group) -> str:
    """What tells this group from the others, in a few words."""
    settings = group.settings
    parts = [str(settings["method"])]
    if not group.is_baseline_method:
        parts += [f"M={settings['replicas']}", f"H={settings['sync_every']}"]
    others = [s for s in comparison.shown_settings if s not in ("method", "replicas", "sync_every")]
    others = [s for s in others if not s.startswith("params") and settings[s] not in (None, PLAIN.get(s))]
    return " ".join(parts + [f"{_SETTING_LABELS.get(s, s)}={_setting(s, settings[s])}" for s in others])


def group_style(comparison: Comparison, index: int) -> tuple[str, str, str]:
    """(colour, marker, dash) of a group: data parallel is dashed grey, so that it reads as the yardstick."""
    if comparison.groups[index].is_baseline_method:
        return charts.NEUTRAL, "circle-open", "dash"
    position = sum(not group.is_baseline_method for group in comparison.groups[:index])
    turn = position // len(charts.PALETTE)
    at = position % len(charts.PALETTE)
    return charts.PALETTE[at], charts.SYMBOLS[at], charts.DASHES[turn % len(charts.DASHES)]


def _interval_sentence(line: dict) -> str:
    low, high = line["difference_low_percent"], line["difference_high_percent"]
    if low is None:
        return "one seed: no spread, so this may be chance"
    return f"95% interval {units.format_change(low)} to {units.format_change(high)} over {_seeds(line['n'])}"


def _seeds(n: int) -> str:
    return "one seed: no spread" if n == 1 else f"{n} seeds"


def _setting(setting: str, value: object) -> str:
    if value is None:
        return units.NONE
    if setting in _COUNTS:
        return units.format_count(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
