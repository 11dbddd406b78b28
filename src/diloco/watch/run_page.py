"""The pieces of one run's report: headline, facts, loss, receipt. Its rounds are in `round_charts.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from diloco import units
from diloco.watch import charts, page
from diloco.watch.summary import Summary, flatten, problems

_TOKENS = "training tokens, all replicas"


def kicker(summary: Summary) -> str:
    """The line above the run's name."""
    seed = summary.facts.get("seed")
    return "diloco run" if seed is None else f"diloco run, seed {seed}"


def run_headline(summary: Summary) -> str:
    """Alerts first, then the held-out loss and what it was measured on."""
    final = summary.final or {}
    unit = "nats per token on held-out text" if summary.loss is not None else "no held-out loss yet"
    lines = []
    if summary.loss is not None:
        measured = [f"measured on the {summary.weights or 'final'} weights"]
        if final.get("loss_se"):
            measured.append(f"standard error {final['loss_se']:.2g}")
        if final.get("bits_per_byte") is not None:
            measured.append(f"{final['bits_per_byte']:.3g} bits per byte")
        lines.append(", ".join(measured))
    if len(summary.evals) > 1:
        first = summary.evals[0]
        when = f"after {units.format_count(first['tokens'])} tokens" if first["tokens"] else "before training"
        lines.append(f"{units.format_loss(first['loss'])} {when}")
    if summary.has_rounds and (summary.bytes_data_parallel or 0) > (summary.bytes_sent or math.inf):
        ratio = summary.bytes_data_parallel / summary.bytes_sent
        lines.append(f"sent {ratio:.3g} times fewer bytes than data parallel would have")
    if not summary.ended:
        lines.append("The run has not ended: no receipt yet.")
    found = problems(summary)
    good = "" if found or not summary.ended else _good_line(summary)
    return page.alert(found) + page.headline(units.format_loss(summary.loss), unit, lines, good)


def run_facts(summary: Summary) -> str:
    """The settings and sizes a reader asks for first, as far as the folder tells them."""
    facts = summary.facts
    tokens = facts.get("tokens") or (summary.train[-1].get("tokens") if summary.train else None)
    with_rounds = summary.has_rounds
    pairs = [
        ("method", facts.get("method"), str),
        ("model", facts.get("model"), str),
        ("parameters", facts.get("params"), units.format_count),
        ("tokens", tokens, units.format_count),
        ("batch", facts.get("batch_tokens"), lambda value: f"{units.format_count(value)} tokens"),
        ("replicas", facts.get("replicas"), str),
        ("inner lr", facts.get("inner_lr"), _text),
        ("sync interval", facts.get("sync_every") if with_rounds else None, lambda value: _interval(summary, value)),
        ("outer lr", facts.get("outer_lr") if with_rounds else None, _text),
        ("outer momentum", facts.get("outer_momentum") if with_rounds else None, _text),
        ("fragments", len(summary.fragments) if len(summary.fragments) > 1 else None, str),
        ("overlap", summary.receipt.get("overlap") or None, _overlap),
        ("mixing", summary.receipt.get("mixing") or None, str),
        ("merge", summary.receipt.get("merge") if summary.receipt.get("merge") != "mean" else None, str),
        ("codec", facts.get("codec") if with_rounds else None, str),
        ("sent per replica", summary.bytes_sent, units.format_bytes),
        ("data parallel sends", summary.bytes_data_parallel if with_rounds else None, units.format_bytes),
        ("effective bandwidth", summary.receipt.get("mbit_per_s"), lambda mbit: units.format_bandwidth(mbit / 1e3)),
        ("inner steps stood still", summary.receipt.get("stall_s"), units.format_duration),
        ("time", facts.get("seconds"), units.format_duration),
        ("simulated link", summary.receipt.get("link") if summary.virtual_s is not None else None, str),
        ("time over it", summary.virtual_s, units.format_duration),
    ]
    return page.facts((label, show(value)) for label, value, show in pairs if value is not None)


def _interval(summary: Summary, first: int) -> str:
    """H, or its range where it changed."""
    every = [first, *(event["sync_every"] for event in summary.intervals)]
    return f"{first} steps" if min(every) == max(every) else f"{min(every)} to {max(every)} steps"


