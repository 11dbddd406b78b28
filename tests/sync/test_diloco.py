"""`DiLoCo` in somebody's own loop: the outer step, counting, and which tensors take part. All syncs start from replicas
that differ.

pytest tests/sync/test_diloco.py
"""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from support.replicas import Fleet, inner_step, loss_of, small_model, weights_of
from torch import nn

import diloco


def ulps(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest distance in units of the last place of fp32."""
    spacing = torch.finfo(torch.float32).eps * torch.maximum(a.abs(), b.abs()).clamp_min(1e-30)
    return ((a - b).abs() / spacing).max().item()


def test_lr_1_gives_the_mean_and_half_lands_half_way_report_1() -> None:
    for lr, share in ((1.0, 1.0), (0.5, 0.5)):
        fleet = Fleet(3, sync_every=100, outer=diloco.SGD(lr=lr))
        start = fleet.weights()
        fleet.run(7)
        mean = torch.stack([fleet.weights(m) for m in range(3)]).mean(0)
        assert (mean - start).abs().max() > 1e-3
        fleet.finish()
        target = start + share * (mean - start)
        # The anchor is reached by subtracting a rounded difference: its error is that of the larger operand.
        scale = torch.maximum(start.abs(), target.abs()).float()
        assert ((fleet.weights() - target).abs().float() <= 2 * torch.finfo(torch.float32).eps * scale).all()


def test_replicas_are_bit_identical_after_a_sync_report_2() -> None:
    """Every parameter of every replica, a 1-D and a scalar one included; and of a model with a single parameter."""
    fleet = Fleet(4, outer=diloco.Nesterov())
    fleet.run(3)
    assert not torch.equal(fleet.weights(0), fleet.weights(1))
    fleet.run(1)
    for m in range(1, 4):
        assert all(
            torch.equal(a, b) for a, b in zip(fleet.models[0].parameters(), fleet.models[m].parameters(), strict=True)
        )
    assert len({s.checksum() for s in fleet.syncs}) == 1

    lone = Fleet(2, build=lambda m: nn.Linear(5, 3, bias=False), sync_every=2)
    lone.run(2)
    assert torch.equal(lone.weights(0), lone.weights(1))


@pytest.mark.parametrize(
    "outer, torch_outer",
    [
        (diloco.Nesterov(0.7, 0.9), partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)),
        (diloco.HeavyBall(1.0, 0.9), partial(torch.optim.SGD, lr=1.0, momentum=0.9)),
        (diloco.SGD(0.6), partial(torch.optim.SGD, lr=0.6)),
        (diloco.Adam(lr=0.3, eps=0.1), partial(torch.optim.Adam, lr=0.3, betas=(0.9, 0.99), eps=0.1)),
        (
            diloco.Torch(torch.optim.AdamW, lr=0.2, eps=0.1, weight_decay=0.0),
            partial(torch.optim.AdamW, lr=0.2, eps=0.1, weight_decay=0.0),
        ),
        (partial(torch.optim.Adagrad, lr=0.1), partial(torch.optim.Adagrad, lr=0.1)),
    ],
    ids=lambda o: type(o).__name__,
)
def test_ten_rounds_equal_a_plain_torch_loop(outer, torch_outer) -> None:
    """The algorithm written out by hand, with torch's optimizer on the outside, from the same data."""
    fleet = Fleet(3, sync_every=4, outer=outer)
    models = [small_model(0) for _ in range(3)]
    inner = [torch.optim.AdamW(m.parameters(), lr=0.05) for m in models]
    anchor = [nn.Parameter(p.detach().clone()) for p in models[0].parameters()]
    optimizer, step = torch_outer(anchor), 0
    for _ in range(10):
        fleet.run(4)
        for _ in range(4):
            for m in range(3):
                inner_step(models[m], inner[m], m, step)
            step += 1
        for i, a in enumerate(anchor):
            drifts = [a.detach() - list(m.parameters())[i].detach() for m in models]
            a.grad = ((drifts[0] + drifts[1]) + drifts[2]) / 3
        optimizer.step()
        with torch.no_grad():
            for model in models:
                for p, a in zip(model.parameters(), anchor, strict=True):
                    p.copy_(a)
    # Adam's few roundings differ in order from torch's, and 40 inner steps amplify them; the others agree to the last
    # bits.
    torch.testing.assert_close(fleet.weights(), weights_of(models[0]), rtol=1e-5, atol=1e-6)


def test_a_sync_that_does_not_reduce_is_noticed_report_7(monkeypatch) -> None:
    """Break the sum on purpose: each replica absorbs its own outer gradient. The anchors come apart and the round says
    so."""
    from diloco.outer.round import Round

    good = Round._absorb

    def skip_the_reduce(self, merged, lo, hi):
        self.fragment.drift(lo, hi, merged)
        good(self, merged, lo, hi)

    monkeypatch.setattr(Round, "_absorb", skip_the_reduce)
    fleet = Fleet(2)
    with pytest.raises(diloco.Mismatch, match="anchors differ between replicas after round 1"):
        fleet.run(4)


def test_syncs_are_counted_in_optimizer_steps_report_3() -> None:
    """Three param groups, then two optimizers: 12 steps with H = 4 are 3 rounds, at steps 4, 8 and 12."""
    model = small_model()
    p = list(model.parameters())
    grouped = torch.optim.AdamW([{"params": p[:1]}, {"params": p[1:3]}, {"params": p[3:]}], lr=0.01)
    sync = diloco.DiLoCo(model, grouped, sync_every=4)
    for t in range(12):
        inner_step(model, grouped, 0, t)
    assert [r.step for r in sync.rounds] == [4, 8, 12]

    model = small_model()
    p = list(model.parameters())
    pair = [torch.optim.AdamW(p[:3], lr=0.01), torch.optim.SGD(p[3:], lr=0.01)]
    sync = diloco.DiLoCo(model, pair, sync_every=4)
    for t in range(12):
        loss_of(model, 0, t).backward()
        for optimizer in pair:
            optimizer.step()
            optimizer.zero_grad()
    assert [r.step for r in sync.rounds] == [4, 8, 12]


def test_gradient_accumulation_counts_steps_not_micro_batches_report_131() -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    sync = diloco.DiLoCo(model, optimizer, sync_every=8)
    for micro in range(1, 33):
        loss_of(model, 0, micro).backward()
        assert not sync.rounds
        if micro % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    assert [r.step for r in sync.rounds] == [8]


@pytest.mark.parametrize("hook", [True, False])
def test_outer_steps_are_never_skipped_report_9(hook: bool) -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    calls = []
    outer = (lambda anchor: {}, lambda g, state, round: (calls.append(round), (g, state))[1])
    sync = diloco.DiLoCo(model, optimizer, sync_every=3, outer=outer, hook=hook)
    for t in range(11):
        inner_step(model, optimizer, 0, t)
        if not hook:
            sync.step()
    assert calls == [1, 2, 3] and sync.receipt()["rounds_committed"] == 3


def test_one_replica_really_runs_the_outer_step_report_10() -> None:
    def train(outer: object | None) -> torch.Tensor:
        model = small_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        if outer:
            diloco.DiLoCo(model, optimizer, sync_every=4, outer=outer)
        for t in range(12):
            inner_step(model, optimizer, 0, t)
        return weights_of(model)

    plain = train(None)
    torch.testing.assert_close(train(diloco.SGD(1.0)), plain, rtol=1e-5, atol=1e-6)
    assert (train(diloco.Nesterov(0.7, 0.9)) - plain).abs().max() > 1e-3
    assert (train(diloco.SGD(0.5)) - plain).abs().max() > 1e-3


def test_last_partial_window_is_flushed_and_counted_report_19() -> None:
    flushed, dropped = Fleet(2, sync_every=5), Fleet(2, sync_every=5)
    for fleet in (flushed, dropped):
        fleet.run(13)
    flushed.finish()
    for sync in dropped.syncs:
        sync.finish(flush=False)
    receipt = flushed.syncs[0].receipt()
    assert [(r["steps"], r["partial"]) for r in receipt["rounds"]] == [(5, False), (5, False), (3, True)]
    assert receipt["inner_steps_unsynced"] == receipt["inner_steps_dropped"] == 0
    assert dropped.syncs[0].receipt()["inner_steps_dropped"] == 3 and len(dropped.syncs[0].rounds) == 2
    for fleet in (flushed, dropped):
        assert torch.equal(fleet.weights(0), fleet.weights(1))
    flushed.finish()
    assert len(flushed.syncs[0].rounds) == 3


def test_as_a_context_manager_it_flushes_and_lets_go() -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with diloco.DiLoCo(model, optimizer, sync_every=5) as sync:
        for t in range(7):
            inner_step(model, optimizer, 0, t)
    assert [r.steps for r in sync.rounds] == [5, 2]
    inner_step(model, optimizer, 0, 8)
    assert sync.inner_step == 7


def test_a_nan_replica_is_left_out_reset_and_recorded_report_85() -> None:
    """NaN at the last inner step before a sync: the round is the mean of the others, and the sick one starts afresh,
    moments too."""

    def poison(m: int, step: int) -> None:
        if m == 1 and step == 3:
            with torch.no_grad():
                fleet.models[1][0].weight[0, 0] = float("nan")

    fleet = Fleet(3, outer=diloco.SGD(1.0))
    healthy = Fleet(3, outer=diloco.SGD(1.0), sync_every=100)
    fleet.run(4, each=poison)
    healthy.run(4)
    mean = (healthy.weights(0) + healthy.weights(2)) / 2
    torch.testing.assert_close(fleet.weights(0), mean, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(fleet.weights(0), fleet.weights(m)) for m in (1, 2))
    assert [s.rounds[0].left_out for s in fleet.syncs] == [[1]] * 3
    assert fleet.syncs[0].receipt()["replica_resets"] == [0, 1, 0]
    fleet.run(8)
    assert fleet.syncs[0].rounds[-1].left_out == [] and fleet.weights(1).isfinite().all()


def test_a_round_without_a_finite_replica_fails_and_keeps_the_anchor() -> None:
    fleet = Fleet(2)
    before = fleet.syncs[0].checksum()

    def poison(m: int, step: int) -> None:
        if step == 3:
            with torch.no_grad():
                fleet.models[m].scale.fill_(float("inf"))

    fleet.run(4, each=poison)
    receipt = fleet.syncs[0].receipt()
    assert (receipt["rounds_planned"], receipt["rounds_committed"], receipt["rounds_failed"]) == (1, 0, 1)
    assert fleet.syncs[0].checksum() == before and fleet.weights(1).isfinite().all()
    fleet.run(4)
    counts = fleet.syncs[0].state_dict()["counts"]
    # report 34: only `planned` moves when a round fails
    assert (counts["rounds_planned"], counts["fragments"][0]["outer_steps"]) == (2, 1)


def test_replicas_that_start_apart_are_made_equal_report_102() -> None:
    fleet = Fleet(3, build=small_model)
    assert torch.equal(fleet.weights(0), fleet.weights(1)) and torch.equal(fleet.weights(0), weights_of(small_model(0)))


@pytest.mark.parametrize(
    "other, message",
    [
        ({"sync_every": 5}, "sync_every differs: 4 on replica 0, 5 on replica 1"),
        ({"outer": diloco.Nesterov(0.7, 0.8)}, "outer differs: .*momentum=0.9.*momentum=0.8"),
        ({"merge": "tokens"}, "merge differs"),
        ({"facts": {"tokenizer": "b"}}, "tokenizer differs: 'a' on replica 0, 'b' on replica 1"),
        (
            {"model": nn.Linear(5, 4)},
            r"tensors differ: replica 0 has trained bias \(3,\).* where replica 1 has trained bias \(4,\)",
        ),
        ({"model": nn.Linear(5, 3).to(torch.bfloat16)}, "bfloat16"),
        ({"model": nn.Linear(5, 3, bias=False)}, "tensors differ: replica 0 has trained bias"),
    ],
)
def test_differences_are_refused_by_name_report_103_and_133(other: dict, message: str) -> None:
    exchange = diloco.Local(2)
    options = {"sync_every": 4, "facts": {"tokenizer": "a"}, "outer": diloco.Nesterov(0.7, 0.9)}
    model = nn.Linear(5, 3)
    diloco.DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.1), exchange=exchange, **options)
    model = other.pop("model", nn.Linear(5, 3))
    with pytest.raises(diloco.BadInput, match=message):
        diloco.DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.1), exchange=exchange, **{**options, **other})


