"""Whole runs: one process and many give the same numbers, and what must not go unnoticed does not.

pytest tests/train/test_loop.py
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.training import (
    assert_same_numbers,
    checkpoint_bits,
    curve,
    evals,
    events,
    free_port,
    open_job,
    quiet_train,
    rounds,
    tiny,
    train_over_ranks,
    without_clock,
)

from diloco import checkpoint
from diloco.cli import main
from diloco.errors import BadInput
from diloco.train.config import OuterConfig
from diloco.train.data import Data
from diloco.train.inner import InnerConfig
from diloco.train.replica import Replica
from diloco.train.run import run_path
from diloco.watch import runfolder


@pytest.mark.slow
@pytest.mark.parametrize("method", ["diloco", "local-sgd", "dp"])
def test_four_replicas_in_one_process_and_in_four(tmp_path: Path, method: str) -> None:
    one, many = (tiny(tmp_path, method=method, replicas=4, name=name) for name in ("one", "many"))
    receipt, receipts = quiet_train(one), train_over_ranks(many, 4)
    assert_same_numbers(one, many)
    if method != "dp":
        assert len({e["checksum"] for e in rounds(one)}) == 5
        assert {r["checksum"] for r in receipts} == {receipt["checksum"]}
    assert [r["replica"] for r in receipts] == [0, 1, 2, 3]
    assert len({r["bytes_sent"] for r in [receipt, *receipts]}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("method", ["diloco", "dp"])
def test_two_replicas_in_one_process_and_in_two(tmp_path: Path, method: str) -> None:
    """With Muon, token weights and bf16, which go other ways through the code."""
    options = {"method": method, "inner": InnerConfig(optimizer="muon"), "precision": "bf16"}
    if method == "diloco":
        options["merge"] = "tokens"
    one, many = (tiny(tmp_path, name=name, **options) for name in ("one", "many"))
    quiet_train(one), train_over_ranks(many, 2)
    assert_same_numbers(one, many)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"fragments": "balanced:3", "overlap": "2", "mixing": "0.5", "codec": "e3m0", "link": "1gbit,1ms"}],
    ids=["plain", "streaming"],
)
def test_under_torchrun(tmp_path: Path, options: dict) -> None:
    """The command as users give it: the same flags, two real processes, the same numbers, one receipt on stdout."""
    one = tiny(tmp_path, name="one", **options)
    quiet_train(one)
    flags = (
        "--size 30k --steps 17 --batch-tokens 256 --sync-every 4 --eval-every 6 --eval-sequences 8 --name many --json"
    )
    data = ["--runs", one.runs, "--data.sources", *one.data.sources, "--data.cache-dir", one.data.cache_dir]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command = [*torchrun, "--master-port", str(free_port()), "-m", "diloco", "train", *flags.split(), *data]
    command += ["--data.seq-len", "32", *(f"--{name}={value}" for name, value in options.items())]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["finished"]
    assert_same_numbers(one, dataclasses.replace(one, name="many"))


@pytest.mark.slow
def test_a_refusal_in_the_main_process_reaches_all(tmp_path: Path) -> None:
    """Only the main process looks at the run folder; the others must not begin to train."""
    config = tiny(tmp_path, name="taken")
    quiet_train(config, stop_at=1)
    for answer in train_over_ranks(config, 2):
        assert answer.startswith("BadInput: ") and "already holds a run" in answer
    missing = dataclasses.replace(config, name="", data=dataclasses.replace(config.data, sources=("nowhere.txt",)))
    for answer in train_over_ranks(missing, 2):
        assert answer.startswith("BadInput: ") and "nowhere.txt" in answer


def test_a_run_is_a_function_of_its_settings(tmp_path: Path) -> None:
    same, again, other = (tiny(tmp_path, name=n, seed=s) for n, s in (("same", 5), ("again", 5), ("other", 6)))
    for config in (same, again, other):
        quiet_train(config)
    assert curve(same) == curve(again) and checkpoint_bits(same) == checkpoint_bits(again)
    assert curve(other)[0] != curve(same)[0]


def test_evaluating_every_step_changes_nothing_report_119(tmp_path: Path) -> None:
    often, never = (tiny(tmp_path, name=f"every{n}", eval_every=n) for n in (1, -1))
    for config in (often, never):
        quiet_train(config)
    assert [e["step"] for e in evals(often)] == list(range(18)) and [e["step"] for e in evals(never)] == [17]
    assert curve(often) == curve(never) and checkpoint_bits(often) == checkpoint_bits(never)


@pytest.mark.slow
def test_training_lowers_the_held_out_loss(tmp_path: Path) -> None:
    for method in ("diloco", "local-sgd", "dp"):
        config = tiny(tmp_path, method=method, steps=40)
        quiet_train(config)
        first, *_, last = evals(config)
        assert first["loss"] == pytest.approx(5.55, abs=0.1)  # ln 256, before the first step
        assert last["loss"] < first["loss"] - 1 and {e["weights"] for e in evals(config)} == {"global"}


def test_data_faults_come_before_the_first_step_report_54(tmp_path: Path, monkeypatch) -> None:
    config = tiny(tmp_path)
    monkeypatch.setattr(Data, "heldout_batches", lambda *_: iter(()))
    with pytest.raises(BadInput, match="held-out part is empty: raise --data.heldout"):
        quiet_train(config)
    assert not run_path(config).exists()


def test_one_batch_of_every_replica_is_tried_before_the_first_step_report_54(tmp_path: Path, monkeypatch) -> None:
    tried = []
    good = Data.batch

    def batch(self: Data, step: int, replica: int, replicas: int, sequences: int) -> torch.Tensor:
        tried.append((step, replica))
        return good(self, step, replica, replicas, sequences)

    monkeypatch.setattr(Data, "batch", batch)
    with open_job(tiny(tmp_path, replicas=4)):
        assert tried == [(0, 0), (0, 1), (0, 2), (0, 3)]


# -- faults that must not go unnoticed


def poison_after(step: int, monkeypatch) -> None:
    """Every replica's weights become NaN just before inner step `step`, counted from 0."""
    good = Replica.inner_step

    def inner_step(self: Replica, now: int) -> torch.Tensor:
        if now == step:
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.fill_(float("nan"))
        return good(self, now)

    monkeypatch.setattr(Replica, "inner_step", inner_step)


