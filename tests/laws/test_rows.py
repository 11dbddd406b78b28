"""Rows: every way in, names and units, and each kind of row that is refused with its number.

pytest tests/laws/test_rows.py
"""

from __future__ import annotations

import csv
import json
import math

import numpy as np
import pytest

from diloco.errors import BadInput
from diloco.laws import fit_law, read_rows
from diloco.laws.axes import canonical, number

GOOD = {"params": [1e8, 2e8, 4e8], "replicas": [1, 2, 4], "loss": [3.0, 2.8, 2.6], "run": ["a", "b", "c"]}


def spoilt(column: str, value: object, row: int = 1) -> dict:
    values = [*GOOD.get(column, [1, 1, 1])]
    values[row] = value
    return GOOD | {column: values}


def write_csv(path, columns: dict) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def test_all_sources_give_the_same_rows(tmp_path) -> None:
    pandas, parquet = pytest.importorskip("pandas"), pytest.importorskip("pyarrow.parquet")

    records = [dict(zip(GOOD, values, strict=True)) for values in zip(*GOOD.values(), strict=True)]
    write_csv(tmp_path / "rows.csv", GOOD)
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, records)))
    (tmp_path / "rows.json").write_text(json.dumps(records))
    pandas.DataFrame(GOOD).to_parquet(tmp_path / "rows.parquet")
    assert parquet.read_schema(tmp_path / "rows.parquet").names == list(GOOD)
    files = [tmp_path / f"rows.{kind}" for kind in ("csv", "jsonl", "json", "parquet")]
    for source in (*files, GOOD, records, pandas.DataFrame(GOOD)):
        rows = read_rows(source)
        assert rows.column("params").tolist() == [1e8, 2e8, 4e8] and rows.texts["run"] == ("a", "b", "c")
        assert rows.data_hash == read_rows(GOOD).data_hash


def test_run_folders(tmp_path) -> None:
    for name, loss in (("one", 3.0), ("two", 2.8)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "receipt.json").write_text("{}")
        write_csv(
            tmp_path / name / "row.csv", {"run": [name], "params": [loss * 1e8], "codec": ["fp32"], "loss": [loss]}
        )
    assert read_rows(tmp_path).column("loss").tolist() == [3.0, 2.8]
    assert len(read_rows(tmp_path / "one")) == 1
    assert len(read_rows([tmp_path / "one", tmp_path / "two"])) == 2
    (tmp_path / "two" / "receipt.json").unlink()
    with pytest.raises(ValueError, match="run two.*status is 'unfinished'"):
        read_rows(tmp_path)
    assert len(read_rows(tmp_path, bad="drop")) == 1


@pytest.mark.parametrize(
    "header, name",
    [("N", "params"), ("Model Size", "params"), ("D", "tokens"), ("M", "replicas"), ("eval_loss_c4", "loss")]
    + [("Training FLOP", "flops"), ("H", "sync_every"), ("peak_lr", "inner_lr"), ("algorithm", "method")],
)
def test_aliases(header, name) -> None:
    assert canonical(header) == name


@pytest.mark.parametrize(
    "text, value",
    [("35M", 35e6), ("1.3b", 1.3e9), ("24_000", 24000), ("1e-3", 1e-3), (7, 7), ("x", None), ("1.2.3", None)],
)
def test_numbers_as_people_write_them(text, value) -> None:
    assert number(text) == value


def test_map_wins_over_aliases() -> None:
    columns = {"N": [1e8, 2e8], "loss": [1.0, 2.0], "val_bpb": [0.9, 0.8]}
    assert read_rows(columns, rename={"loss": "val_bpb"}).column("loss").tolist() == [0.9, 0.8]
    with pytest.raises(ValueError, match="no column 'bpb'"):
        read_rows(columns, rename={"loss": "bpb"})


def test_nominal_sizes_are_taken_and_said() -> None:
    rows = read_rows({"model": ["35M", "1.3B"], "loss": [3.0, 2.0]})
    assert rows.column("params").tolist() == [35e6, 1.3e9] and "nominal" in rows.notes[0]