def test_spread_and_cosine_are_what_they_say_report_121() -> None:
    fleet = Fleet(3, sync_every=100, outer=diloco.SGD(0.5))
    start = fleet.weights()
    fleet.run(6)
    ends = [fleet.weights(m) for m in range(3)]
    fleet.finish()
    mean, report = sum(ends) / 3, fleet.syncs[0].rounds[0]
    distances = sorted((e - mean).norm().item() for e in ends)
    cosines = sorted(
        torch.dot(start - e, start - mean).item() / ((start - e).norm() * (start - mean).norm()).item() for e in ends
    )
    assert report.spread_median == pytest.approx(distances[1], rel=1e-5)
    assert report.spread_max == pytest.approx(distances[2], rel=1e-5)
    assert report.cosine_median == pytest.approx(cosines[1], rel=1e-4)
    assert report.outer_gradient_norm == pytest.approx((start - mean).norm().item(), rel=1e-5)
    assert report.outer_update_norm == pytest.approx(0.5 * (start - mean).norm().item(), rel=1e-5)


def test_outer_update_is_clipped_report_94() -> None:
    fleet = Fleet(2, sync_every=4, outer=diloco.Nesterov(0.7, 0.9, clip=0.01))
    start = fleet.weights()
    fleet.run(4)
    assert (fleet.weights() - start).norm().item() == pytest.approx(0.01, rel=1e-4)
    assert fleet.syncs[0].rounds[0].outer_update_norm == pytest.approx(0.01, rel=1e-4)


