"""Stopping and going on: nothing is repeated, skipped or changed by it, in one process and in two.

pytest tests/train/test_resume.py
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from support.training import (
    assert_same_run,
    checkpoint_bits,
    curve,
    evals,
    events,
    open_job,
    quiet_train,
    rounds,
    tiny,
    train_over_ranks,
)

from diloco import checkpoint
from diloco.errors import BadInput
from diloco.train import resume
from diloco.train.config import OuterConfig, TrainConfig
from diloco.train.inner import InnerConfig
from diloco.train.replica import Replica
from diloco.train.run import run_path
from diloco.watch import runfolder
from diloco.watch.runfolder import RunFolder

pytestmark = pytest.mark.slow

STOPS = (3, 8, 10)  # in the first window, right at a sync, in mid-window; the run ends with a window of one step

KINDS = [
    pytest.param("diloco", "adamw", id="nesterov"),
    pytest.param("diloco", "muon", id="nesterov-muon", marks=pytest.mark.slow),
    pytest.param("local-sgd", "muon", id="local-sgd-muon", marks=pytest.mark.slow),
    pytest.param("local-sgd", "adamw", id="local-sgd", marks=pytest.mark.slow),
    pytest.param("dp", "adamw", id="dp"),
    pytest.param("dp", "muon", id="dp-muon", marks=pytest.mark.slow),
]


def config_for(folder: Path, method: str = "diloco", inner: str = "adamw", **changes: object) -> TrainConfig:
    return tiny(folder, method=method, inner=InnerConfig(optimizer=inner), **changes)


def checkpoints(config: TrainConfig) -> Path:
    return run_path(config) / runfolder.CHECKPOINTS


@pytest.mark.parametrize("method, inner", KINDS)
def test_resumed_thrice_is_bit_equal_to_never_stopped(tmp_path: Path, method: str, inner: str) -> None:
    whole, parts = (config_for(tmp_path, method, inner, name=name) for name in ("whole", "parts"))
    receipt = quiet_train(whole)
    for stop in STOPS:
        leg = quiet_train(parts, stop_at=stop, resume=stop > STOPS[0])
        assert leg["steps"] == stop and not leg["finished"] and not (run_path(parts) / runfolder.ROW).exists()
    assert_same_run(whole, receipt, parts, quiet_train(parts, resume=True))


@pytest.mark.slow
@pytest.mark.parametrize("method, inner", [("diloco", "adamw"), ("local-sgd", "muon"), ("dp", "adamw")])
def test_in_two_processes_too(tmp_path: Path, method: str, inner: str) -> None:
    """And the checkpoints are interchangeable: the second leg is run in one process."""
    whole, parts = (config_for(tmp_path, method, inner, name=name) for name in ("whole", "parts"))
    receipt = train_over_ranks(whole, 2)[0]
    train_over_ranks(dataclasses.replace(parts, stop_at=3), 2)
    quiet_train(parts, stop_at=8, resume=True)
    train_over_ranks(dataclasses.replace(parts, stop_at=10, resume=True), 2)
    last = train_over_ranks(dataclasses.replace(parts, resume=True), 2)[0]
    assert_same_run(whole, receipt, parts, last)


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    first = quiet_train(config)
    before = checkpoint_bits(config), curve(config), evals(config)
    again = quiet_train(config, resume=True)
    assert (checkpoint_bits(config), curve(config), evals(config)) == before
    assert again["loss"] == first["loss"] is not None


def test_work_beyond_the_last_checkpoint_is_done_again_but_logged_once(tmp_path: Path, monkeypatch) -> None:
    """A crash at step 15 after the checkpoint of step 12: steps 13 to 15 appear once, and the end is the same."""
    whole, broken = tiny(tmp_path, name="whole", checkpoint_every=1), tiny(tmp_path, name="broken", checkpoint_every=1)
    receipt = quiet_train(whole)
    good = Replica.inner_step

    def crash(self: Replica, step: int) -> torch.Tensor:
        if step == 15:
            raise OSError("power cut")
        return good(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(Replica, "inner_step", crash)
        with pytest.raises(OSError):
            quiet_train(broken, checkpoint_every=3)
    assert [checkpoint.step_of(p) for p in checkpoint.steps(checkpoints(broken))] == [12]
    # An event of the lost leg, as a window that closed after the checkpoint would have left.
    with open(run_path(broken) / runfolder.EVENTS, "a") as file:
        file.write('{"time": 1, "kind": "train", "step": 13, "tokens": 0, "loss": 9.0}\n{"time": 1, "ki')
    assert_same_run(whole, receipt, broken, quiet_train(broken, resume=True))


def test_no_evaluation_due_after_the_resume_report_49(tmp_path: Path) -> None:
    """Resumed at step 16 of 17 with evaluations every 6 steps, with none but the last, and on the very last step."""
    for every, stop in ((6, 16), (-1, 16), (-1, 17)):
        config = tiny(tmp_path, eval_every=every, name=f"every{every}-{stop}")
        quiet_train(config, stop_at=stop)
        receipt = quiet_train(config, resume=True)
        assert receipt["finished"] and receipt["loss"] == evals(config)[-1]["loss"] > 0
        steps = [e["step"] for e in evals(config)]
        assert steps == ([0, 6, 12, 17] if every == 6 else [17])


def test_seconds_add_up_over_the_legs(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    quiet_train(config, stop_at=10)
    path = next(checkpoints(config).glob("step-*"))
    trees, meta = checkpoint.load(path)
    checkpoint.drop_after(path.parent, -1)
    checkpoint.save(path.parent, 10, trees, {**meta, "seconds": 5000.0})
    receipt = quiet_train(config, resume=True)
    assert receipt["seconds"] > 5000 and RunFolder(run_path(config)).row["seconds"] == receipt["seconds"]


# -- another number of replicas


def test_other_replicas_take_over_anchor_and_momentum_bit_for_bit(tmp_path: Path) -> None:
    config = tiny(tmp_path, replicas=4, steps=20, name="run")
    quiet_train(config, stop_at=10)
    saved, _ = checkpoint.load(next(checkpoints(config).glob("step-*")))
    momentum = saved["global"]["outer"]["momentum"]
    assert any(m.abs().max() > 0 for m in momentum.values())
    with open_job(dataclasses.replace(config, replicas=2, resume=True)) as job:
        assert job.first_unlogged == 10
        for m, replica in enumerate(job.replicas):
            state = replica.sync.state_dict()
            for name, anchor in saved["global"]["anchor"].items():
                assert torch.equal(state["anchor"][name], anchor)
                assert torch.equal(state["outer"]["momentum"][name], momentum[name])
                assert torch.equal(dict(replica.model.named_parameters())[name], anchor)
            moments = saved[f"replica-{m}"]["optimizer"]
            for name, parameter in replica.model.named_parameters():
                assert torch.equal(replica.optimizers[0].state[parameter]["exp_avg"], moments[name]["exp_avg"])
    notes = " ".join(e["text"] for e in events(config, "note"))
    assert "2 replicas instead of 4" in notes and "the 2 inner steps since the last sync were dropped" in notes


def test_replicas_that_take_over_one_state_do_not_share_it(tmp_path: Path) -> None:
    config = tiny(tmp_path, replicas=1, name="run")
    quiet_train(config, stop_at=8)
    with open_job(dataclasses.replace(config, replicas=2, resume=True)) as job:
        first, second = (next(iter(r.optimizers[0].state.values())) for r in job.replicas)
        assert torch.equal(first["exp_avg"], second["exp_avg"])
        assert all(first[k].data_ptr() != second[k].data_ptr() for k in ("exp_avg", "exp_avg_sq", "step"))


def record_samples(monkeypatch) -> list[int]:
    seen: list[int] = []
    good = Replica._backward

    def backward(self: Replica, step: int, shard: int) -> torch.Tensor:
        batch = self.data.batch

        def logged(*arguments: int) -> torch.Tensor:
            seen.extend(self.data.sample_ids(*arguments).tolist())
            return batch(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(self.data, "batch", logged)
            return good(self, step, shard)

    monkeypatch.setattr(Replica, "_backward", backward)
    return seen


def test_each_sample_is_used_once_whatever_the_replicas_reports_42_51_118(tmp_path: Path, monkeypatch) -> None:
    """4, 1 and 2 replicas in turn, stopped in mid-window: the samples are those of an undisturbed run in the same
    order, none twice, and the receipt's tokens are theirs."""
    config = tiny(tmp_path, replicas=4, steps=20, name="run")
    seen = record_samples(monkeypatch)
    quiet_train(config, name="undisturbed")
    undisturbed = seen.copy()
    seen.clear()
    for replicas, stop in ((4, 6), (1, 11), (2, 20)):
        receipt = quiet_train(config, replicas=replicas, stop_at=stop, resume=stop > 6)
    assert len(set(seen)) == len(seen) == 20 * 8
    per_step = [(sorted(seen[i : i + 8]), sorted(undisturbed[i : i + 8])) for i in range(0, len(seen), 8)]
    assert all(ours == theirs for ours, theirs in per_step)
    assert receipt["tokens"] == len(seen) * config.data.seq_len
    # 2 steps of the open window were dropped at 6, 3 at 11.
    assert receipt["inner_steps_dropped"] == 5
    assert receipt["tokens_lost"] == 5 * config.batch_tokens
    assert len(receipt["tokens_per_replica"]) == len(receipt["replica_resets"]) == 4
    assert sum(receipt["tokens_per_replica"]) + receipt["tokens_lost"] == receipt["tokens"]


