"""`diloco checkpoint ls` and `show`: what there is, what it takes and what it rests on.

pytest tests/cli/test_checkpoint_ls.py
"""

from __future__ import annotations

import json

from safetensors.torch import load_file
from support.saved import STEPS, answer, bytes_of, file_of, said

from diloco.watch.runfolder import RunFolder


def test_ls_says_of_each_what_it_rests_on_takes_and_scored(run, capsys):
    printed = answer(capsys, "ls", run)
    rows = {row["step"]: row for row in printed["checkpoints"]}
    assert list(rows) == STEPS and printed["bytes"] == bytes_of(run, *STEPS)
    assert {step: row["base"] for step, row in rows.items()} == {4: None, 8: 4, 12: 8, 16: None, 17: 16}
    losses = {e["step"]: e["loss"] for e in RunFolder(run).events(("eval",))}
    for step, row in rows.items():
        assert row["bytes"] == bytes_of(run, step) and row["problem"] is None and row["kind"] == "lossless"
        assert row["ratio"] == row["bytes"] / row["tensor_bytes"] and row["loss"] == losses.get(step)
        assert abs(row["written"] - file_of(run, step, "manifest.json").stat().st_mtime) < 1
    tensors = load_file(file_of(run, 4)).values()
    assert rows[4]["tensor_bytes"] > sum(t.nbytes for t in tensors)


def test_ls_as_a_table_names_what_cannot_be_used(run, capsys):
    out = said(capsys, "ls", run)
    assert "difference to 8, lossless" in out and "damaged" not in out and "5 checkpoints" in out
    file_of(run, 8).write_bytes(file_of(run, 8).read_bytes()[:-3])
    out = said(capsys, "ls", run)
    assert out.count("damaged") == 2  # 8, and 12 that rests on it
    assert f"step 12 cannot be used: {file_of(run, 8)} has " in out
    file_of(run, 16, "manifest.json").write_text("{")
    row = {row["step"]: row for row in answer(capsys, "ls", run)["checkpoints"]}[16]
    assert row["bytes"] is row["loss"] is None and "is not JSON" in row["problem"]


def test_show_accounts_for_every_byte_of_the_tensors(run, capsys):
    printed = answer(capsys, "show", f"{run}@12")
    assert printed["chain"] == [12, 8, 4] and printed["number"] == 3 and printed["meta"]["step"] == 12
    manifest = json.loads(file_of(run, 12, "manifest.json").read_text())
    assert printed["parts"] == {name: sum(part["bytes"].values()) for name, part in manifest["parts"].items()}
    groups = printed["tensors"]
    assert sum(g["tensor_bytes"] for g in groups) == printed["tensor_bytes"]
    stored = sum(
        t.nbytes for part in printed["parts"] for t in load_file(file_of(run, 12, f"{part}.safetensors")).values()
    )
    assert sum(g["bytes"] for g in groups) == stored
    params = RunFolder(run).row["params"]
    elements = {(g["unit"], g["what"]): g["elements"] for g in groups}
    kinds = ("model", "optimizer exp_avg", "optimizer exp_avg_sq")
    for name in [("global", "anchor"), ("global", "outer momentum"), *(("replica-1", kind) for kind in kinds)]:
        assert elements[name] == params, name


def test_show_tells_a_reader_the_same(run, capsys):
    out = said(capsys, "show", run)
    assert "after inner step 17" in out and "it holds differences, and rests on step 16" in out
    assert "optimizer exp_avg_sq" in out and "of the run: step 17" in out and "held-out loss" in out
    assert "it is full" in said(capsys, "show", file_of(run, 16).parent)
