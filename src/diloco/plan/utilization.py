"""Compute utilisation against bandwidth, and the bandwidth that a utilisation needs, as the papers tabulate it.

Tables: arXiv:2501.18512v1 Table 4, arXiv:2503.09799v1 Table 6. docs/plan-model.md says how the assumptions were found.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, replace
from importlib import resources

from diloco.errors import BadInput
from diloco.plan.graph import Method, Wire, Workload
from diloco.plan.steps import simulate

GRID_GBIT_PER_S: tuple[float, ...] = tuple(10 ** (-1 + 4 * i / 49) for i in range(50))
"""Bandwidths of the papers' tables: a cell is the first of them that reaches its target."""

TARGETS = (0.5, 0.8, 0.9, 0.95, 0.99)

PAPER_WIRE_FACTOR = 5 / 6
"""Bits on the link for each bit of payload in the papers' simulator. Not printed there: it is the one number that was
solved for, from the tables, and it fits their six models alike."""

PAPER_SYNC_EVERY, PAPER_FRAGMENT_LAYERS = 100, 3
PAPER_BITS, PAPER_FP4_BITS = 16.0, 4.0

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
    steps_off: int
    """Grid points between them; above 0 where ours is higher."""


def paper_method(name: str, sync_every: int = PAPER_SYNC_EVERY) -> Method:
    """A method as the papers' tables call it; H stands in the name or is `sync_every`.

    Raises:
        BadInput: no table has such a method.
    """
    words = name.lower().replace("-", " ").replace("_", " ")
    if "h=" in words:
        words, _, digits = words.partition("h=")
        sync_every = int(digits.split()[0])
    streaming = "streaming" in words
    if not streaming and "diloco" not in words and "data parallel" not in words:
        raise BadInput(f"method {name!r} is in no table: give Data-Parallel, DiLoCo, or Streaming DiLoCo")
    if "data parallel" in words:
        return Method()
    return Method(
        sync_every=sync_every,
        fragment_layers=PAPER_FRAGMENT_LAYERS if streaming else None,
        overlap_steps=_overlap_steps(words, sync_every),
        bits_per_param=PAPER_FP4_BITS if "fp4" in words else PAPER_BITS,
    )


def _overlap_steps(words: str, sync_every: int) -> int:
    """Of "overlapped" (1 inner step), "5 inner steps", "1 outer step", "eager" and "delayed" (1 outer step)."""
    counted = re.search(r"(\d+) (inner|outer) step", words)
    if counted:
        return int(counted[1]) * (sync_every if counted[2] == "outer" else 1)
    if any(word in words for word in ("eager", "delayed", "outer step")):
        return sync_every
    return 1 if "overlap" in words else 0


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


def published_table(name: str) -> list[dict[str, str]]:
    """The records of a table in the package's data: streaming_t04 or scaling_t06."""
    text = resources.files("diloco.plan").joinpath("data", f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def recompute(record: dict[str, str], sync_every: int = PAPER_SYNC_EVERY, steps_after_sync: int | None = None) -> Cell:
    """One cell of a table anew, from its model, params, layers, step_time_s, method, target_cu_pct and gbit_per_s.

    With `steps_after_sync` utilisation is that of a window of H + so many steps (docs/plan-model.md); without, of the
    long run.
    """
    work = Workload(float(record["params"]), int(record["layers"]), float(record["step_time_s"]))
    target = float(record["target_cu_pct"]) / 100
    method = paper_method(record["method"], sync_every)
    window_steps = None if steps_after_sync is None else method.sync_every + steps_after_sync
    index = grid_index(work, method, target, window_steps=window_steps)
    cells = [grid_cell(i) for i in range(len(GRID_GBIT_PER_S) + 1)]
    same = [i for i, cell in enumerate(cells) if cell == record["gbit_per_s"]]
    if not same:
        raise BadInput(f"gbit_per_s is {record['gbit_per_s']!r}, not on the grid: the nearest cells are {cells[:3]}")
    off = min((index - i for i in same), key=abs)
    return Cell(record["model"], record["method"], target, record["gbit_per_s"], cells[index], off)