@pytest.mark.parametrize(
    "rows, reason",
    [
        (spoilt("loss", float("nan")), r"row 2 \(b\): loss is empty or no number"),
        (spoilt("loss", "diverged"), r"row 2 \(b\): loss is 'diverged', which is no number"),
        (spoilt("loss", "2.8%"), "loss is '2.8%', which is no number"),
        (spoilt("loss", float("inf")), "loss is inf"),
        (spoilt("loss", -1.0), "loss is -1, which has no logarithm"),
        (spoilt("params", float("inf")), "params is inf, which has no logarithm"),
        (spoilt("params", 0), "params is 0, which has no logarithm"),
        (spoilt("status", "running"), "status is 'running'"),
        (spoilt("fraction_done", 0.4), "only 40% of the run is done"),
        ({name: [*values, values[0]] for name, values in GOOD.items()}, "row 4.*the same as row 1"),
    ],
)
def test_unusable_rows_are_named_or_dropped_by_name_report_143(rows, reason) -> None:
    with pytest.raises(ValueError, match=reason) as error:
        read_rows(rows)
    assert "\n" not in str(error.value) and "bad='drop'" in str(error.value)
    kept = read_rows(rows, bad="drop")
    assert len(kept) == len(rows["loss"]) - 1 and "1 of" in kept.notes[-1] and "left out" in kept.notes[-1]


def test_rows_of_a_csv_carry_their_line(tmp_path) -> None:
    write_csv(tmp_path / "rows.csv", spoilt("loss", ""))
    with pytest.raises(ValueError, match=r"row 2 \(line 3\)"):
        read_rows(tmp_path / "rows.csv")


@pytest.mark.parametrize("column", ["tokenizer", "method", "annealed", "eval_set"])
def test_mixed_groups_are_refused_with_both_ways_out_report_145(column) -> None:
    rows = GOOD | {column: ["gpt2", "gpt2", "llama"]}
    with pytest.raises(
        ValueError,
        match=rf"mix {column} 'gpt2' \(row 1\), 'llama' \(row 3\).*where={{'{column}': 'gpt2'}}.*pool=\['{column}'\]",
    ):
        read_rows(rows)
    assert len(read_rows(rows, where={column: "gpt2"})) == 2
    assert len(read_rows(rows, pool=[column])) == 3


def test_another_meaning_of_status_is_no_harm() -> None:
    assert len(read_rows(GOOD | {"status": ["full text"] * 3})) == 3


def test_empty_cells_matter_only_where_a_form_uses_the_column() -> None:
    rows = read_rows(spoilt("replicas", ""))
    assert not rows.has("replicas")
    with pytest.raises(ValueError, match=r"row 2 \(b\): replicas is empty"):
        rows.column("replicas")


@pytest.mark.parametrize(
    "source, complaint",
    [
        ("nowhere.csv", "does not exist"),
        ({}, "no rows"),
        ({"loss": [1.0], "params": [1e8, 2e8]}, "different lengths"),
        ({"params": [1e8]}, "no numeric column 'loss'"),
        (7, "type int"),
    ],
)
def test_what_is_no_table_is_refused(source, complaint) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_rows(source)


def test_broken_files_name_the_line(tmp_path) -> None:
    (tmp_path / "a.csv").write_text("params,loss\n1e8,3\n1e9\n")
    (tmp_path / "a.jsonl").write_text('{"params": 1e8, "loss": 3}\n{"params":\n')
    (tmp_path / "a.xlsx").write_text("")
    for name, complaint in (("a.csv", "line 3"), ("a.jsonl", "line 2"), ("a.xlsx", ".xlsx")):
        with pytest.raises(ValueError, match=complaint):
            read_rows(tmp_path / name)


def test_a_column_that_comes_twice_is_refused(tmp_path) -> None:
    (tmp_path / "a.csv").write_text("params,loss,loss\n1e8,3,2\n")
    with pytest.raises(ValueError, match="has 2 columns 'loss'"):
        read_rows(tmp_path / "a.csv")


def test_an_axis_that_is_no_number_costs_its_row_and_not_the_axis() -> None:
    rows = spoilt("params", "x")
    with pytest.raises(ValueError, match=r"row 2 \(b\): params is 'x', which is no number"):
        read_rows(rows)
    kept = read_rows(rows, bad="drop")
    assert kept.has("params") and kept.column("params").tolist() == [1e8, 4e8]
    with pytest.raises(ValueError, match="no row is left"):
        read_rows(GOOD | {"params": ["x", "y", "z"]}, bad="drop")


@pytest.mark.parametrize(
    "name, content, complaint",
    [
        ("a.csv", b"params,loss\n1e8,\xff\n", "not UTF-8"),
        ("a.jsonl", b'{"params": "\xff"}', "not UTF-8"),
        ("a.json", b'"runs"', "holds no runs"),
        ("a.json", b'{"params": 3}', "holds no runs"),
        ("a.json", b"[1, 2]", "holds no runs"),
        ("a.json", b"[" * 100_000, "not JSON"),
    ],
)
def test_files_of_another_content_are_refused_in_one_sentence(tmp_path, name, content, complaint) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=complaint) as error:
        read_rows(tmp_path / name)
    assert "\n" not in str(error.value)


