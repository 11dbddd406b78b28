"""A recomputed table of needed bandwidths, as text for a terminal and as a JSON-ready object."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from diloco.cli.plan_text import columns
from diloco.plan.utilization import Cell, Cells, nearest, summary
from diloco.units import format_things


def table_text(cells: Cells, unread: Sequence[str], sync_every: int) -> str:
    """The summary, what else there is to know, and a line for each cell."""
    head = ("model", "method", "target", "printed", "ours", "grid steps off")
    rows = [
        (cell.model, cell.method, f"{100 * cell.target:g}%", cell.printed or "-", cell.computed, _off(cell))
        for cell in cells
    ]
    return "\n".join([*_sentences(cells, unread, sync_every), "", columns(head, rows, left=2)])


def table_record(cells: Cells, unread: Sequence[str], sync_every: int) -> dict[str, Any]:
    """`gbit_per_s` of a cell is what its table prints, `computed` what the model says, both in Gbit/s."""
    listed = [dataclasses.asdict(cell) for cell in cells]
    return {
        "summary": summary(cells),
        "sync_every": sync_every,
        "columns_not_read": list(unread),
        "rows_not_read": [dataclasses.asdict(row) for row in cells.unread_rows],
        "cells": listed,
    }


def _off(cell: Cell) -> str:
    if cell.steps_off is None:
        return ""
    return f"{cell.steps_off:+d}" if cell.steps_off else "0"


def _share(near: int, compared: int, not_read: int) -> str:
    """Of the whole table, and 100% for all of it alone."""
    whole = compared + not_read
    percent = 100 if near == whole else min(99, round(100 * near / whole))
    return f"{percent}% of {whole}" if not_read else f"{percent}%"


def _rows_not_read(cells: Cells) -> Iterator[str]:
    """Rows with one reason on one line."""
    places: dict[str, list[str]] = {}
    for row in cells.unread_rows:
        places.setdefault(row.why, []).append(row.place)
    for why, where in places.items():
        numbers = [place.split()[1] for place in where]
        source = where[0].split(maxsplit=2)[2:]
        yield f"not read: {' '.join(['rows' if len(where) > 1 else 'row', ', '.join(numbers), *source])}: {why}"


def _sentences(cells: Cells, unread: Sequence[str], sync_every: int) -> list[str]:
    counts = summary(cells)
    further = f", {counts['further_off']} further off" if counts["further_off"] else ""
    compared = counts["cells"] - counts["not_printed"]
    share = f" ({_share(counts['exact'] + counts['one_step_off'], compared, counts['not_read'])} within one)"
    share = share if compared else ""
    near = f"{counts['exact']} exact, {counts['one_step_off']} one grid step off"
    lines = [f"{format_things(counts['cells'], 'cell')} in Gbit/s: {near}{further}{share}"]
    lines += _rows_not_read(cells)
    if counts["not_printed"]:
        one = counts["not_printed"] == 1
        lines.append(f"{format_things(counts['not_printed'], 'cell')} print{'s' * one} nothing to compare with")
    lines += [
        f"{cell.place}: {cell.printed} is not on the grid; the nearest {nearest(cell.printed)}"
        for cell in cells
        if not cell.on_grid
    ]
    lines.append(f"H is {sync_every} where neither method nor table says (--sync-every)")
    if unread:
        lines.append(f"columns not read: {', '.join(unread)}")
    return lines
