"""A save that falls between a replica's NaN and the round that leaves it out and resets it.

pytest tests/train/test_saving_nan.py
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.training import checkpoint_bits, events, quiet_train, rounds, tiny, train_over_ranks

from diloco.checkpoint import Store
from diloco.cli import main
from diloco.train.config import TrainConfig
from diloco.train.loop import Job
from diloco.train.replica import Replica
from diloco.train.run import run_path
from diloco.watch import runfolder

SAID = "replica-1/model/embed.weight is not finite after inner step 8: no checkpoint was written"


def streaming(folder: Path, **changes: Any) -> TrainConfig:
    """Two fragments, sent at 6, 8, 10, ... and landed two steps later; a save at 4, 8, 12, 16 and 17."""
    options = {"fragments": "strided:1", "overlap": "2", "checkpoint_every": 1, "keep": 0}
    return tiny(folder, **{**options, **changes})


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every weight of replica 1 is a NaN after inner step 7."""
    good = Replica.inner_step

    def inner_step(self: Replica, step: int) -> torch.Tensor:
        rows = good(self, step)
        if step == 6 and 1 in self.shards:
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.fill_(math.nan)
        return rows

    monkeypatch.setattr(Replica, "inner_step", inner_step)


def steps_of(config: TrainConfig) -> list[int]:
    return Store(run_path(config) / runfolder.CHECKPOINTS).steps()


def assert_passed_over(config: TrainConfig) -> None:
    assert steps_of(config) == [4, 12, 16, 17]
    assert [e["step"] for e in events(config, "checkpoint")] == [4, 12, 16, 17]
    (note,) = [e for e in events(config, "note") if "not finite" in e["text"]]
    assert note["step"] == 8 and note["text"].startswith(f"{SAID}, since")


@pytest.mark.parametrize("background", [True, False])
def test_the_save_is_passed_over_and_the_run_goes_on_report_85(tmp_path: Path, background: bool) -> None:
    """To the very bits of a run that did not try to save there."""
    config = streaming(tmp_path, checkpoint_background=background)
    receipt = quiet_train(config)
    assert receipt["ok"] and receipt["finished"] and sum(receipt["replica_resets"]) == receipt["replica_resets"][1] > 0
    assert_passed_over(config)
    seldom = dataclasses.replace(config, checkpoint_every=0, name="seldom")
    assert quiet_train(seldom)["checksum"] == receipt["checksum"] and rounds(seldom) == rounds(config)
    # The next one holds differences to the last that was written, and reads back whole.
    base = Store(run_path(config) / runfolder.CHECKPOINTS).manifest(12).base
    assert base.step == 4 and checkpoint_bits(config)["step"] == 17


def test_a_run_that_ends_there_says_so_and_fails(tmp_path: Path) -> None:
    config = streaming(tmp_path, stop_at=8)
    with pytest.raises(FloatingPointError, match=f"^{SAID}, so the run ends without a last one; earlier ones were"):
        quiet_train(config)
    assert steps_of(config) == [4] and not (run_path(config) / runfolder.RECEIPT).exists()


def test_it_ends_with_exit_code_1_and_says_so_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    config = streaming(tmp_path)
    flags = ["--size=30k", "--steps=17", "--batch-tokens=256", "--sync-every=4", "--checkpoint-every=1", "--replicas=2"]
    flags += ["--fragments=strided:1", "--overlap=2", "--data.seq-len=32", f"--runs={config.runs}"]
    flags += [f"--data.sources={config.data.sources[0]}", f"--data.cache-dir={config.data.cache_dir}"]
    assert main(["train", *flags, "--name=on"]) == 0
    printed = capsys.readouterr()
    assert (" ".join((printed.out + printed.err).split())).count(SAID) == 1
    assert main(["train", *flags, "--name=ends", "--stop-at=8"]) == 1
    assert f"diloco train: {SAID}, so the run ends without a last one" in capsys.readouterr().err


@pytest.mark.parametrize("changes", [{"method": "dp"}, {"replicas": 1}])
def test_without_other_replicas_to_restart_from_the_run_ends(tmp_path: Path, monkeypatch, changes: dict) -> None:
    config = tiny(tmp_path, checkpoint_every=1, keep=0, **changes)
    before_save(8, lambda job: job.replicas[0].model.embed.weight, monkeypatch)
    with pytest.raises(FloatingPointError, match="^replica-0/model/embed.weight is not finite .* earlier ones were k"):
        quiet_train(config)
    assert steps_of(config) == [4]


@pytest.mark.parametrize("stop_at", [8, 17])
def test_a_global_weight_that_is_not_finite_ends_the_run(tmp_path: Path, monkeypatch, stop_at: int) -> None:
    """Whatever the replica's own weights are: it is named before them."""
    before_save(8, lambda job: job.replicas[0].sync.anchor()["embed.weight"], monkeypatch)
    config = streaming(tmp_path, stop_at=stop_at)
    with pytest.raises(FloatingPointError, match="^global/anchor/embed.weight is not finite .* earlier ones were kept"):
        quiet_train(config)
    assert steps_of(config) == [4]


def before_save(at_step: int, weights_of: Callable[[Job], torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    good = Job.save

    def save(self: Job, step: int) -> None:
        if step == at_step:
            with torch.no_grad():
                weights_of(self).fill_(math.nan)
        good(self, step)

    monkeypatch.setattr(Job, "save", save)


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "ranks"), [("", 2), ("replica=2,fsdp=2", 4)])
def test_all_ranks_pass_it_over_alike(tmp_path: Path, mesh: str, ranks: int) -> None:
    config = streaming(tmp_path, mesh=mesh)
    receipts = train_over_ranks(config, ranks)
    assert all(isinstance(receipt, dict) and receipt["ok"] for receipt in receipts), receipts
    assert_passed_over(config)
    ends = train_over_ranks(dataclasses.replace(config, name="ends", stop_at=8), ranks)
    assert ends == [f"FloatingPointError: {SAID}, so the run ends without a last one; earlier ones were kept"] * ranks