def test_merge_by_tokens_weighs_unequal_replicas() -> None:
    fleet = Fleet(2, sync_every=100, outer=diloco.SGD(1.0), merge="tokens")
    fleet.run(3)
    ends = [fleet.weights(m) for m in range(2)]
    fleet.syncs[0].count_tokens(300)
    fleet.syncs[1].count_tokens(100)
    fleet.finish()
    torch.testing.assert_close(fleet.weights(), (3 * ends[0] + ends[1]) / 4, rtol=1e-6, atol=1e-7)
    assert fleet.syncs[1].receipt()["tokens_per_replica"] == [300, 100]


def test_replicas_out_of_step_are_refused() -> None:
    fleet = Fleet(2, sync_every=2)
    with pytest.raises(diloco.Mismatch, match="replica 0 reached its next sync while replicas \\[1\\]"):
        for t in range(4):
            inner_step(fleet.models[0], fleet.optimizers[0], 0, t)
    lone = diloco.Local(2)
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    diloco.DiLoCo(model, optimizer, sync_every=1, exchange=lone)
    with pytest.raises(diloco.Mismatch, match="only 1 of 2 replicas were built"):
        inner_step(model, optimizer, 0, 0)


@pytest.mark.parametrize("sync_every", [0, -3, 2.5, True, None])
def test_bad_sync_every(sync_every: object) -> None:
    model = small_model()
    with pytest.raises(diloco.BadInput, match="sync_every"):
        diloco.DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.1), sync_every=sync_every)


