"""Compute utilisation against bandwidth, and the bandwidth that a utilisation needs, as the papers tabulate it.

Tables: arXiv:2501.18512v1 Table 4, arXiv:2503.09799v1 Table 6. docs/plan-model.md says how the assumptions were found.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diloco.errors import BadInput
from diloco.plan.graph import Method, Wire, Workload
from diloco.plan.method_names import PAPER_SYNC_EVERY, paper_method, read_name
from diloco.plan.steps import simulate
from diloco.plan.table_rows import Table, TableRow, UnreadRow, printed_gbit_per_s, read_table, refuse_none
from diloco.plan.table_rows import published_table as published_table

GRID_GBIT_PER_S: tuple[float, ...] = tuple(10 ** (-1 + 4 * i / 49) for i in range(50))
"""Bandwidths of the papers' tables: a cell is the first of them that reaches its target."""

TARGETS = (0.5, 0.8, 0.9, 0.95, 0.99)

PAPER_WIRE_FACTOR = 5 / 6
"""Bits on the link for each bit of payload in the papers' simulator. Not printed there: it is the one number that was
solved for, from the tables, and it fits their six models alike."""

MOST_GBIT_PER_S = 1e9
"""A utilisation that not even this reaches is given up."""


@dataclass(frozen=True)
class Cell:
    """A printed bandwidth and the one computed for it."""

    model: str
    method: str
    target: float
    printed: str
    computed: str
    steps_off: int | None
    """Grid points between them; above 0 where ours is higher. None where nothing is printed."""
    on_grid: bool = True
    """Whether what is printed is a cell of the grid; if not, `steps_off` counts from the nearest."""
    place: str = ""


class Cells(list[Cell]):
    """The cells of a table, and the rows that could not be read."""

    def __init__(self, cells: Iterable[Cell] = (), unread_rows: Iterable[UnreadRow] = ()) -> None:
        super().__init__(cells)
        self.unread_rows = tuple(unread_rows)


def printed(gbit_per_s: float) -> str:
    """As the papers round: twice. 222.29 -> "222.3"."""
    return f"{round(round(gbit_per_s, 2), 1):.1f}"


