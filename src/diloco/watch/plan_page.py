"""A plan as one HTML page that opens offline: the verdict first, then the methods side by side, pictures, and what it
rests on. Reads the plain record of `diloco plan --json` and the lists of `diloco.plan.pictures`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from diloco.watch import page, units
from diloco.watch.plan_charts import breakdown_chart, front_chart, goodput_chart, utilization_chart, window_chart

_DAY_S = 86400


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
    where = f"{record['chips']:,} chips"
    if sites > 1:
        where = f"{sites} sites with {where} over {units.bandwidth(1000 * record['between_gbit_per_s'])}"
    return f"{units.count(record['params'])} parameters, {units.count(record['tokens'])} tokens, {where}"


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
    sites = f"{choice['sites']} site{'s' * (choice['sites'] > 1)}"
    how = f"M = {choice['replicas']}, H = {choice['sync_every']}, {choice['codec']}, overlap {choice['overlap']}"
    how = "data parallel" if choice["data_parallel"] else how
    cost = f", {usd(choice['cost_usd'])}" if choice["cost_usd"] is not None else ""
    batch = units.count(choice["batch_tokens"])
    return [
        f"Of {search['tried']:,} settings tried, {goal}: {days(choice['days'])}{cost}, loss "
        f"{units.loss(choice['loss'])}, on {sites} with {how} and a batch of {batch} tokens."
    ]


def _facts(record: dict[str, Any]) -> str:
    pairs = [
        ("cost", usd(record["cost_usd"])),
        (f"loss, law {record['law']}", units.loss(record["loss"])),
        ("compute utilisation", percent(record["compute_utilization"])),
        ("a step", seconds(record["step_s"])),
        ("goodput in failures", percent(record["goodput"])),
    ]
    if record["sites"] > 1:
        pairs.insert(3, ("link for 95%", needed(record["gbit_per_s_needed"])))
        pairs.append(("sent a day", units.size(record["bytes_per_day"])))
    return page.facts(pairs)


def methods_section(record: dict[str, Any]) -> str:
    """A column a method: the one to decide between first, as a phone shows two."""
    first, *others = record["methods"].values()
    lines = [first, *others[::-1]]
    rows = [(label, *(show(line) for line in lines)) for label, show in _ROWS.items()]
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
        own = ["data parallel", *[units.NONE] * 4]
    sizes = units.count(choice["batch_tokens"]), units.count(choice["tokens"])
    return (
        days(choice["days"]),
        usd(choice["cost_usd"]),
        units.loss(choice["loss"]),
        str(choice["sites"]),
        *own,
        *sizes,
    )


def days(value: float | None) -> str:
    """1.413 -> "1.41 days", 0.4 -> "9 h 36 min"."""
    if value is None or value == float("inf"):
        return "never"
    if value < 1:
        return units.duration(value * _DAY_S)
    return f"{value:,.0f} days" if value >= 100 else f"{value:.3g} days"


def seconds(value: float) -> str:
    """0.672 -> "672 ms"."""
    return f"{1000 * value:.3g} ms" if 0 < value < 1 else units.duration(value)


def percent(share: float) -> str:
    """0.9501 -> "95.0%"."""
    return f"{100 * share:.1f}%"


def usd(value: float | None) -> str:
    """13_100 -> "$13.1k"."""
    return units.NONE if value is None or value == float("inf") else f"${units.count(value)}"


def needed(gbit_per_s: float | None) -> str:
    """ "none will do" where the link is not what is missing."""
    if gbit_per_s is None or gbit_per_s == float("inf"):
        return "none will do"
    return units.bandwidth(1000 * gbit_per_s) if gbit_per_s else units.NONE


def _setting(line: dict[str, Any]) -> str:
    if line["data_parallel"]:
        return "every step, bf16"
    return f"H={line['sync_every']}, {line['codec']}"


def _interval(line: dict[str, Any]) -> str:
    low, high = line["loss_low"], line["loss_high"]
    return units.NONE if low is None or low != low else f"{low:.2f} to {high:.2f}"


def _seconds_or_none(value: float) -> str:
    return seconds(value) if value else units.NONE


_ROWS: dict[str, Callable[[dict[str, Any]], str]] = {
    "chips": lambda line: f"{line['chips']:,}",
    "replicas (M)": lambda line: str(line["replicas"]),
    "sync": _setting,
    "overlap, fragments": lambda line: f"{line['overlap']}, {line['fragments']}",
    "time": lambda line: days(line["days"]),
    "cost": lambda line: usd(line["cost_usd"]),
    "loss": lambda line: units.loss(line["loss"]),
    "95% of new runs": _interval,
    "compute utilisation": lambda line: percent(line["compute_utilization"]),
    "a step": lambda line: seconds(line["step_s"]),
    "tokens a second": lambda line: units.count(round(line["tokens_per_s"])),
    "waiting for the link": lambda line: _seconds_or_none(line["between_s"]),
    "waiting inside a site": lambda line: _seconds_or_none(line["inside_s"] + line["codec_s"] + line["bubble_s"]),
    "link for 90%": lambda line: needed(line["gbit_per_s_needed_at"]["0.9"]),
    "link for 95%": lambda line: needed(line["gbit_per_s_needed_at"]["0.95"]),
    "link for 99%": lambda line: needed(line["gbit_per_s_needed_at"]["0.99"]),
    "sent a day": lambda line: units.size(line["bytes_per_day"]) if line["bytes_per_day"] else units.NONE,
    "memory of a chip": lambda line: f"{units.size(line['memory_bytes'])} of {units.size(line['chip_bytes'])}",
    "goodput in failures": lambda line: percent(line["goodput"]),
}
