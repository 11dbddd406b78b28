"""The planner against step times that were measured over slow links, and the terms that it needed for that.

OMP_NUM_THREADS=1 pytest tests/plan/test_reality.py
"""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from diloco.errors import BadInput
from diloco.plan.catalogue import catalogue
from diloco.plan.clock import clock, with_between
from diloco.plan.graph import Method, Wire, Workload
from diloco.plan.hardware import TCP_FRAMING, Cluster, Link, Speed
from diloco.plan.model import get_model
from diloco.plan.run import Run
from diloco.plan.steps import simulate, timeline
from diloco.wire.link import LINE_BYTES_PER_SENT_BYTE

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ANOTHER_DAY = {("10m", "streaming-e3m0", "5mbit", "tbf")}
"""Measured when the machine was slower by a tenth, which one time for all cells of a model cannot know."""


@pytest.fixture(scope="module")
def reality() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plan_reality", BENCHMARKS / "plan_reality.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def kept(name: str) -> dict:
    return json.loads((BENCHMARKS / "results" / f"{name}.json").read_text())


def names(row: dict) -> tuple[str, ...]:
    return tuple(row[name] for name in ("model", "method", "link", "path"))


# -- the table


def test_the_kept_table_is_what_the_planner_says_now(reality) -> None:
    table, now = kept("plan_reality"), reality.table(kept("slow_link"), kept("exchange_times"))
    assert now["summary"].keys() == table["summary"].keys() == set(reality.PREDICTIONS)
    for row, old in zip(now["rows"], table["rows"], strict=True):
        assert names(row) == names(old)
        for name, value in old.items():
            assert row[name] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), name


@pytest.mark.parametrize("name", ["clock", "steps", "one", "exchange"])
def test_step_times_are_within_10_percent(name) -> None:
    rows = kept("plan_reality")["rows"]
    assert len(rows) >= 29
    assert {names(row) for row in rows if abs(row[f"{name}_error"] or 0) > 0.10} == (
        ANOTHER_DAY if name == "one" else set()
    )


def test_every_measured_cell_that_exchanges_something_is_in_the_table() -> None:
    silent = {"compute", "socket"}
    measured = {names(r) for r in kept("slow_link")["rows"] if "step_s" in r and r["method"] not in silent}
    assert measured == {names(r) for r in kept("plan_reality")["rows"]}


def test_a_cell_by_hand(reality) -> None:
    """The bytes that the run itself counted, framed, at 20 Mbit/s, once in H steps."""
    slow_link = kept("slow_link")
    (cell,) = [c for c in reality.cells(slow_link) if (c.model, c.method, c.link, c.path) ==
               ("1m", "diloco", "20mbit", "tbf")]  # fmt: skip
    (row,) = [r for r in slow_link["rows"] if names(r) == ("1m", "diloco", "20mbit", "tbf")]
    payload_bytes = row["metered_bytes_per_replica"] / row["rounds"]
    wanted = row["compute_only_step_s"] + payload_bytes * 8 * 1538 / 1448 / 20e6 / 100
    assert reality.clock_s(cell.run(cell.alone_s)) == pytest.approx(wanted, rel=1e-3)


def test_the_command_prints_the_table_of_any_result_file(reality, tmp_path, monkeypatch, capsys) -> None:
    slow_link = kept("slow_link")
    slow_link["rows"] = [r for r in slow_link["rows"] if r["model"] == "1m" and r["link"] == "20mbit"]
    (given := tmp_path / "mine.json").write_text(json.dumps(slow_link))
    out = tmp_path / "table.json"
    monkeypatch.setattr(sys, "argv", ["plan_reality.py", "--slow-link", str(given), "--out", str(out)])
    assert reality.main() == 0
    assert "clock: 6 of 6 cells within 10%" in capsys.readouterr().out
    assert all(row["exchange_s"] is None for row in json.loads(out.read_text())["rows"])