def test_dp_resumes_with_other_replicas_without_loss(tmp_path: Path) -> None:
    """Synchronous data parallel has no window: only the rounding of the mean gradient depends on the shards."""
    whole, parts = tiny(tmp_path, method="dp", name="whole"), tiny(tmp_path, method="dp", name="parts")
    receipt = quiet_train(whole)
    quiet_train(parts, stop_at=6)
    changed = quiet_train(parts, replicas=4, resume=True)
    assert changed["loss"] == pytest.approx(receipt["loss"], rel=1e-5)
    assert not any("replicas instead" in e["text"] for e in events(parts, "note"))


# -- what is refused, and what is not


def test_another_run_is_refused_by_the_setting_report_41(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    quiet_train(config, stop_at=5)
    written = (run_path(config) / runfolder.CONFIG).read_text()
    others = {
        "sync_every is 5": {"sync_every": 5, "name": config.run_name},
        "seed is 1": {"seed": 1, "name": config.run_name},
        "method is 'dp'": {"method": "dp", "name": config.run_name},
        "steps is 18": {"steps": 18},
        "inner.lr is 0.5": {"inner": InnerConfig(lr=0.5)},
        "outer.lr is 0.25": {"outer": OuterConfig(lr=0.25)},
        "data.heldout is 0.2": {"data": dataclasses.replace(config.data, heldout=0.2)},
        "stop_at is 4": {"stop_at": 4},
    }
    for message, changes in others.items():
        with pytest.raises(BadInput, match=message):
            quiet_train(config, resume=True, **changes)
    assert (run_path(config) / runfolder.CONFIG).read_text() == written
    assert quiet_train(config, resume=True, keep=1, eval_every=-1)["finished"]


def test_a_killed_first_window_begins_anew(tmp_path: Path) -> None:
    """No checkpoint was written yet: the same command with --resume works, but not with other settings."""
    whole, killed = tiny(tmp_path, name="whole"), tiny(tmp_path, name="killed")
    with open_job(killed) as job:
        job.run.log.write("train", 1, loss=1.0)
    with pytest.raises(BadInput, match="seed is 3 but .*config.json was saved with 0"):
        quiet_train(killed, resume=True, seed=3)
    assert_same_run(whole, quiet_train(whole), killed, quiet_train(killed, resume=True))
    assert "began anew" in events(killed, "note")[-1]["text"]


def test_damaged_checkpoints_are_passed_over_or_refused_by_name(tmp_path: Path) -> None:
    whole, hurt = tiny(tmp_path, name="whole"), tiny(tmp_path, name="hurt", checkpoint_every=1)
    receipt = quiet_train(whole)
    quiet_train(hurt, stop_at=12)
    files = [p / "replica-1.0.safetensors" for p in checkpoint.steps(checkpoints(hurt))]
    files[-1].write_bytes(files[-1].read_bytes()[:-1] + b"x")
    assert quiet_train(hurt, resume=True, stop_at=12)["steps"] == 12
    notes = [e["text"] for e in events(hurt, "note")]
    assert any(text.startswith("skipped a damaged checkpoint: ") and "step-00000012" in text for text in notes)
    assert "removed step 12, which the run writes anew: it goes on from step 8" in notes
    for file in files:
        file.unlink()
    with pytest.raises(BadInput, match="no whole checkpoint .*step-00000004.*--name"):
        quiet_train(hurt, resume=True)
    assert curve(hurt) == curve(whole)[:12] and receipt["ok"]


@pytest.mark.parametrize("emptied", [False, True])
def test_missing_moments_are_refused_by_name_report_35(tmp_path: Path, emptied: bool) -> None:
    config = tiny(tmp_path)
    quiet_train(config, stop_at=6)
    path = next(checkpoints(config).glob("step-*"))
    trees, meta = checkpoint.load(path)
    del trees["replica-1"]["optimizer"]
    if emptied:
        trees["replica-1"]["optimizer"] = {}
    checkpoint.drop_after(path.parent, -1)
    checkpoint.save(path.parent, 6, trees, meta)
    with pytest.raises(BadInput, match="step-00000006/replica-1 lacks optimizer,"):
        quiet_train(config, resume=True)


@pytest.mark.parametrize("options", [{}, {"overlap": "delayed"}, {"overlap": "eager"}, {"sites": 2, "replicas": 4}])
def test_a_replica_that_was_just_reset_has_no_moments_to_miss(tmp_path: Path, monkeypatch, options: dict) -> None:
    """A checkpoint right where a replica is reset is a whole one: when its round lands, when a late outer gradient is
    sent, and when its site leaves it out of an average."""
    sited = "sites" in options
    config = tiny(tmp_path, **options, site_every=2 if sited else 0)
    good = Replica.inner_step

    def poison(self: Replica, step: int) -> torch.Tensor:
        if step == (5 if sited else 7) and self.shards == (1,):
            for state in self.optimizers[0].state.values():
                state["exp_avg"].fill_(float("nan"))
        return good(self, step)

    monkeypatch.setattr(Replica, "inner_step", poison)
    quiet_train(config, stop_at=6 if sited else 8)
    if not options:
        assert rounds(config)[-1]["left_out"] == [1]
    assert checkpoint_bits(config)["/replica-1/counts/reset_step"] == (6 if sited else 8)
    receipt = quiet_train(config, resume=True)
    assert receipt["ok"] and all(e["committed"] for e in rounds(config))
    assert sited or (receipt["replica_resets"] == [0, 1] and receipt["tokens_lost"] == 4 * 128)


def test_moments_are_saved_while_gradients_are_still_there_report_29(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    with open_job(config) as job:
        for step in range(3):
            job.inner_step(step)
        for replica in job.replicas:
            replica._backward(3, 0)
            assert all(p.grad is not None for p in replica.model.parameters())
        job.save(3)
        job.checkpoints.finish()
        trees, _ = checkpoint.load(checkpoints(config) / "step-00000003")
        for m, replica in enumerate(job.replicas):
            saved = trees[f"replica-{m}"]["optimizer"]
            for name, parameter in replica.model.named_parameters():
                now = replica.optimizers[0].state[parameter]
                assert all(torch.equal(saved[name][k], now[k]) for k in ("exp_avg", "exp_avg_sq", "step"))
            assert all(s["exp_avg"].abs().max() > 0 for s in saved.values())


def test_free_settings_exist() -> None:
    names = {f.name for f in dataclasses.fields(TrainConfig)}
    assert all(name.partition(".")[0] in names for name in resume.FREE)
