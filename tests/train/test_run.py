"""The run folder while it is written: what it says of the run, and what it will not overwrite.

pytest tests/train/test_run.py
"""

from __future__ import annotations

import dataclasses
import json
import platform
from pathlib import Path

import pytest
import torch
from support.training import events, quiet_train, tiny

import diloco
from diloco.errors import BadInput
from diloco.train.config import config_hash, from_dict, to_dict
from diloco.train.evaluate import Evaluation
from diloco.train.run import Run, provenance, run_path
from diloco.watch import runfolder
from diloco.watch.runfolder import RunFolder


def test_config_json_says_which_run_this_was(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    quiet_train(config)
    written = RunFolder(run_path(config)).config
    assert from_dict(written["config"]) == config and written["config_hash"] == config_hash(config)
    assert written["code"]["version"] == diloco.__version__ and len(written["code"]["sha256"]) == 16
    assert written["versions"] == {"python": platform.python_version(), "torch": torch.__version__}
    assert written["device"] == "cpu" and written["distributed"] is False
    assert written["params"] == written["params_embedding"] + written["params_body"]
    assert written["steps"] == 17 and written["tokens"] == 17 * 256 and written["tokenizer"] and written["data"]


def test_provenance_changes_with_the_settings(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    one, other = provenance(config), provenance(dataclasses.replace(config, seed=9))
    assert one["config_hash"] != other["config_hash"] and one["code"] == other["code"]
    assert one["config"] == to_dict(config)


def test_a_run_leaves_the_files_of_a_run_folder(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    quiet_train(config)
    names = {p.name for p in run_path(config).iterdir()}
    assert names == {
        runfolder.CONFIG, runfolder.EVENTS, runfolder.CHECKPOINTS, runfolder.RECEIPT, runfolder.ROW,
    }  # fmt: skip
    assert {e["kind"] for e in events(config)} == {"train", "eval", "round", "checkpoint"}
    assert all(Path(e["path"]).is_dir() for e in events(config, "checkpoint"))


def test_checkpoints_come_after_so_many_rounds_and_old_ones_go(tmp_path: Path) -> None:
    """The last so many, and what they hold the differences to."""
    cases = ((1, 2, 1, [16, 17]), (1, 1, 3, [16, 17]), (2, 0, 1, [8, 16, 17]), (0, 3, 1, [17]))
    for every, keep, full, kept in cases:
        config = tiny(tmp_path, checkpoint_every=every, keep=keep, full_every=full, name=f"every{every}-{keep}")
        quiet_train(config)
        folders = (run_path(config) / runfolder.CHECKPOINTS).iterdir()
        assert sorted(p.name for p in folders) == [f"step-{s:08d}" for s in kept]


def test_a_started_run_is_not_written_over(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    quiet_train(config, stop_at=3)
    before = {p: p.read_bytes() for p in run_path(config).rglob("*") if p.is_file()}
    with pytest.raises(BadInput, match="already holds a run: give another --name, or go on with --resume"):
        quiet_train(config)
    assert {p: p.read_bytes() for p in run_path(config).rglob("*") if p.is_file()} == before


def test_there_must_be_something_to_resume(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no run to resume: check --runs and --name"):
        quiet_train(tiny(tmp_path), resume=True)
    assert not run_path(tiny(tmp_path)).exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    config = tiny(tmp_path, runs=str(tmp_path / "file"))
    with pytest.raises(BadInput, match=r"run folder .*file/.* cannot be made \(.*\): choose another with --runs"):
        quiet_train(config)


def test_a_window_becomes_one_event_a_step(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    run = Run(config)
    run.open(0, {})
    rows_MS2 = torch.tensor([[[1.0, 10.0], [2.0, 20.0]], [[3.0, 30.0], [4.0, 40.0]]])
    run.window(4, rows_MS2, [0.5, 0.25], seconds=2.0)
    first, second = events(config, "train")
    assert (first["step"], first["loss"], first["loss_per_replica"], first["grad_norm"]) == (5, 2.0, [1.0, 3.0], 20.0)
    assert (second["step"], second["loss"], second["loss_per_replica"], second["inner_lr"]) == (
        6,
        3.0,
        [2.0, 4.0],
        0.25,
    )
    assert second["tokens"] == 6 * 256 and second["tokens_per_s"] == 2 * 256 / 2.0


def test_reopened_at_a_step_it_forgets_what_came_later(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    run = Run(config)
    run.open(0, {"device": "cpu"})
    for step in (6, 12):
        run.evaluation(step, Evaluation(loss=float(step), loss_se=0.1, bits_per_byte=1.0, sequences=8))
        run.note(step, "so far")
    run.close()
    run = Run(dataclasses.replace(config, resume=True))
    run.open(6, {"device": "other"})
    assert [(e["kind"], e["step"]) for e in events(config)] == [("eval", 6), ("note", 6)]
    assert run.evaluations() == {6: Evaluation(loss=6.0, loss_se=0.1, bits_per_byte=1.0, sequences=8)}
    assert json.loads((run_path(config) / runfolder.CONFIG).read_text())["device"] == "other"


def test_a_run_folder_has_one_writer_at_a_time(tmp_path: Path) -> None:
    """The second is refused before it touches anything, whether it starts afresh or resumes."""
    config = tiny(tmp_path)
    first, second = Run(config), Run(config)
    first.open(0, {"device": "cpu"})
    first.note(1, "mine")
    with pytest.raises(BadInput, match="is being written by another process"):
        second.open(0, {"device": "other"})
    late = Run(dataclasses.replace(config, resume=True))
    with pytest.raises(BadInput, match="is being written by another process"):
        late.lock()
    assert [e["text"] for e in events(config)] == ["mine"]
    first.close()
    late.lock()
