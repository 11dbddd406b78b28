"""Every cell of two published utilisation tables, from one set of assumptions.

OMP_NUM_THREADS=1 pytest tests/plan/test_utilization.py
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from diloco.errors import BadInput
from diloco.plan.graph import Method, Wire, Workload
from diloco.plan.utilization import (
    GRID_GBIT_PER_S,
    Cell,
    grid_cell,
    grid_index,
    needed_gbit_per_s,
    paper_method,
    printed,
    published_table,
    recompute,
    utilization,
)

FAR = {("Chinchilla 10B", "DiLoCo H=50", 0.95), ("Chinchilla 10B", "DiLoCo H=100", 0.95)}
"""Two grid steps off: docs/plan-model.md says why."""


@cache
def cells(name: str) -> list[Cell]:
    return [recompute(record) for record in published_table(name)]


def test_the_grid_is_the_papers() -> None:
    assert np.allclose(GRID_GBIT_PER_S, np.logspace(-1, 3, 50), rtol=1e-14)
    grid = {grid_cell(i) for i in range(51)}
    for name in ("streaming_t04", "scaling_t06"):
        assert {record["gbit_per_s"] for record in published_table(name)} <= grid
    assert printed(0.4498) == "0.5" and grid_cell(50) == "1000.0+"


def test_streaming_table_within_one_grid_step() -> None:
    found = cells("streaming_t04")
    assert len(found) == 75 and max(abs(c.steps_off) for c in found) <= 1
    assert sum(c.steps_off == 0 for c in found) == 70
    assert all(c.steps_off == 0 for c in found if "overlapped" not in c.method)


def test_scaling_table_within_one_grid_step_but_for_two_cells() -> None:
    found = cells("scaling_t06")
    assert len(found) == 90 and {(c.model, c.method, c.target) for c in found if abs(c.steps_off) > 1} == FAR
    assert sum(c.steps_off == 0 for c in found) == 42


def test_over_both_tables_95_percent_are_within_one_grid_step() -> None:
    found = cells("streaming_t04") + cells("scaling_t06")
    assert sum(abs(c.steps_off) <= 1 for c in found) / len(found) >= 0.95


UNROUNDED_STEP_S = {"Chinchilla 10B": "0.85", "Llama3 405B": "26.9", "DeepSeek-V3 671B": "20.1"}


def test_unrounded_step_times_and_a_window_of_h_plus_10_steps_explain_the_rest() -> None:
    """26.9 and 20.1 s are printed in Figure 16 of the other paper, and 0.8 may be anything below 0.85; the window is
    inferred (docs/plan-model.md)."""
    records = [{**r, "step_time_s": UNROUNDED_STEP_S[r["model"]]} for r in published_table("scaling_t06")]
    found = [recompute(record, steps_after_sync=10) for record in records]
    exact = {model: sum(c.steps_off == 0 for c in found if c.model == model) for model in UNROUNDED_STEP_S}
    assert exact["Llama3 405B"] == 30 and exact["DeepSeek-V3 671B"] == 28
    assert all(abs(c.steps_off) <= 1 for c in found)


def test_the_first_grid_point_is_found_as_by_looking_at_all() -> None:
    work = Workload(1e9, 24, 0.1)
    for name in ("Data-Parallel", "DiLoCo", "Streaming overlapped FP4", "Streaming DiLoCo, 1 outer step eager"):
        method = paper_method(name)
        reached = [utilization(work, method, g, 5 / 6) for g in GRID_GBIT_PER_S]
        assert reached == sorted(reached), "more bandwidth is never worse"
        for target in (0.5, 0.95):
            assert grid_index(work, method, target) == next(i for i, u in enumerate(reached) if u >= target)


@pytest.mark.parametrize(
    "name, expected",
    [
        ("Data-Parallel", Method()),
        ("DiLoCo H=30", Method(30)),
        ("DiLoCo", Method(100)),
        ("Streaming DiLoCo", Method(100, 3)),
        ("Streaming overlapped FP4", Method(100, 3, 1, 4.0)),
        ("Streaming DiLoCo with 1-inner-step overlap", Method(100, 3, 1)),
        ("Streaming DiLoCo with 1-outer-step overlapped FP4 communication", Method(100, 3, 100, 4.0)),
        ("Streaming DiLoCo, 2 outer steps eager", Method(100, 3, 200)),
        ("DiLoCo delayed H=30", Method(30, None, 30)),
    ],
)
def test_methods_are_read_from_the_tables_names(name, expected) -> None:
    assert paper_method(name) == expected


def test_needed_bandwidth() -> None:
    work, method = Workload(1e9, 24, 0.1), Method(sync_every=100)
    needed = needed_gbit_per_s(work, method, 0.9)
    assert utilization(work, method, needed) == pytest.approx(0.9, abs=1e-4)
    assert needed_gbit_per_s(work, Method(), 0.99, Wire(1.0, latency_s=1.0)) == float("inf")


def test_nonsense_is_refused() -> None:
    with pytest.raises(BadInput, match="is in no table"):
        paper_method("gossip")
    with pytest.raises(BadInput, match="give a share between 0 and 1"):
        needed_gbit_per_s(Workload(1e9, 2, 1.0), Method(), 1.0)
    with pytest.raises(BadInput, match="not on the grid"):
        recompute({**published_table("streaming_t04")[0], "gbit_per_s": "87.0"})
