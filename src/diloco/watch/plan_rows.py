"""The figures of a planned method, as the terminal and the page show them alike. Reads the plain lines of
`diloco plan --json`, in which infinity is null."""

from __future__ import annotations

import math
from typing import Any

from diloco import units


def figures(line: dict[str, Any], law: str) -> dict[str, str]:
    """Every figure of a method by its label; the parts of another are indented."""
    need = line["gbit_per_s_needed_at"]
    return {
        "time": days(line["days"]),
        "cost": units.format_usd(line["cost_usd"]),
        f"loss ({law})": units.format_loss(line["loss"]),
        "  of 95% of new runs": _interval(line),
        "compute utilisation": units.format_share(line["compute_utilization"]),
        "a step": units.format_duration(line["step_s"]),
        "  computing": units.format_duration(line["compute_s"]),
        "  waiting for the link": _seconds(line["between_s"]),
        "  waiting inside a site": _seconds(line["inside_s"] + line["codec_s"]),
        "  pipeline bubble": _seconds(line["bubble_s"]),
        "tokens a second": units.format_count(line["tokens_per_s"]),
        **{f"link for {float(target):.0%} at this H": needed(rate) for target, rate in need.items()},
        "sent over the link a day": units.format_bytes(line["bytes_per_day"] or None),
        "tensor x pipeline": split(line),
        "memory of a chip": units.format_bytes(line["memory_bytes"]),
        "  that can be used": units.format_bytes(line["chip_bytes"]),
        "goodput under failures": units.format_share(line["goodput"]),
    }


def common_rows(columns: list[dict[str, str]]) -> list[tuple[str, ...]]:
    """(label, a cell for each column), without the rows of which no column has anything."""
    rows = [(label, *(column[label] for column in columns)) for label in columns[0]]
    return [row for row in rows if set(row[1:]) != {units.NONE}]


def choice_row(choice: dict[str, Any]) -> tuple[str, ...]:
    """A configuration of a search: time, cost, loss, sites, M, H, codec, tau, P, batch, tokens."""
    own = [str(choice[key]) for key in ("replicas", "sync_every", "codec", "overlap", "fragments")]
    if choice["data_parallel"]:
        own = ["dp", *[units.NONE] * 4]
    sizes = units.format_count(choice["batch_tokens"]), units.format_count(choice["tokens"])
    end = days(choice["days"]), units.format_usd(choice["cost_usd"]), units.format_loss(choice["loss"])
    return (*end, str(choice["sites"]), *own, *sizes)


CHOICE_HEAD = ("time", "cost", "loss", "sites", "M", "H", "codec", "tau", "P", "batch", "tokens")


def choice_words(choice: dict[str, Any]) -> str:
    """A configuration in words, with what it comes to."""
    cost = "" if choice["cost_usd"] is None else f", {units.format_usd(choice['cost_usd'])}"
    loss_after = f"loss {units.format_loss(choice['loss'])} after {units.format_tokens(choice['tokens'])}"
    sites, batch = units.format_things(choice["sites"], "site"), units.format_tokens(choice["batch_tokens"])
    how = f"data parallel on {sites}"
    if not choice["data_parallel"]:
        how = (
            f"{units.format_things(choice['replicas'], 'replica')} on {sites}, H = {choice['sync_every']}, "
            f"{choice['codec']}, overlap {choice['overlap']}, {units.format_things(choice['fragments'], 'fragment')}"
        )
    return f"{how}, batch {batch}: {days(choice['days'])}{cost}, {loss_after}"


def choice_options(choice: dict[str, Any]) -> str:
    """What asks for a configuration of DiLoCo."""
    names = ("replicas", "sync_every", "codec", "overlap", "fragments", "batch_tokens", "tokens")
    given = {name.replace("_", "-"): choice[name] for name in names}
    return " ".join(
        f"--{name} {value:.0f}" if isinstance(value, float) else f"--{name} {value}" for name, value in given.items()
    )


def days(value: float | None) -> str:
    """1.413 -> "1.41 days"."""
    return units.format_days(math.inf if value is None else value)


def needed(gbit_per_s: float | None) -> str:
    """A bandwidth; "none will do" where the link is not what is missing."""
    return units.format_needed(math.inf if gbit_per_s is None else gbit_per_s)


def split(line: dict[str, Any]) -> str:
    """How a replica's chips share it."""
    return f"{line['tensor']} x {line['pipeline']}" if line["tensor"] * line["pipeline"] > 1 else units.NONE


def _interval(line: dict[str, Any]) -> str:
    low, high = line["loss_low"], line["loss_high"]
    return units.NONE if low is None or math.isnan(low) else f"{low:.2f}-{high:.2f}"


def _seconds(value: float) -> str:
    return units.format_duration(value or None)