def test_the_anchor_may_live_elsewhere_report_31() -> None:
    """With anchor and outer state on a device of their own the numbers are the same, and so they are after a resume."""
    here, away = Fleet(2), Fleet(2, anchor_device="cpu")
    for fleet in (here, away):
        fleet.run(8)
    assert here.syncs[0].checksum() == away.syncs[0].checksum()
    away.syncs[0].load_state_dict(copy.deepcopy(away.syncs[0].state_dict()))
    for fleet in (here, away):
        fleet.run(4)
    assert here.syncs[0].checksum() == away.syncs[0].checksum()


def test_identical_data_and_short_windows_track_data_parallel_report_17() -> None:
    """On the same data the replicas never part, so averaging is the plain run; on IID data it is near."""

    def train(data_of: object, replicas: int) -> torch.Tensor:
        fleet = Fleet(replicas, sync_every=2, outer=diloco.Average(), lr=0.01)
        for t in range(20):
            for m, (model, optimizer) in enumerate(zip(fleet.models, fleet.optimizers, strict=True)):
                inner_step(model, optimizer, data_of(m), t)
        return fleet.weights()

    torch.testing.assert_close(train(lambda m: 0, 4), train(lambda m: 0, 1), rtol=1e-5, atol=1e-6)
    start = weights_of(small_model())
    one, four = train(lambda m: m, 1) - start, train(lambda m: m, 4) - start
    assert torch.nn.functional.cosine_similarity(one, four, dim=0) > 0.7


@pytest.mark.parametrize(
    "options, message",
    [
        ({"bucket_bytes": 0}, "bucket_bytes is 0"),
        ({"anchor_device": "foo"}, "anchor_device is 'foo'"),
        ({"anchor_device": "meta"}, "anchor_device is 'meta'"),
        ({"counters": "sum"}, "counters is 'sum'"),
        ({"optimizer": []}, "optimizer holds none"),
        ({"optimizer": torch.optim.SGD(small_model().parameters(), lr=0.1)}, "optimizer holds none"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_built(options: dict, message: str) -> None:
    model = small_model()
    optimizer = options.pop("optimizer", None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if optimizer is None else optimizer
    with pytest.raises(diloco.BadInput, match=message):
        diloco.DiLoCo(model, optimizer, sync_every=1, **options)
    with pytest.raises(diloco.BadInput, match="replicas is 2.5"):
        diloco.Local(2.5)