def utilization(
    work: Workload, method: Method, gbit_per_s: float, factor: float = 1.0, window_steps: int | None = None
) -> float:
    """Compute time over total time, 0 to 1: in the long run, or in a window that begins just after a cycle's end and
    so has only the whole cycles that fit into it."""
    cycle = simulate(work, method, Wire(gbit_per_s, factor=factor))
    if window_steps is None:
        return cycle.utilization
    waits_s = (window_steps // cycle.steps) * (cycle.total_s - cycle.compute_s)
    return window_steps * work.step_s / (window_steps * work.step_s + waits_s)


def grid_index(
    work: Workload,
    method: Method,
    target: float,
    factor: float = PAPER_WIRE_FACTOR,
    window_steps: int | None = None,
) -> int:
    """The first grid point that reaches `target`; the grid's length where none does."""
    low, high = 0, len(GRID_GBIT_PER_S)
    while low < high:
        middle = (low + high) // 2
        reached = utilization(work, method, GRID_GBIT_PER_S[middle], factor, window_steps) >= target
        low, high = (low, middle) if reached else (middle + 1, high)
    return low


def grid_cell(index: int) -> str:
    """What a table prints for a grid point: the bandwidth in Gbit/s, or "1000.0+" beyond the last."""
    return printed(GRID_GBIT_PER_S[index]) if index < len(GRID_GBIT_PER_S) else printed(GRID_GBIT_PER_S[-1]) + "+"


def needed_gbit_per_s(work: Workload, method: Method, target: float, wire: Wire | None = None) -> float:
    """The least bandwidth at which utilisation is `target`, to 0.1%; infinity where latency alone forbids it.

    `wire` gives the latency and the factor. Raises BadInput for a target outside 0 to 1.
    """
    if not 0 < target < 1:
        raise BadInput(f"target utilisation is {target:g}: give a share between 0 and 1, as 0.95")
    wire = wire or Wire(1.0)
    low, high = 1e-9, MOST_GBIT_PER_S
    if simulate(work, method, replace(wire, gbit_per_s=high)).utilization < target:
        return float("inf")
    while high > 1.001 * low:
        middle = (low * high) ** 0.5
        reached = simulate(work, method, replace(wire, gbit_per_s=middle)).utilization >= target
        low, high = (low, middle) if reached else (middle, high)
    return high


def recompute(
    record: Mapping[str, Any],
    sync_every: int = PAPER_SYNC_EVERY,
    steps_after_sync: int | None = None,
    layers: int | None = None,
    **method: Any,
) -> Cell:
    """One cell of a table anew, from its model, params, layers, step_time_s, method, target_cu_pct and gbit_per_s.

    Headers and units may be those that `recompute_table` reads, and so are the other arguments.

    Raises:
        BadInput: as `recompute_table`; and where the printed bandwidth is not on the grid, with the nearest that are.
    """
    rows = read_table([record], layers).rows
    if len(rows) != 1:
        raise BadInput(f"record has {len(rows)} targets: give it to recompute_table")
    cell = _cell(rows[0], sync_every, steps_after_sync, method)
    if not cell.on_grid:
        raise BadInput(f"gbit_per_s is {cell.printed!r}, which is not on the grid: the nearest {nearest(cell.printed)}")
    return cell


def recompute_table(
    table: str | Path | Iterable[Mapping[str, Any]] | Table,
    sync_every: int = PAPER_SYNC_EVERY,
    steps_after_sync: int | None = None,
    layers: int | None = None,
    **method: Any,
) -> Cells:
    """Every cell of a table of needed bandwidths anew; `unread_rows` of what it returns are those left out, and why.

    Args:
        table: a CSV file, mappings from header to cell, or what `read_table` made of either.
        sync_every: H of the methods whose names and rows have none.
        steps_after_sync: utilisation is that of a window of H + so many steps (docs/plan-model.md), or of the long run.
        layers: of the models whose layers are neither in the table nor known.
        method: other fields of `Method` for the methods whose names and rows say nothing of them.

    Raises:
        BadInput: a column is missing, a setting is none, or not one row is understood; says which row.
    """
    paper_method("Streaming DiLoCo", sync_every, **method)
    found = table if isinstance(table, Table) else read_table(table, layers)
    cells: list[Cell] = []
    unread: dict[tuple[str, str], int] = {(row.place, row.why): row.cells for row in found.unread_rows}
    for row in found.rows:
        try:
            cells.append(_cell(row, sync_every, steps_after_sync, method))
        except BadInput as error:
            key = (row.place, str(error))
            unread[key] = unread.get(key, 0) + 1
    left_out = [UnreadRow(place, why, count) for (place, why), count in unread.items()]
    left_out.sort(key=lambda row: int(row.place.split()[1]))
    refuse_none(cells, left_out)
    return Cells(cells, left_out)


def _cell(row: TableRow, sync_every: int, steps_after_sync: int | None, settings: dict[str, Any]) -> Cell:
    said = read_name(row.method)
    method = paper_method(row.method, **{"sync_every": sync_every, **settings, **row.settings})
    for key, value in row.settings.items():
        named = said.overlap and method.overlap_steps if key == "overlap_steps" else getattr(said, key)
        if named is not None and named != value:
            raise BadInput(f"method is {row.method!r} and {key} is {value:g}: leave one of them out")
    work = Workload(row.params, row.layers, row.step_s)
    window_steps = None if steps_after_sync is None else method.sync_every + steps_after_sync
    index = grid_index(work, method, row.target, window_steps=window_steps)
    found, on_grid = grid_points(row.printed) if row.printed else ([], True)
    off = min((index - i for i in found), key=abs, default=None)
    return Cell(row.model, row.method, row.target, row.printed, grid_cell(index), off, on_grid, row.place)


def grid_points(text: str) -> tuple[list[int], bool]:
    """The grid points that a printed bandwidth may be, of which the lowest print alike; or the nearest one and False.

    Raises:
        BadInput: it is no bandwidth.
    """
    value, more = printed_gbit_per_s(text)
    last = len(GRID_GBIT_PER_S)
    if more:
        return [last], value == round(GRID_GBIT_PER_S[-1])
    digits = len(repr(value).partition(".")[2])
    same = [i for i, g in enumerate(GRID_GBIT_PER_S) if f"{value:.1f}" == printed(g) and value == round(value, 1)]
    same = same or [i for i, g in enumerate(GRID_GBIT_PER_S) if digits > 1 and round(g, digits) == value]
    return (same, True) if same else ([_around(value)[0]], False)


def nearest(text: str) -> str:
    """The grid's cells around a printed bandwidth, "are 86.8 and 104.8"."""
    if printed_gbit_per_s(text)[1]:
        return f"is {grid_cell(len(GRID_GBIT_PER_S))}"
    cells = list(dict.fromkeys(grid_cell(i) for i in sorted(_around(printed_gbit_per_s(text)[0]))))
    return f"are {' and '.join(cells)}" if len(cells) > 1 else f"is {cells[0]}"


def _around(value: float) -> list[int]:
    """The one or two grid points next to a bandwidth, the nearest in ratio first."""
    below = [i for i, g in enumerate(GRID_GBIT_PER_S) if g <= value][-1:]
    above = [i for i, g in enumerate(GRID_GBIT_PER_S) if g > value][:1]
    return sorted(below + above, key=lambda i: abs(math.log(GRID_GBIT_PER_S[i] / value)))


def summary(cells: Sequence[Cell]) -> dict[str, int]:
    """How many cells are exact, within one grid step, further off, open in the table, and in rows not read."""
    off = [abs(cell.steps_off) for cell in cells if cell.steps_off is not None]
    return {
        "cells": len(cells),
        "exact": sum(steps == 0 for steps in off),
        "one_step_off": sum(steps == 1 for steps in off),
        "further_off": sum(steps > 1 for steps in off),
        "not_printed": len(cells) - len(off),
        "off_the_grid": sum(not cell.on_grid for cell in cells),
        "not_read": sum(row.cells for row in cells.unread_rows) if isinstance(cells, Cells) else 0,
    }
