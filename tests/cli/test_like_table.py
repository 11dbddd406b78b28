"""`diloco plan --like TABLE.csv`: a table of needed bandwidths, printed and recomputed.

OMP_NUM_THREADS=1 pytest tests/cli/test_like_table.py
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cli import answer, refusal, text

from diloco.cli.plan_table import table_text
from diloco.plan.table_rows import UnreadRow, published_table
from diloco.plan.utilization import Cell, Cells

HEADER = "model,step_time_s,method,target_cu_pct,gbit_per_s,source\n"


@pytest.fixture
def table(tmp_path):
    """The first of the published tables without params and layers, as printed."""
    path = tmp_path / "table.csv"
    names = HEADER.strip().split(",")[:-1]
    rows = [",".join(record[name] for name in names) for record in published_table("streaming_t04")]
    path.write_text(HEADER + "".join(f"{row},mine\n" for row in rows), encoding="utf-8")
    return path


def test_the_summary_is_first_and_every_cell_follows(table, capsys):
    lines = text(capsys, "plan", "--like", table).splitlines()
    assert lines[:3] == [
        "75 cells in Gbit/s: 70 exact, 5 one grid step off (100% within one)",
        "H is 100 where neither method nor table says (--sync-every)",
        "columns not read: source",
    ]
    assert lines[4].split() == ["model", "method", "target", "printed", "ours", "grid", "steps", "off"]
    assert lines[5].split() == ["1B", "Data-Parallel", "50%", "86.8", "86.8", "0"] and len(lines) == 5 + 75
    assert sum(line.endswith(" -1") for line in lines) == 5


def test_json_has_the_same(table, capsys):
    found = answer(capsys, "plan", "--like", table)
    assert found["summary"] == {"cells": 75, "exact": 70, "one_step_off": 5, "further_off": 0, "not_printed": 0,
                                "off_the_grid": 0, "not_read": 0}  # fmt: skip
    first = {"model": "1B", "method": "Data-Parallel", "target": 0.5, "printed": "86.8", "computed": "86.8"}
    assert found["cells"][0] == {**first, "steps_off": 0, "on_grid": True, "place": "row 1 of table.csv"}
    assert found["rows_not_read"] == []
    assert found["columns_not_read"] == ["source"] and found["sync_every"] == 100


def test_sync_every_is_h_where_none_is_named(table, capsys):
    table.write_text(HEADER + "1B,0.1,DiLoCo,50,5.2,\n1B,0.1,DiLoCo H=100,50,1.4,\n1B,0.1,Data-Parallel,50,,\n")
    out = text(capsys, "plan", "--like", table, "--sync-every", 30)
    assert "H is 30 where" in out and "2 exact" in out and "1 cell prints nothing to compare with" in out


def test_a_cell_off_the_grid_is_said(table, capsys):
    table.write_text(HEADER + "1B,0.1,DiLoCo,50,1.3,\n")
    assert "row 1 of table.csv: 1.3 is not on the grid; the nearest are 1.1 and 1.4" in text(
        capsys, "plan", "--like", table
    )


def test_rows_that_cannot_be_read_lose_no_others(table, capsys):
    good = table.read_text().splitlines()
    bad = ["1B,0.1,gossip,50,1.4,", "1B,0.1,gossip,80,2.5,", "1B,0.1,DiLoCo,50", "1B,0.1,DiLoCo,50,much,"]
    table.write_text("\n".join([*good[:11], *bad, *good[11:]]) + "\n")
    lines = text(capsys, "plan", "--like", table).splitlines()
    assert lines[0] == "75 cells in Gbit/s: 70 exact, 5 one grid step off (95% of 79 within one)"
    assert lines[1].startswith("not read: rows 11, 12 of table.csv: method is 'gossip': 'gossip' is not understood")
    assert lines[2].startswith("not read: row 13 of table.csv: it has not as many cells")
    assert lines[3].startswith("not read: row 14 of table.csv: gbit_per_s is 'much")
    found = answer(capsys, "plan", "--like", table)
    assert found["summary"]["not_read"] == 4 and found["summary"]["exact"] == 70
    assert [row["place"].split()[1] for row in found["rows_not_read"]] == ["11", "12", "13", "14"]


def test_all_is_said_of_all_cells_alone():
    exact = Cell("1B", "DiLoCo", 0.5, "1.4", "1.4", 0)
    left_out = UnreadRow("row 3", "method is empty")
    for cells, words in [
        (Cells([exact] * 300), "(100% within one)"),
        (Cells([exact] * 299, [left_out]), "(99% of 300 within one)"),
        (Cells([exact] * 299 + [replace(exact, steps_off=2)]), "(99% within one)"),
    ]:
        assert words in table_text(cells, (), 100).splitlines()[0]


def test_a_table_of_which_nothing_can_be_read_is_refused(table, capsys):
    table.write_text(HEADER + "1B,0.1,gossip,50,1.4,\n1B,0.1,swarm,50,1.4,\n")
    said = refusal(capsys, "plan", "--like", table)
    assert "row 1 of table.csv: method is 'gossip'" in said and "; 1 other row cannot be read either" in said


@pytest.mark.parametrize(
    "row, words, sentence",
    [
        ("1B,0.1,gossip,50,1.4,", (), "row 1 of table.csv: method is 'gossip': 'gossip' is not understood"),
        ("large,0.1,DiLoCo,50,1.4,", (), "row 1 of table.csv: model is 'large', which has no size in it"),
        ("1B,0.1,DiLoCo,0.5,1.4,", (), "write 50% or 0.5%"),
        ("1B,0.1,DiLoCo,50", (), "row 1 of table.csv: it has not as many cells as the header"),
        ("1B,0.1,DiLoCo,50,1.4,", ("--sync-every", 0), "--sync-every is 0: give 1 or more"),
        ("1B,0.1,DiLoCo,50,1.4,", ("--overlap", 1), "leave --overlap out"),
        ("1B,0.1,DiLoCo,50,1.4,", ("--report", "page.html"), "leave --report out"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(row, words, sentence, table, capsys):
    table.write_text(f"{HEADER}{row}\n")
    assert sentence in refusal(capsys, "plan", "--like", table, *words)


def test_help_says_what_a_table_needs(capsys):
    said = " ".join(text(capsys, "plan", "--help").replace("\N{BOX DRAWINGS LIGHT VERTICAL}", " ").split())
    for word in ("article|FILE.csv", "step_time_s", "method", "target_cu_pct", "gbit_per_s"):
        assert word in said