@pytest.mark.parametrize("method, stop_at", [("dp", 0), pytest.param("diloco", 14, marks=pytest.mark.slow)])
def test_nan_weights_push_out_no_good_checkpoint_report_86(
    tmp_path: Path, monkeypatch, capsys, method: str, stop_at: int
) -> None:
    """Data parallel at its next checkpoint; DiLoCo where it is stopped in the poisoned window (at the window's end all
    replicas are left out and restart from the anchor)."""
    config = tiny(tmp_path, method=method, checkpoint_every=1, keep=2, full_every=1, stop_at=stop_at)
    poison_after(13, monkeypatch)
    with pytest.raises(FloatingPointError, match="not finite after inner step 1[46]: no checkpoint was written"):
        quiet_train(config)
    path, skipped = checkpoint.latest_whole(run_path(config) / runfolder.CHECKPOINTS)
    assert [checkpoint.step_of(p) for p in checkpoint.steps(path.parent)] == [8, 12] and not skipped
    flags = (
        f"--method {method} --size 30k --steps 17 --batch-tokens 256 --sync-every 4 --checkpoint-every 1 --replicas 2"
    )
    data = ["--data.sources", *config.data.sources, "--data.cache-dir", config.data.cache_dir, "--data.seq-len", "32"]
    command = ["train", *flags.split(), "--runs", config.runs, "--name", "b", "--stop-at", str(stop_at), *data]
    assert main(command) == 1
    assert "not finite" in capsys.readouterr().err