def loss_chart(summary: Summary) -> str:
    """Training loss (thin per replica, then the mean) and held-out loss, against tokens."""
    figure = charts.figure(_TOKENS, "loss, nats per token", height_px=380)
    train = [event for event in summary.train if event.get("tokens")]
    smooth = charts.thin_evenly_in_log
    tokens = smooth(_column(train, "tokens"))
    per_replica = [event.get("loss_per_replica") or [] for event in train]
    width = max(map(len, per_replica), default=0)
    if width > 1:
        for replica in range(width):
            losses = [values[replica] if replica < len(values) else None for values in per_replica]
            name = "training, each replica"
            charts.add_line(
                figure, name, tokens, smooth(losses), charts.NEUTRAL, 0.8, 0.45, legendgroup=name,
                showlegend=replica == 0, hoverinfo="skip", hovertemplate=None,
            )  # fmt: skip
    charts.add_line(figure, "training, mean", tokens, smooth(_column(train, "loss")), charts.ORANGE, 1.4)
    evals = [event for event in summary.evals if event.get("tokens")]
    charts.add_line(
        figure, f"held out, {summary.weights} weights", _column(evals, "tokens"), _column(evals, "loss"),
        charts.ACCENT, 2.4, mode="lines+markers", marker={"size": 7},
    )  # fmt: skip
    charts.log_tokens_axis(figure)
    figure.update_yaxes(range=_loss_range(_column(evals, "loss") + smooth(_column(train, "loss"))))
    apart = "Training loss is that of the replicas while they train apart. " if summary.has_rounds else ""
    caption = f"{apart}Later training points average over more steps."
    return page.chart("Loss", caption, charts.to_html(figure, "loss"), wide=True)


def receipt_section(receipt: dict | None) -> str:
    """All single values of the receipt; lists per round stay in receipt.json."""
    if receipt is None:
        return ""
    rows = [(path, _receipt_value(value)) for path, value in flatten(receipt) if not isinstance(value, list)]
    return page.section("Receipt", page.table(("what", "value"), [(_label(path), value) for path, value in rows]))


def config_section(config: dict) -> str:
    rows = [(path, _text(value)) for path, value in flatten(config)]
    return page.folded("Config", page.table(("setting", "value"), rows, text_columns=2))


def events_section(summary: Summary, notes: Sequence[dict]) -> str:
    """Notes of the run and rounds that did not go as planned, by step."""
    lines = [(event["step"], event.get("text", "")) for event in notes]
    for event in summary.intervals:
        noise = event.get("noise")
        why = "" if noise is None else f", noise of the outer gradients {noise:.2g}"
        lines.append((event["step"], f"H becomes {event['sync_every']}{why}"))
    for event in summary.rounds:
        if not event.get("committed"):
            lines.append((event["step"], f"round {event.get('round')} failed"))
        elif event.get("left_out"):
            replicas = ", ".join(map(str, event["left_out"]))
            lines.append((event["step"], f"round {event.get('round')} left out replica {replicas}"))
    rows = [(str(step), text) for step, text in sorted(lines)]
    return page.section("What happened", page.table(("step", "event"), rows, text_columns=2)) if rows else ""


def _good_line(summary: Summary) -> str:
    if not summary.has_rounds:
        return "Ended as planned."
    return f"Ended as planned: {summary.rounds_committed} of {summary.rounds_planned} rounds committed."


def _column(events: Sequence[dict], key: str) -> list:
    return [event.get(key) for event in events]


def _overlap(value: int | str) -> str:
    return f"{value} steps" if isinstance(value, int) else value


def _loss_range(losses: Sequence[float | None]) -> list[float] | None:
    """From just under the lowest loss to just over the highest; one wild replica must not flatten the curves."""
    finite = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    if not finite:
        return None
    margin = 0.05 * (max(finite) - min(finite)) or 0.1
    return [min(finite) - margin, max(finite) + margin]


def _receipt_value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else _text(value)


def _label(path: str) -> str:
    words = f"{path[:-2]} (seconds)" if path.endswith("_s") else path
    return words.replace("_", " ").replace(".", " \N{MIDDLE DOT} ")


def _text(value: Any) -> str:
    if value is None:
        return units.NONE
    return f"{value:.6g}" if isinstance(value, float) else str(value)