def test_junk_parquet_is_refused(tmp_path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(b"junk")
    with pytest.raises(BadInput, match="no parquet file"):
        read_rows(tmp_path / "a.parquet")


def test_derived_tokens_per_param() -> None:
    rows = read_rows({"params": [1e8, 2e8], "tokens": [2e9, 2e9], "loss": [3.0, 2.9]})
    np.testing.assert_allclose(rows.column("tokens_per_param"), [20, 10])


def written(values: dict, delimiter: str, decimal: str = ".") -> str:
    lines = [values, *zip(*values.values(), strict=True)]
    return "".join(delimiter.join(str(cell).replace(".", decimal) for cell in line) + "\n" for line in lines)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_tables_of_any_spreadsheet_are_read(tmp_path, delimiter, encoding) -> None:
    (tmp_path / "a.csv").write_text(written(GOOD, delimiter), encoding=encoding)
    assert read_rows(tmp_path / "a.csv").data_hash == read_rows(GOOD).data_hash
    if delimiter != ",":
        (tmp_path / "a.csv").write_text(written(GOOD, delimiter, ","), encoding=encoding)
        assert read_rows(tmp_path / "a.csv").column("loss").tolist() == GOOD["loss"]


def test_two_decimal_signs_in_one_table_are_refused(tmp_path) -> None:
    (tmp_path / "a.csv").write_text("params;loss\n10.000;2,5\n20.000;2,4\n")
    with pytest.raises(BadInput, match=r"10.000 in row 1 \(line 2\) and 2,5 in row 1.*neither sign is sure"):
        read_rows(tmp_path / "a.csv")


def test_columns_may_have_any_name_that_an_expression_can_say() -> None:
    """A micro sign (which Python reads as a Greek mu) and a word of Python's own."""
    size, rate = (grid.ravel() for grid in np.meshgrid([1e7, 3e7, 1e8, 3e8], [1, 2, 4]))
    loss = 40 * size**-0.2 * rate**0.05
    law = fit_law({"\N{MICRO SIGN}": size, "lambda": rate, "loss": loss}, "A*\N{MICRO SIGN}^a*lambda^b")
    assert law.form.axes == ("\N{GREEK SMALL LETTER MU}", "lambda")
    assert law.coefficients["lambda"] == pytest.approx(0.05) and law.parameters["a"] == pytest.approx(-0.2)
    assert law.predict(**{"\N{GREEK SMALL LETTER MU}": 1e9, "lambda": 8}).value == pytest.approx(
        40 * 1e9**-0.2 * 8**0.05
    )


def grid_of_runs() -> dict:
    params, replicas = (grid.ravel() for grid in np.meshgrid([1e7, 3e7, 1e8, 3e8], [1.0, 2.0, 4.0]))
    noise = np.exp(0.003 * np.random.default_rng(1).standard_normal(12))
    return {"params": params, "replicas": replicas, "loss": (2 + 40 * params**-0.2 * replicas**0.05) * noise}


def test_an_axis_with_an_empty_cell_does_not_vanish_unsaid() -> None:
    rows = grid_of_runs()
    rows["replicas"][5] = math.nan
    law = fit_law(rows)
    assert law.form.axes == ("params",)
    assert any("replicas is empty in 1 of 12 rows (row 6)" in note for note in law.notes)


def test_a_column_of_zeros_is_no_hindrance_and_a_mixed_one_is_said() -> None:
    """`overlap` is 0 in every run without overlap: that says nothing against the run."""
    alone = fit_law(grid_of_runs() | {"overlap": [0] * 12})
    assert alone.form.axes == ("params", "replicas") and not any("overlap" in note for note in alone.notes)
    mixed = fit_law(grid_of_runs() | {"overlap": [0, 5] * 6})
    assert any("overlap is 0 in 6 of 12 rows" in note and "where={'overlap': 5.0}" in note for note in mixed.notes)


def test_general_forms_refuse_rows_without_their_size() -> None:
    rows = grid_of_runs()
    rows["params"][3] = math.nan
    with pytest.raises(BadInput, match="1 of 12 rows cannot be used .row 4: params is empty"):
        fit_law(rows)
    assert fit_law(rows, "A*replicas^a").form.axes == ("replicas",)


@pytest.mark.parametrize(
    "name, complaint", [("null", "/dev/null is a device"), ("folder", "holds no runs"), ("rows", "has no ending")]
)
def test_what_is_no_file_of_rows_is_told_for_what_it_is(tmp_path, name, complaint) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "rows").write_text("params,loss\n1e8,3\n")
    with pytest.raises(BadInput, match=complaint):
        read_rows("/dev/null" if name == "null" else tmp_path / name)


