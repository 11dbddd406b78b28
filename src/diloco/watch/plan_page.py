"""A plan as one HTML page that opens offline: the verdict first, then the methods side by side, pictures, and what it
rests on. Reads the plain record of `diloco plan --json` and the lists of `diloco.plan.pictures`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diloco import units
from diloco.watch import page
from diloco.watch.plan_charts import breakdown_chart, front_chart, goodput_chart, utilization_chart, window_chart
from diloco.watch.plan_rows import (
    CHOICE_HEAD,
    choice_options,
    choice_row,
    choice_words,
    common_rows,
    days,
    figures,
    needed,
)


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
        page.section("What it rests on", page.notes(_grounds(record))),
    ]
    return page.write_page(Path(path), f"plan {title(record)} \N{EN DASH} diloco", body)


def title(record: dict[str, Any]) -> str:
    """ "7B parameters, 140B tokens, 2 sites over 1 Gbit/s"."""
    sites = record["sites"]
    where = units.format_things(record["chips"], "chip")
    if sites > 1:
        where = f"{sites} sites with {where} over {units.format_bandwidth(record['between_gbit_per_s'])}"
    return f"{units.format_count(record['params'])} parameters, {units.format_tokens(record['tokens'])}, {where}"


def _headline(record: dict[str, Any]) -> str:
    alone = record["methods"]["one_site"]
    advice = [record["advice"]] if record["advice"] else []
    verdict = record["verdict"]
    word, colon, rest = verdict.partition(": ")
    if record["sites"] == 1 or not colon:
        return page.headline(days(record["days"]), f"by {record['label']}", [verdict, *advice])
    unit = f"{days(record['days'])}, alone {days(alone['days'])}"
    return page.headline(word, unit, [rest[:1].upper() + rest[1:], *advice, *_found(record)])


def _found(record: dict[str, Any]) -> list[str]:
    """What a search would rather do, in a sentence, and the options that ask for it."""
    search = record.get("search")
    if search is None:
        return []
    choice, goal = (search["best"], search["goal"]) if search["best"] else (search["front"][0], "the least time")
    said = [f"Of {search['tried']:,} settings tried, {goal}: {choice_words(choice)}."]
    if search["best"] and not choice["data_parallel"] and choice["sites"] == record["sites"]:
        said.append(f"Side by side with the others by {choice_options(choice)}")
    return said


def _facts(record: dict[str, Any]) -> str:
    pairs = [
        ("cost", units.format_usd(record["cost_usd"])),
        (f"loss, law {record['law']}", units.format_loss(record["loss"])),
        ("compute utilisation", units.format_share(record["compute_utilization"])),
        ("a step", units.format_duration(record["step_s"])),
        ("goodput under failures", units.format_share(record["goodput"])),
    ]
    if record["sites"] > 1:
        pairs.insert(3, ("link for 95% at this H", needed(record["gbit_per_s_needed"])))
        pairs.append(("sent over the link a day", units.format_bytes(record["bytes_per_day"])))
    return page.facts(pairs)


def methods_section(record: dict[str, Any]) -> str:
    """A column a method: the one to decide between first, as a phone shows two."""
    first, *others = record["methods"].values()
    lines = [first, *others[::-1]]
    rows = common_rows([_settings(line) | figures(line, record["law"]) for line in lines])
    return page.section("Side by side", page.table(("", *(line["label"] for line in lines)), rows))


def _grounds(record: dict[str, Any]) -> list[str]:
    search = record.get("search")
    tried = [f"of the settings tried {search['length']}"] if search and search["length"] else []
    return [*record["warnings"], *record["assumptions"], *tried, *record["notes"]]


def _search_section(search: dict[str, Any] | None) -> str:
    if search is None:
        return ""
    rows = [(name, *choice_row(choice)) for name, choice in _choices(search)]
    return page.section("Best of what was tried", page.table(("", *CHOICE_HEAD), rows))


def _choices(search: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    best = [(search["goal"], search["best"])] if search["best"] else []
    return best + [("nothing beats it", choice) for choice in search["front"] if choice != search["best"]]


def _settings(line: dict[str, Any]) -> dict[str, str]:
    """What tells a method's run from the others."""
    return {
        "chips": f"{line['chips']:,}",
        "replicas (M)": str(line["replicas"]),
        "sync": "H=1, bf16" if line["data_parallel"] else f"H={line['sync_every']}, {line['codec']}",
        "overlap, fragments": f"{line['overlap']}, {line['fragments']}",
    }
