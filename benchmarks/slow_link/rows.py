"""From what two ranks measured to a row of the table. Pure."""

from __future__ import annotations

import statistics

from slow_link.cells import Cell

# Less than this is the network's own talk, not a transfer.
TRANSFER_BYTES = 2000


def row(cell: Cell, ranks: list[dict]) -> dict:
    """One measured cell. Times are means over the timed steps and both ranks, but for the two medians of `inner`."""
    step_s = statistics.fmean(r["total_s"] for r in ranks) / cell.steps
    alone_s = statistics.fmean(t for r in ranks for t in r["alone_s"])
    during, outside = _inner_split(ranks)
    metered = [r["metered_bytes"] for r in ranks if "metered_bytes" in r]
    return {
        **_names(cell),
        "steps": cell.steps,
        "step_s": step_s,
        "compute_only_step_s": alone_s,
        "compute_utilization": alone_s / step_s,
        "tokens_per_s": len(ranks) * cell.tokens / step_s,
        "sync_s_per_step": statistics.fmean(t for r in ranks for t in r["sync_s"]),
        "inner_s_during_transfer": during,
        "inner_s_outside_transfer": outside,
        "steps_during_transfer": sum(b > TRANSFER_BYTES for r in ranks for b in r["step_sent_bytes"]) / len(ranks),
        "line_bytes_per_replica": statistics.fmean(r["line_bytes"] for r in ranks),
        "socket_bytes_per_replica": statistics.fmean(r["socket_bytes"] for r in ranks),
        "metered_bytes_per_replica": statistics.fmean(metered) if metered else None,
        "rounds": ranks[0]["rounds"],
        "note": cell.note,
    }


def _names(cell: Cell) -> dict:
    return {"model": cell.model, "method": cell.method, "link": cell.link or None, "path": cell.path}


def failed(cell: Cell, why: str) -> dict:
    """The row of a cell that gave no numbers."""
    return {**_names(cell), "note": why}


def _inner_split(ranks: list[dict]) -> tuple[float | None, float | None]:
    """Median seconds of the inner steps in which bytes left, and of the others."""
    during, outside = [], []
    for r in ranks:
        for inner_s, sent in zip(r["inner_s"], r["step_sent_bytes"], strict=True):
            (during if sent > TRANSFER_BYTES else outside).append(inner_s)
    return (statistics.median(during) if during else None, statistics.median(outside) if outside else None)


def compare(rows: list[dict], against: dict[tuple[str, str, str], float], name: str) -> list[dict]:
    """For each cell of `against` (model, method, link -> seconds a step): beside the kernel's link, and the ratio."""
    measured = {(r["model"], r["method"], r["link"]): r for r in rows if r.get("path") == "tbf" and "step_s" in r}
    return [
        {
            **dict(zip(("model", "method", "link"), key, strict=True)),
            f"{name}_step_s": step_s,
            "tbf_step_s": measured[key]["step_s"],
            "ratio": step_s / measured[key]["step_s"],
            **_sync_ratio(step_s, measured[key]),
        }
        for key, step_s in against.items()
        if key in measured
    ]


def _sync_ratio(step_s: float, measured: dict) -> dict:
    """The same with the inner step taken off both: a stricter look, where there is a wait worth the name."""
    inner_s = measured["compute_only_step_s"]
    wait_s = measured["step_s"] - inner_s
    return {"ratio_of_waits": (step_s - inner_s) / wait_s} if wait_s > 0.1 * inner_s else {}


def updated(old: dict, new: dict) -> dict:
    """The new result with the old one's rows of cells that it lacks, in the old order."""
    merged = {**new, "took_s": old["took_s"] + new["took_s"]}
    for name in ("rows", "throttle", "virtual"):
        fresh = {_key(row): row for row in new[name]}
        kept = [fresh.pop(_key(row), row) for row in old[name]]
        merged[name] = kept + list(fresh.values())
    return merged


def _key(row: dict) -> tuple:
    return tuple(row.get(name) for name in ("model", "method", "link", "path"))


def lines(rows: list[dict]) -> list[str]:
    """The table as text."""
    head = f"{'model':<6}{'method':<16}{'link':<9}{'path':<9}{'steps':>6}{'step ms':>10}{'tokens/s':>10}{'compute':>9}"
    head += f"{'line MB':>9}{'payload':>9}{'metered':>9}{'inner during/outside ms':>26}  note"
    return [head, *map(_line, rows)]


def _line(row: dict) -> str:
    start = f"{row['model']:<6}{row['method']:<16}{row['link'] or '-':<9}{row['path']:<9}"
    if "step_s" not in row:
        return f"{start}  {row['note']}"
    metered, during = row["metered_bytes_per_replica"], row["inner_s_during_transfer"]
    inner = f"{1e3 * during:.1f} / {1e3 * row['inner_s_outside_transfer']:.1f}" if _both(row) else "-"
    return (
        f"{start}{row['steps']:>6}{1e3 * row['step_s']:>10.1f}{row['tokens_per_s']:>10.0f}"
        f"{row['compute_utilization']:>9.1%}{row['line_bytes_per_replica'] / 1e6:>9.2f}"
        f"{row['socket_bytes_per_replica'] / 1e6:>9.2f}"
        f"{'-' if metered is None else f'{metered / 1e6:.2f}':>9}{inner:>26}  {row['note']}"
    )


def _both(row: dict) -> bool:
    """Whether there were inner steps of either kind."""
    return row["inner_s_during_transfer"] is not None and row["inner_s_outside_transfer"] is not None
