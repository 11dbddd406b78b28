"""One replica's inner step: learning rates, random numbers, gradients, and the weights that it calls global.

pytest tests/train/test_replica.py
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from support.training import checkpoint_bits, curve, open_job, quiet_train, tiny
from torch import nn

from diloco.train import loop
from diloco.train.config import OuterConfig
from diloco.train.inner import InnerConfig, lr_at
from diloco.train.loss import lm_loss
from diloco.train.replica import Replica

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("muon", marks=pytest.mark.slow)])
def test_lr_in_the_param_groups_is_the_schedule_fresh_and_resumed_reports_26_33(
    tmp_path: Path, monkeypatch, optimizer: str
) -> None:
    seen: dict[int, set[float]] = {}
    good = Replica.inner_step

    def inner_step(self: Replica, step: int) -> torch.Tensor:
        result = good(self, step)
        seen.setdefault(step, set()).update(g["lr"] for o in self.optimizers for g in o.param_groups)
        return result

    monkeypatch.setattr(Replica, "inner_step", inner_step)
    inner = InnerConfig(optimizer=optimizer, lr=2e-3, warmup_steps=5)
    fresh, resumed = (tiny(tmp_path, inner=inner, name=name) for name in ("fresh", "resumed"))
    expected = {step: {lr_at(step, 17, inner)} for step in range(17)}
    quiet_train(fresh)
    assert seen == expected and min(seen[0]) > 0
    seen.clear()
    for stop, replicas in ((3, 2), (10, 2), (14, 4), (17, 4)):
        quiet_train(resumed, stop_at=stop, replicas=replicas, resume=stop > 3)
    assert seen == expected
    assert [lr for *_, lr in curve(resumed)] == [lr_at(step, 17, inner) for step in range(17)]


class Dropping(nn.Module):
    """A language model that drops: its masks are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.drop, self.head = nn.Embedding(256, 16), nn.Dropout(0.5), nn.Linear(16, 256)
        self.masks: list[torch.Tensor] = []

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        dropped_BTD = self.drop(torch.ones(*tokens_BT.shape, 16))
        self.masks.append(dropped_BTD)
        return self.head(self.embed(tokens_BT) * dropped_BTD)


def test_dropout_differs_between_replicas_and_steps_but_not_weights_report_53(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(loop, "model_for", lambda *_: Dropping())
    config = tiny(tmp_path, replicas=3, batch_tokens=9 * 32)
    with open_job(config) as job:
        first, *others = (list(r.model.parameters()) for r in job.replicas)
        assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))
        for step in range(2):
            job.inner_step(step)
        masks = [m for r in job.replicas for m in r.model.masks]
    assert len(masks) == 6
    assert all(not torch.equal(a, b) for i, a in enumerate(masks) for b in masks[:i])


def test_random_numbers_are_the_same_after_a_resume_and_for_any_process_report_53(tmp_path: Path, monkeypatch) -> None:
    """Data parallel drops in one process, where a replica has all shards, as in many, where it has one."""
    monkeypatch.setattr(loop, "model_for", lambda *_: torch.manual_seed(0) and Dropping())
    whole, parts = tiny(tmp_path, name="whole"), tiny(tmp_path, name="parts")
    quiet_train(whole)
    torch.manual_seed(123)
    quiet_train(parts, stop_at=6)
    torch.manual_seed(321)
    quiet_train(parts, resume=True)
    assert curve(whole) == curve(parts) and checkpoint_bits(whole) == checkpoint_bits(parts)
    with open_job(tiny(tmp_path, method="dp", name="dp")) as together, open_job(tiny(tmp_path, name="apart")) as apart:
        together.inner_step(0)
        apart.inner_step(0)
        masks = [m for r in apart.replicas for m in r.model.masks]
        assert all(torch.equal(a, b) for a, b in zip(together.replicas[0].model.masks, masks, strict=True))


def test_data_parallel_steps_on_the_gradient_of_the_whole_batch(tmp_path: Path) -> None:
    """Against autograd on the undivided batch: the loss, the norm and the step of plain SGD's direction."""
    config = tiny(tmp_path, method="dp", replicas=4, inner=InnerConfig(clip=0))
    with open_job(config) as job:
        replica = job.replicas[0]
        batch_BT = torch.cat([job.data.batch(0, m, 4, 8) for m in range(4)])
        loss, nll = lm_loss(replica.model(batch_BT[:, :-1]), batch_BT[:, 1:], config.z_loss)
        gradients = torch.autograd.grad(loss, list(replica.model.parameters()))
        rows_S2 = replica.inner_step(0)
    assert rows_S2.shape == (4, 2)
    assert rows_S2[:, 0].mean().item() == pytest.approx(nll.item(), rel=1e-6)
    norm = torch.stack([g.norm() for g in gradients]).norm().item()
    assert rows_S2[:, 1].tolist() == pytest.approx([norm] * 4, rel=1e-4)


