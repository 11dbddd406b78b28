"""A plan as one HTML page that opens offline: the verdict first, then the methods side by side, pictures, and what it
rests on. Reads the plain record of `diloco plan --json` and the lists of `diloco.plan.pictures`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from diloco.plan import units
from diloco.watch import page
from diloco.watch.plan_charts import breakdown_chart, front_chart, goodput_chart, utilization_chart, window_chart

_NONE = "\N{EN DASH}"


def write_plan_page(path: str | Path, record: dict[str, Any], pictures: dict[str, Any]) -> Path:
    """Write the page of an answer and return its path.

    Args:
        record: what `diloco plan --json` prints.
        pictures: `diloco.plan.pictures.pictures(answer)`.
    """
    search = record.get("search")
    body = [
        page.heading("diloco plan", title(record)),
        _headline(record),
        _facts(record),
        methods_section(record),
        _search_section(search),
        page.grid([utilization_chart(pictures["utilization"]), goodput_chart(pictures["goodput"])]),
        window_chart(pictures["window"]),
        page.grid([breakdown_chart(pictures["breakdown"], group) for group in ("H", "M")]),
        front_chart(search, record["law"]),
        page.section("What it rests on", page.notes([*record["assumptions"], *record["notes"]])),
    ]
    return page.write_page(Path(path), f"plan {title(record)} \N{EN DASH} diloco", body)


def title(record: dict[str, Any]) -> str:
    """ "7B parameters, 140B tokens, 2 sites over 1 Gbit/s"."""
    sites = record["sites"]
    where = units.format_things(record["chips"], "chip")
    if sites > 1:
        where = f"{sites} sites with {where} over {units.format_bandwidth(record['between_gbit_per_s'])}"
    return f"{units.format_count(record['params'])} parameters, {units.format_count(record['tokens'])} tokens, {where}"


def _headline(record: dict[str, Any]) -> str:
    alone = record["methods"]["one_site"]
    verdict = record["verdict"]
    word, colon, rest = verdict.partition(": ")
    if record["sites"] == 1 or not colon:
        return page.headline(days(record["days"]), f"by {record['label']}", [verdict])
    unit = f"{days(record['days'])}, alone {days(alone['days'])}"
    return page.headline(word, unit, [rest[:1].upper() + rest[1:], *_found(record.get("search"))])


def _found(search: dict[str, Any] | None) -> list[str]:
    """What a search would rather do, in a sentence."""
    if search is None:
        return []
    choice, goal = (search["best"], search["goal"]) if search["best"] else (search["front"][0], "the least time")
    sites = units.format_things(choice["sites"], "site")
    how = f"M = {choice['replicas']}, H = {choice['sync_every']}, {choice['codec']}, overlap {choice['overlap']}"
    how = "data parallel" if choice["data_parallel"] else how
    cost = f", {usd(choice['cost_usd'])}" if choice["cost_usd"] is not None else ""
    batch = units.format_count(choice["batch_tokens"])
    return [
        f"Of {search['tried']:,} settings tried, {goal}: {days(choice['days'])}{cost}, loss "
        f"{units.format_loss(choice['loss'])}, on {sites} with {how} and a batch of {batch} tokens."
    ]


def _facts(record: dict[str, Any]) -> str:
    pairs = [
        ("cost", usd(record["cost_usd"])),
        (f"loss, law {record['law']}", units.format_loss(record["loss"])),
        ("compute utilisation", units.format_share(record["compute_utilization"])),
        ("a step", units.format_duration(record["step_s"])),
        ("goodput in failures", units.format_share(record["goodput"])),
    ]
    if record["sites"] > 1:
        pairs.insert(3, ("link for 95% at this H", needed(record["gbit_per_s_needed"])))
        pairs.append(("sent a day", units.format_bytes(record["bytes_per_day"])))
    return page.facts(pairs)


def methods_section(record: dict[str, Any]) -> str:
    """A column a method: the one to decide between first, as a phone shows two."""
    first, *others = record["methods"].values()
    lines = [first, *others[::-1]]
    rows = [(label, *cells) for label, show in _ROWS.items() if {*(cells := [show(line) for line in lines])} != {_NONE}]
    return page.section("Side by side", page.table(("", *(line["label"] for line in lines)), rows))


def _search_section(search: dict[str, Any] | None) -> str:
    if search is None:
        return ""
    rows = [(name, *_choice(choice)) for name, choice in _choices(search)]
    head = ("", "time", "cost", "loss", "sites", "M", "H", "codec", "tau", "P", "batch", "tokens")
    return page.section("Best of what was tried", page.table(head, rows))


def _choices(search: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    best = [(search["goal"], search["best"])] if search["best"] else []
    return best + [("nothing beats it", choice) for choice in search["front"] if choice != search["best"]]


def _choice(choice: dict[str, Any]) -> tuple[str, ...]:
    own = [str(choice[key]) for key in ("replicas", "sync_every", "codec", "overlap", "fragments")]
    if choice["data_parallel"]:
        own = ["data parallel", *[_NONE] * 4]
    sizes = units.format_count(choice["batch_tokens"]), units.format_count(choice["tokens"])
    return (
        days(choice["days"]),
        usd(choice["cost_usd"]),
        units.format_loss(choice["loss"]),
        str(choice["sites"]),
        *own,
        *sizes,
    )


def days(value: float | None) -> str:
    """1.413 -> "1.41 days"; JSON writes infinity as null."""
    return units.format_days(float("inf") if value is None else value)


def usd(value: float | None) -> str:
    """13_100 -> "$13.1k"."""
    return _NONE if value is None or value == float("inf") else units.format_usd(value)


def needed(gbit_per_s: float | None) -> str:
    """ "none will do" where the link is not what is missing."""
    return units.format_needed(float("inf") if gbit_per_s is None else gbit_per_s, _NONE)


def _setting(line: dict[str, Any]) -> str:
    if line["data_parallel"]:
        return "H=1, bf16"
    return f"H={line['sync_every']}, {line['codec']}"


def _interval(line: dict[str, Any]) -> str:
    low, high = line["loss_low"], line["loss_high"]
    return _NONE if low is None or low != low else f"{low:.2f} to {high:.2f}"


def _split(line: dict[str, Any]) -> str:
    return f"{line['tensor']} x {line['pipeline']}" if line["tensor"] * line["pipeline"] > 1 else _NONE


def _seconds_or_none(value: float) -> str:
    return units.format_duration(value) if value else _NONE


_ROWS: dict[str, Callable[[dict[str, Any]], str]] = {
    "chips": lambda line: f"{line['chips']:,}",
    "replicas (M)": lambda line: str(line["replicas"]),
    "sync": _setting,
    "overlap, fragments": lambda line: f"{line['overlap']}, {line['fragments']}",
    "time": lambda line: days(line["days"]),
    "cost": lambda line: usd(line["cost_usd"]),
    "loss": lambda line: units.format_loss(line["loss"]),
    "95% of new runs": _interval,
    "compute utilisation": lambda line: units.format_share(line["compute_utilization"]),
    "a step": lambda line: units.format_duration(line["step_s"]),
    "computing": lambda line: units.format_duration(line["compute_s"]),
    "tokens a second": lambda line: units.format_count(line["tokens_per_s"]),
    "waiting for the link": lambda line: _seconds_or_none(line["between_s"]),
    "waiting inside a site": lambda line: _seconds_or_none(line["inside_s"] + line["codec_s"]),
    "pipeline bubble": lambda line: _seconds_or_none(line["bubble_s"]),
    "tensor x pipeline": _split,
    "link for 90% at this H": lambda line: needed(line["gbit_per_s_needed_at"]["0.9"]),
    "link for 95% at this H": lambda line: needed(line["gbit_per_s_needed_at"]["0.95"]),
    "link for 99% at this H": lambda line: needed(line["gbit_per_s_needed_at"]["0.99"]),
    "sent a day": lambda line: units.format_bytes(line["bytes_per_day"]) if line["bytes_per_day"] else _NONE,
    "memory of a chip": lambda line: units.format_bytes(line["memory_bytes"]),
    "that can be used": lambda line: units.format_bytes(line["chip_bytes"]),
    "goodput in failures": lambda line: units.format_share(line["goodput"]),
}