@pytest.mark.parametrize("text", ["", "[]", '{"rows": []}'])
def test_files_without_cells_are_refused(reality, tmp_path, monkeypatch, capsys, text) -> None:
    (given := tmp_path / "none.json").write_text(text)
    monkeypatch.setattr(sys, "argv", ["plan_reality.py", "--slow-link", str(given)])
    assert reality.main() == 2
    assert "give what" in capsys.readouterr().err


# -- framing and the share of a step that hides gradients


def run_of(**changes) -> Run:
    known = catalogue()
    model = replace(get_model("7b"), params=1e6, active_params=None)
    cluster = Cluster((known.site("laptop-cpu", 1),) * 2, Link("b", 0.008))
    run = Run(model, cluster, Speed(6e9, "given"), 2000, 2000, 2, sync_every=1, data_parallel=True)  # computes for 1 s
    return replace(run, **changes)


def test_framing_is_that_of_the_wire() -> None:
    assert TCP_FRAMING == LINE_BYTES_PER_SENT_BYTE


def test_framing_lengthens_what_is_on_the_line_and_nothing_else() -> None:
    bare = run_of(backward_share=0.0)
    framed = replace(bare, cluster=replace(bare.cluster, between=Link("b", 0.008, 0.5, framing=1.25)))
    assert clock(bare).step_s == pytest.approx(1 + 4.0)
    assert clock(framed).step_s == pytest.approx(1 + 1.25 * 4.0 + 2 * 0.5)
    assert clock(with_between(framed, 0.016)).step_s == pytest.approx(1 + 1.25 * 2.0 + 2 * 0.5)


@pytest.mark.parametrize("share, wanted_s", [(0.0, 5.0), (0.5, 4.5), (1.0, 4.0)])
def test_gradients_hide_behind_as_much_of_a_step_as_is_said(share, wanted_s) -> None:
    assert clock(run_of(backward_share=share)).step_s == pytest.approx(wanted_s)


def test_impossible_terms_are_refused() -> None:
    with pytest.raises(BadInput, match="framing of 0.5: give 1 or more"):
        Link("b", 1.0, framing=0.5)
    with pytest.raises(BadInput, match="backward_share is 1.5: give a share"):
        run_of(backward_share=1.5)


# -- steps whose fragments leave at their end


@pytest.mark.parametrize("overlap", [0, 1, 5])
@pytest.mark.parametrize("fragment_s", [0.5, 1.0, 4.9, 5.1, 9.0])
def test_a_fragment_sent_at_a_steps_end_waits_for_what_the_overlap_leaves(overlap, fragment_s) -> None:
    """Eight layers of 1 s a step, one of them every ten steps: the wait is the fragment less the overlap."""
    work, method = Workload(8e6, 8, 1.0), Method(80, 1, overlap, 32.0, even_gaps=False, layerwise=False)
    wire = Wire(32e6 / 1e9 / fragment_s)
    assert simulate(work, method, wire).total_s == pytest.approx(80 + 8 * max(0.0, fragment_s - overlap))


def test_a_fragment_that_is_not_sent_layerwise_leaves_after_the_last_node_and_holds_up_the_first() -> None:
    work, method = Workload(4e6, 4, 1.1), Method(bits_per_param=32.0, layerwise=False)
    spans = timeline(work, method, Wire(0.032), steps=2)
    sent = [s for s in spans if s.kind == "reduction" and s.step == 0]
    assert min(s.start_s for s in sent) == pytest.approx(max(s.end_s for s in spans if s.kind == "parameters" and
                                                             s.step == 0))  # fmt: skip
    (first,) = [s for s in spans if s.kind == "forward" and s.layer == 1 and s.step == 1]
    assert first.start_s == pytest.approx(max(s.end_s for s in sent))
    assert simulate(work, method, Wire(0.032)).total_s == pytest.approx(1.1 + 4.0)
