"""A run folder reads back what was written, and names what is wrong.

pytest tests/watch/test_runfolder.py
"""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from diloco.errors import BadInput
from diloco.watch.runfolder import ROW_COLUMNS, RunFolder, atomic_write_text, read_json, read_row, write_json, write_row

ROW = {
    **dict.fromkeys(ROW_COLUMNS, 3),
    "run": 'a "name", with comma',
    "method": "dp",
    "model": "1m",
    "codec": "fp32",
    "inner_lr": 0.003,
    "outer_lr": None,
    "outer_momentum": None,
    "loss": 1.2345678901234567,
    "loss_se": 0.1,
    "flops": 1e15,
    "seconds": 2.5,
}


def test_columns_are_those_of_the_design():
    assert ", ".join(ROW_COLUMNS) == (
        "run, method, model, params, params_embedding, params_body, tokens, replicas, sync_every, fragments, codec, "
        "batch_tokens, inner_lr, outer_lr, outer_momentum, seed, loss, loss_se, flops, seconds, bytes_sent"
    )


def test_row_round_trip_is_exact(tmp_path):
    write_row(tmp_path / "row.csv", ROW)
    row = read_row(tmp_path / "row.csv")
    assert row == ROW and list(row) == list(ROW_COLUMNS)
    assert type(row["params"]) is int and type(row["flops"]) is float


def test_row_keeps_a_diverged_loss(tmp_path):
    write_row(tmp_path / "row.csv", {**ROW, "loss": math.nan})
    assert math.isnan(read_row(tmp_path / "row.csv")["loss"])


def test_row_with_other_columns_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"missing \['seed'\], unknown \['sed'\]"):
        write_row(tmp_path / "row.csv", {("sed" if key == "seed" else key): value for key, value in ROW.items()})
    (tmp_path / "row.csv").write_text("run,loss\nx,1\n")
    with pytest.raises(BadInput, match="is not one row with the columns"):
        read_row(tmp_path / "row.csv")


def test_row_with_text_for_a_number_is_refused(tmp_path):
    write_row(tmp_path / "row.csv", {**ROW, "seed": "three"})
    with pytest.raises(BadInput, match="'three' in column seed, where a whole number belongs"):
        read_row(tmp_path / "row.csv")


def test_run_folder(tmp_path):
    write_json(tmp_path / "config.json", {"model": "1m"})
    run = RunFolder(tmp_path)
    assert run.name == tmp_path.name and run.config == {"model": "1m"}
    assert run.receipt is None and run.row is None and list(run.events()) == []
    write_json(tmp_path / "receipt.json", {"spread_max": math.inf})
    write_row(tmp_path / "row.csv", ROW)
    assert run.receipt == {"spread_max": math.inf} and run.row == ROW


def test_not_a_run_folder(tmp_path):
    with pytest.raises(BadInput, match="does not exist"):
        RunFolder(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="not a run folder"):
        RunFolder(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": NaN}'])
def test_unreadable_json_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(BadInput, match="config.json is not"):
        read_json(tmp_path / "config.json")


def test_text_is_replaced_whole_and_leaves_nothing_beside_it(tmp_path):
    atomic_write_text(tmp_path / "deep" / "x", "old")
    atomic_write_text(tmp_path / "deep" / "x", "new\n")
    assert (tmp_path / "deep" / "x").read_text() == "new\n"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["x"]


def test_watching_needs_no_torch():
    code = "import sys, diloco.watch.runfolder; sys.exit(any(m in sys.modules for m in ('torch', 'plotly', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("path", [".", "/", "..", ""])
def test_a_folder_is_no_file_to_write(path: str) -> None:
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        atomic_write_text(path, "text")