def test_a_run_that_never_committed_a_round_fails_report_117(tmp_path: Path, capsys) -> None:
    """An inner lr of 1e30 ruins every replica in every window."""
    config = tiny(tmp_path, inner=InnerConfig(lr=1e30))
    receipt = quiet_train(config)
    assert not receipt["ok"] and receipt["finished"]
    assert (receipt["rounds_planned"], receipt["rounds_committed"], receipt["rounds_failed"]) == (5, 0, 5)
    assert receipt["replica_resets"] == [5, 5] and receipt["tokens_lost"] == receipt["tokens"] == 17 * 256
    assert json.loads((run_path(config) / runfolder.RECEIPT).read_text())["ok"] is False
    assert all(not e["committed"] and e["left_out"] == [0, 1] for e in rounds(config))
    flags = "--size 30k --steps 17 --batch-tokens 256 --sync-every 4 --replicas 2 --inner.lr 1e30 --name b"
    data = ["--data.sources", *config.data.sources, "--data.cache-dir", config.data.cache_dir, "--data.seq-len", "32"]
    assert main(["train", *flags.split(), "--runs", config.runs, *data]) == 1
    assert "not one round was committed" in capsys.readouterr().out


def test_a_failed_round_between_good_ones_is_counted(tmp_path: Path, monkeypatch) -> None:
    config = tiny(tmp_path)
    poison_after(5, monkeypatch)
    receipt = quiet_train(config)
    assert receipt["ok"] and (receipt["rounds_committed"], receipt["rounds_failed"]) == (4, 1)
    assert [e["committed"] for e in rounds(config)] == [True, False, True, True, True]
    assert receipt["tokens_lost"] == 4 * 256


# -- what the events say


def test_round_events_name_their_state_and_measure_the_shock_reports_94_134(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    quiet_train(config)
    found = rounds(config)
    assert [(e["round"], e["step"], e["steps"], e["partial"], e["committed"]) for e in found] == [
        (1, 4, 4, False, True),
        (2, 8, 4, False, True),
        (3, 12, 4, False, True),
        (4, 16, 4, False, True),
        (5, 17, 1, True, True),
    ]
    for e in found:
        assert e["outer_gradient_norm"] > 0 and e["outer_update_norm"] > 0
        assert 0 < e["spread_median"] <= e["spread_max"] and 0 < e["cosine_median"] <= 1
        assert e["left_out"] == [] and sum(e["tokens"]) == e["steps"] * config.batch_tokens
    assert len({e["checksum"] for e in found}) == 5
    logged = events(config)
    around = [(e["kind"], e["step"]) for e in logged if e["step"] in (4, 5) and e["kind"] in ("round", "train")]
    assert sorted(around) == [("round", 4), ("train", 4), ("train", 5)]  # the loss just before and just after


def test_settings_reach_the_outer_step(tmp_path: Path) -> None:
    """A falling outer lr over the run's 5 rounds, and a bound on the outer update."""
    outer = OuterConfig(lr=0.8, schedule="linear", floor=0.0, clip=0.01)
    config = tiny(tmp_path, outer=outer)
    quiet_train(config)
    lrs = [e["outer_lr"] for e in rounds(config)]
    assert lrs[0] == 0.8 and lrs == sorted(lrs, reverse=True) and lrs[-1] < 0.2
    # The anchor is fp32: what it really moved by is rounded.
    assert all(e["outer_update_norm"] <= 0.01 * (1 + 1e-3) for e in rounds(config))


def test_train_events_have_the_mean_over_replicas_and_tokens_report_118(tmp_path: Path) -> None:
    config = tiny(tmp_path, replicas=4)
    quiet_train(config)
    for step, tokens, loss, losses, norm, lr in curve(config):
        assert tokens == step * 256 and len(losses) == 4 and norm > 0 and lr > 0
        assert loss == pytest.approx(sum(losses) / 4, rel=1e-12)
        assert len(set(losses)) == 4


def test_the_run_folder_and_the_receipt_agree(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    receipt = quiet_train(config)
    folder = runfolder.RunFolder(run_path(config))
    assert folder.receipt == receipt
    assert folder.row["loss"] == receipt["loss"] == evals(config)[-1]["loss"]
    assert [without_clock(r)["checksum"] for r in receipt["rounds"]] == [e["checksum"] for e in rounds(config)]
    assert folder.config["steps"] == 17 and folder.config["tokens"] == receipt["tokens"]