def test_a_replica_trains_on_its_own_shard_alone(tmp_path: Path) -> None:
    with open_job(tiny(tmp_path, replicas=4)) as job:
        for m, replica in enumerate(job.replicas):
            batch_BT = job.data.batch(0, m, 4, 8)
            nll = lm_loss(replica.model(batch_BT[:, :-1]), batch_BT[:, 1:])[1]
            assert replica.inner_step(0)[0, 0].item() == pytest.approx(nll.item(), rel=1e-6)
            assert replica.sync.tokens - replica.sync.fragments[0].sent_tokens == 2 * 32


def test_one_replica_really_runs_the_outer_step_report_10(tmp_path: Path) -> None:
    """M = 1 equals data parallel within rounding for outer lr 1 and momentum 0, and for nothing else."""
    losses = {}
    for name, outer in {
        "plain": OuterConfig(optimizer="sgd", lr=1.0),
        "half": OuterConfig(optimizer="sgd", lr=0.5),
        "nesterov": OuterConfig(optimizer="nesterov", lr=0.7, momentum=0.9),
    }.items():
        receipt = quiet_train(tiny(tmp_path, replicas=1, outer=outer, name=name))
        assert [r["step"] for r in receipt["rounds"]] == [4, 8, 12, 16, 17] and receipt["rounds_committed"] == 5
        losses[name] = receipt["loss"]
    dp = quiet_train(tiny(tmp_path, replicas=1, method="dp", name="dp"))["loss"]
    assert losses["plain"] == pytest.approx(dp, rel=1e-5)
    assert abs(losses["half"] - dp) > 1e-2 and abs(losses["nesterov"] - dp) > 1e-2


def test_syncing_every_step_with_sgd_inside_would_be_data_parallel(tmp_path: Path) -> None:
    """H = 1 and averaging: AdamW's moments differ between replicas, so the losses are near, not equal."""
    near = quiet_train(tiny(tmp_path, method="local-sgd", sync_every=1, name="near"))
    dp = quiet_train(tiny(tmp_path, method="dp", name="dp"))
    assert near["loss"] == pytest.approx(dp["loss"], rel=0.05) and near["loss"] != dp["loss"]


def test_local_sgd_is_diloco_with_outer_lr_1_and_no_momentum(tmp_path: Path) -> None:
    local, sgd = tiny(tmp_path, method="local-sgd"), tiny(tmp_path, outer=OuterConfig(optimizer="sgd", lr=1.0))
    quiet_train(local), quiet_train(sgd)
    assert curve(local) == curve(sgd)


def test_merging_by_tokens_is_the_mean_where_tokens_are_equal(tmp_path: Path) -> None:
    mean, tokens = tiny(tmp_path, name="mean"), tiny(tmp_path, name="tokens", merge="tokens")
    quiet_train(mean), quiet_train(tokens)
    assert curve(mean) == curve(tokens) and checkpoint_bits(mean) == checkpoint_bits(tokens)


@pytest.mark.parametrize("method", ["diloco", pytest.param("dp", marks=pytest.mark.slow)])
def test_bf16_is_near_fp32_and_keeps_fp32_weights(tmp_path: Path, method: str) -> None:
    full, half = (
        tiny(tmp_path, method=method, name="full"),
        tiny(tmp_path, method=method, name="half", precision="bf16"),
    )
    receipt, other = quiet_train(full), quiet_train(half)
    assert other["loss"] == pytest.approx(receipt["loss"], rel=0.01) and other["loss"] != receipt["loss"]
    for _, value in checkpoint_bits(half).items():
        assert not isinstance(value, tuple) or value[0] in (torch.float32, torch.int64)


def test_global_weights_are_the_anchor_in_mid_window(tmp_path: Path) -> None:
    with open_job(tiny(tmp_path)) as job:
        for step in range(6):
            job.inner_step(step)
        weights = [r.global_weights() for r in job.replicas]
        for name, own in job.replicas[0].model.named_parameters():
            assert torch.equal(weights[0][name], job.replicas[0].sync.anchor()[name])
            assert torch.equal(weights[0][name], weights[1][name])
            assert not torch.equal(weights[0][name], own)


def test_gradients_are_clipped_on_each_replica(tmp_path: Path) -> None:
    """AdamW hardly feels a common scale, so look at the gradient itself, as the optimizer meets it."""
    config = tiny(tmp_path, inner=InnerConfig(clip=0.01))
    met = []
    with open_job(config) as job:
        for replica in job.replicas:
            replica.optimizers[0].register_step_pre_hook(
                lambda o, *_: met.append(
                    torch.stack([p.grad.norm() for g in o.param_groups for p in g["params"]]).norm()
                )
            )
        job.inner_step(0)
        assert job.rows[0][:, 1].min() > 0.01
    assert len(met) == 2 and all(n.item() == pytest.approx(0.01, rel=1e-3) for n in met)


def test_replicas_keep_their_own_optimizer_state(tmp_path: Path) -> None:
    with open_job(dataclasses.replace(tiny(tmp_path), replicas=2)) as job:
        for step in range(4):
            job.inner_step(step)
        first, second = ([s["exp_avg"] for s in r.optimizers[0].state.values()] for r in job.replicas)
        assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