def test_a_csv_may_begin_with_blank_lines_and_names_its_header_where_they_do_not_match(tmp_path) -> None:
    (tmp_path / "a.csv").write_text("\n\nparams,loss\n1e8,3\n1e9,\n")
    with pytest.raises(BadInput, match=r"row 2 \(line 5\): loss is empty"):
        read_rows(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("# my runs\nparams,loss\n1e8,3\n")
    with pytest.raises(BadInput, match="line 2 has another number of cells than the header, '# my runs'"):
        read_rows(tmp_path / "a.csv")


# -- which column is the loss, and cells that cannot be


@pytest.mark.parametrize(
    "further, says",
    [
        (
            {"final_bpb": [3.0, 2.5], "val_ppl": [9.0, 8.0]},
            r"name yours with rename={'loss': 'final_bpb'}, or val_ppl$",
        ),
        ({"accuracy": [0.3, 0.5]}, r"name yours with rename={'loss': 'COLUMN'}$"),
    ],
)
@pytest.mark.parametrize("status", ["full text", "finished", ""])
def test_a_table_without_a_loss_is_told_so_whatever_its_status(further, says, status) -> None:
    table = {"params": [1e7, 1e8], "status": [status, status], **further}
    with pytest.raises(BadInput, match=f"no numeric column 'loss', only .*{says}"):
        read_rows(table)


def test_runs_that_have_not_ended_need_no_loss_to_be_called_so() -> None:
    with pytest.raises(BadInput, match="2 of 2 rows cannot be used .*status is 'running'"):
        read_rows({"params": [1e7, 1e8], "status": ["running", "crashed"]})


@pytest.mark.parametrize(
    "cells, reason",
    [
        ({"params": 1e-200}, "params is 1e-200, which no run has"),
        ({"tokens": 1e300}, "tokens is 1e\\+300, which no run has"),
        ({"inner_lr": 1e-40}, "inner_lr is 1e-40, which no run has"),
    ],
)
def test_cells_that_no_run_has_are_refused_with_their_row(cells, reason) -> None:
    rows = [{"params": 1e7, "tokens": 2e8, "loss": 3.0}, {"params": 1e8, "tokens": 2e9, "loss": 2.5} | cells]
    with pytest.raises(BadInput, match=rf"1 of 2 rows cannot be used \(row 2: {reason}\)"):
        read_rows(rows)
    assert len(read_rows(rows, bad="drop")) == 1


@pytest.mark.parametrize(
    "cells, said",
    [
        (
            {"tokens_per_param": [20.0, 20.0, 20.0]},
            "row 2 and 1 more: tokens_per_param is 20, and tokens over params are 40: tokens and params are used",
        ),
        (
            {"params_embedding": [1e6, 2e8, 1e8]},
            "row 2: params_embedding is 2e+08, more than params, 1e+08: each column is used as it stands",
        ),
    ],
)
def test_columns_that_differ_about_one_thing_are_noted_and_not_refused(cells, said) -> None:
    table = {"params": [1e7, 1e8, 1e9], "tokens": [2e8, 4e9, 4e10], "loss": [3.0, 2.5, 2.2], **cells}
    rows = read_rows(table)
    assert rows.notes == (said,) and read_rows(rows).notes == (said,) and len(rows) == 3
    assert rows.column("tokens_per_param").tolist() == [20, 40, 40]


def test_tokens_per_param_stands_where_tokens_or_params_do_not_say() -> None:
    rows = read_rows({"params_body": [1e7, 1e8], "tokens": [4e8, 4e9], "tokens_per_param": [20, 20], "loss": [3, 2.5]})
    (said,) = rows.notes
    assert said.endswith("each column is used as it stands") and rows.column("tokens_per_param").tolist() == [20, 20]


def test_nominal_sizes_and_other_counts_contradict_nothing() -> None:
    """20 tokens for each of 35M nominal parameters, of which 31M were counted; or for each of those in the body."""
    read_rows([{"params": 31e6, "tokens": 700e6, "tokens_per_param": 20, "loss": 3.0}])
    read_rows([{"params": 60e6, "params_body": 30e6, "tokens": 600e6, "tokens_per_param": 20, "loss": 3.0}])
    assert read_rows([{"params": 1e7, "replicas": None, "overlap": 0, "loss": 3.0}]).notes == ()
