"""Tables of needed bandwidths as papers and spreadsheets have them.

OMP_NUM_THREADS=1 pytest tests/plan/test_table_rows.py
"""

from __future__ import annotations

import csv
import re

import pytest

from diloco.errors import BadInput
from diloco.plan.table_rows import known_layers, published_table, read_table
from diloco.plan.utilization import recompute_table

ROW = {
    "model": "1B",
    "layers": "24",
    "step_time_s": "0.1",
    "method": "DiLoCo",
    "target_cu_pct": "50",
    "gbit_per_s": "1.4",
}


def read(**changed):
    return read_table([{**ROW, **changed}]).rows[0]


@pytest.mark.parametrize(
    "changed, field, value",
    [
        ({}, "params", 1e9),
        ({"model": "Llama 3.1 405B"}, "params", 4.05e11),
        ({"model": "toy-350m"}, "params", 3.5e8),
        ({"params": "1.3B"}, "params", 1.3e9),
        ({"params": 1e11}, "params", 1e11),
        ({"layers": "24.0"}, "layers", 24),
        ({"layers": 24.0}, "layers", 24),
        ({"layers": ""}, "layers", 24),
        ({"step_time_s": "0.1s"}, "step_s", 0.1),
        ({"step_time_s": "100 ms"}, "step_s", 0.1),
        ({"step_time_s": 0.1}, "step_s", 0.1),
        ({"target_cu_pct": "50%"}, "target", 0.5),
        ({"target_cu_pct": 50.0}, "target", 0.5),
        ({"target_cu_pct": "0.5%"}, "target", 0.005),
        ({"gbit_per_s": None}, "printed", ""),
        ({"gbit_per_s": 86.8}, "printed", "86.8"),
        ({"H": "30", "bits": "4"}, "settings", {"sync_every": 30, "bits_per_param": 4.0}),
        ({"tau": 0, "P": 8}, "settings", {"overlap_steps": 0, "fragments": 8}),
    ],
)
def test_cells_are_read_as_people_write_them(changed, field, value) -> None:
    assert getattr(read(**changed), field) == pytest.approx(value)


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"model": "large"}, "no size in it: add a column params"),
        ({"model": "MoE 671B (37B active)"}, "more than one size in it: add a column params"),
        ({"model": "7B", "layers": ""}, "whose layers are unknown: add a column layers"),
        ({"layers": "24.5"}, "layers is 24.5: give a whole number, as 24"),
        ({"layers": "many"}, "layers is 'many'"),
        ({"params": "-1"}, "params is '-1'"),
        ({"step_time_s": "0"}, "step_time_s is '0s'"),
        ({"target_cu_pct": "0.5"}, "may be a share or a percentage: write 50% or 0.5%"),
        ({"target_cu_pct": "1"}, "write 1%"),
        ({"target_cu_pct": "100"}, "above 0 and below 100"),
        ({"target_cu_pct": "half"}, "above 0 and below 100"),
        ({"method": ""}, "method is empty"),
        ({"H": "1.5"}, "sync_every is 1.5: give a whole number"),
        ({"80%": "6.2"}, "a column of targets and one for each target"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_row(changed, words) -> None:
    with pytest.raises(BadInput, match=re.escape(words)) as refused:
        read(**changed)
    assert re.match("row 1: |table ", str(refused.value))


@pytest.mark.parametrize("left_out", ["model", "step_time_s", "method", "target_cu_pct", "gbit_per_s"])
def test_a_missing_column_is_named(left_out) -> None:
    with pytest.raises(BadInput, match=f"has no column .*{left_out}"):
        read_table([{key: value for key, value in ROW.items() if key != left_out}])


def test_layers_of_known_models_alone_are_filled_in() -> None:
    for record in [*published_table("streaming_t04"), *published_table("scaling_t06")]:
        assert known_layers(record["model"], float(record["params"])) == int(record["layers"])
    assert known_layers("Llama 405B", 4.05e11) == known_layers("405B", 4.05e11) == 126
    assert known_layers("DeepSeek 671B", 6.71e11) == 61 and known_layers("4B", 4e9) == 36
    assert known_layers("Gemma 10B", 1e10) is known_layers("7B", 7e9) is None
    assert read_table([{**ROW, "model": "7B", "layers": ""}], layers=32).rows[0].layers == 32


def test_headers_may_be_spelled_otherwise_and_others_are_named() -> None:
    record = {"Arch": "Chinchilla", "Size": "10B", "Step time": "0.8", "Method": "DiLoCo", "source": "mine"}
    table = read_table([{**record, "Compute Utilization": "80%", "Bandwidth (Gbit/s)": "6.2"}])
    assert table.unread == ("source",) and table.rows[0].model == "Chinchilla 10B"
    assert (table.rows[0].layers, table.rows[0].target, table.rows[0].printed) == (48, 0.8, "6.2")


@pytest.mark.parametrize(
    "target", ["CU (%)", "CU %", "Compute utilization (%)", "utilization", "Compute Utilisation", "target (percent)"]
)
@pytest.mark.parametrize(
    "bandwidth",
    ["Bandwidth (Gbit/s)", "Gb/s", "Gbits/s", "Gbit/s needed", "Needed bandwidth [Gbps]", "Gbit/s", "required Gbit/s"],
)
def test_headers_with_units(target, bandwidth) -> None:
    record = {key: ROW[key] for key in ("model", "step_time_s", "method")}
    table = read_table([{**record, target: "50", bandwidth: "1.4"}])
    assert (table.rows[0].target, table.rows[0].printed, table.unread) == (0.5, "1.4", ())


@pytest.mark.parametrize("header", ["GB/s", "Bandwidth (GB/s)", "Mbit/s at CU=50%", "MB/s 50%"])
def test_bandwidths_in_other_units_are_not_taken_for_gbit(header) -> None:
    record = {key: ROW[key] for key in ("model", "step_time_s", "method")}
    with pytest.raises(BadInput, match="has no column|in [GM]B|in Mbit"):
        read_table([{**record, "CU": "50", header: "1.4"} if "50" not in header else {**record, header: "1.4"}])


def test_any_header_that_ends_in_a_percentage_is_a_target() -> None:
    record = {key: ROW[key] for key in ("model", "step_time_s", "method")}
    first = "Gbit/s to reach a compute utilization CU=50%"
    table = read_table([{**record, first: "1.4", "80%": "2", "at 99.5 %": "3", "note": "x"}])
    assert [(row.target, row.printed) for row in table.rows] == [(0.5, "1.4"), (0.8, "2"), (0.995, "3")]
    assert table.unread == ("note",)
    assert read_table([{**ROW, "spread at 95%": "1"}]).unread == ("spread at 95%",), "a long table has its targets"
    with pytest.raises(BadInput, match="two columns for 50%, '50%' and 'CU=50%'"):
        read_table([{**record, "50%": "1.4", "CU=50%": "2"}])


def test_a_row_that_cannot_be_read_is_kept_apart() -> None:
    wide = {"model": "1B", "step_time_s": 0.1, "method": "DiLoCo", "50%": "1.4", "80%": "5.2"}
    table = read_table([wide, {**wide, "model": "large"}, {**wide, "method": ""}])
    assert len(table.rows) == 2 and [row.cells for row in table.unread_rows] == [2, 2]
    assert str(table.unread_rows[1]).startswith("row 3: method is empty")


@pytest.mark.parametrize(
    "headers, delimiter",
    [("50%,80%,90%,95%,99%", ","), ("50,80,90,95,99", ";"), ("cu_50,cu_80,cu_90,cu_95,cu_99", "\t")],
)
def test_a_wide_table_gives_the_cells_of_a_long_one(tmp_path, headers, delimiter) -> None:
    long = published_table("streaming_t04")
    path = tmp_path / "wide.csv"
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["model", "step_time_s", "method", *headers.split(",")])
        for lo in range(0, len(long), 5):
            first = long[lo]
            cells = [record["gbit_per_s"] for record in long[lo : lo + 5]]
            writer.writerow([first["model"], first["step_time_s"], first["method"], *cells])
    assert [(c.printed, c.computed, c.steps_off) for c in recompute_table(path)] == [
        (c.printed, c.computed, c.steps_off) for c in recompute_table(long)
    ]


def test_a_file_that_is_no_table_is_refused(tmp_path) -> None:
    with pytest.raises(BadInput, match="is no file: give a CSV file with columns model"):
        read_table(tmp_path / "none.csv")
    for text, words in {
        "": "has no rows",
        "model,method\n": "has no rows",
        "model,method\n1B,DiLoCo\n": "has no column 'step_time_s'",
        ",".join(ROW) + "\n1B\n": "row 1 of table.csv: it has not as many cells",
    }.items():
        path = tmp_path / "table.csv"
        path.write_text(text)
        with pytest.raises(BadInput, match=words):
            read_table(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="in UTF-8"):
        read_table(path)
