"""Runs that stream: fragments, overlap, codecs with error feedback, sites and intervals, in one process and in several,
stopped anywhere.

pytest tests/train/test_streaming.py
"""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest
import torch
from support.training import (
    assert_same_numbers,
    assert_same_run,
    curve,
    evals,
    events,
    intervals,
    open_job,
    quiet_train,
    rounds,
    tiny,
    train_over_ranks,
)

from diloco.outer.codec import get_codec
from diloco.train.data import Data
from diloco.train.replica import Replica

pytestmark = pytest.mark.slow

STREAMING = {"fragments": "balanced:3", "overlap": "2", "mixing": "0.5", "codec": "e3m0"}

# H is 4 and the run has 17 steps, so most of these have a fragment under way at most steps, the last one too.
WAYS: dict[str, dict] = {
    "streaming": STREAMING,
    "whole": {"overlap": "3", "mixing": "0.25", "codec": "int8+ef"},
    "rebase": {"fragments": "balanced:3", "overlap": "2", "mixing": "rebase", "codec": "int8"},
    "topk": {"fragments": "strided:1", "overlap": "3", "codec": "topk:0.1:4"},
    "randk": {"fragments": "balanced:2", "codec": "randk:0.1"},
    "delayed": {"fragments": "balanced:2", "overlap": "delayed", "codec": "int4"},
    "eager": {"overlap": "eager", "codec": "int8+ef"},
    "rda": {"fragments": "balanced:2", "overlap": "1", "merge": "rda", "codec": "bf16"},
    "adaptive": {"interval": "adaptive:3-8", "fragments": "balanced:3", "overlap": "2", "codec": "int8"},
    "taper": {"interval": "taper:0.5=8", "overlap": "1"},
    "sites": {"replicas": 4, "sites": 2, "site_every": 3, **STREAMING},
    "link": {**STREAMING, "link": "1gbit,1ms"},
}


QUICK = ("streaming", "delayed", "eager", "adaptive", "sites")


@pytest.mark.parametrize("way", [w if w in QUICK else pytest.param(w, marks=pytest.mark.slow) for w in WAYS])
def test_stopped_after_every_step_is_bit_equal_to_never_stopped_reports_21_23_91(tmp_path: Path, way: str) -> None:
    """Seventeen legs: in mid-window, while fragments are under way, right at a sending and right at a landing."""
    whole, parts = (tiny(tmp_path, name=name, **WAYS[way]) for name in ("whole", "parts"))
    receipt = quiet_train(whole)
    for stop in range(1, 17):
        leg = quiet_train(parts, stop_at=stop, resume=stop > 1)
        assert leg["steps"] == stop and not leg["finished"]
        under_way = leg["rounds_planned"] - leg["rounds_committed"] - leg["rounds_failed"]
        assert leg["rounds_airborne"] == under_way == leg["rounds_planned"] - len(rounds(parts))
    assert_same_run(whole, receipt, parts, quiet_train(parts, resume=True))


@pytest.mark.parametrize("way", WAYS)
def test_one_process_and_many_give_the_same_bits(tmp_path: Path, way: str) -> None:
    """With three replicas each owns a part of a fragment; with two, or sites, payloads are gathered."""
    options = {"replicas": 3, "batch_tokens": 12 * 32, **WAYS[way]}
    one, many = (tiny(tmp_path, name=name, **options) for name in ("one", "many"))
    receipt, receipts = quiet_train(one), train_over_ranks(many, one.replicas)
    assert_same_numbers(one, many)
    assert {r["checksum"] for r in receipts} == {receipt["checksum"]}
    assert receipts[0]["bytes_sent"] == receipt["bytes_sent"] > 0


@pytest.mark.parametrize("way", ["streaming", "eager"])
def test_legs_may_change_between_one_process_and_two(tmp_path: Path, way: str) -> None:
    """A checkpoint taken while a background thread has a fragment on its way is a whole one, for either side."""
    whole, parts = (tiny(tmp_path, name=name, **WAYS[way]) for name in ("whole", "parts"))
    receipt = quiet_train(whole)
    train_over_ranks(dataclasses.replace(parts, stop_at=5), 2)
    quiet_train(parts, stop_at=9, resume=True)
    train_over_ranks(dataclasses.replace(parts, stop_at=13, resume=True), 2)
    assert_same_run(whole, receipt, parts, train_over_ranks(dataclasses.replace(parts, resume=True), 2)[0])


def test_a_stop_and_a_crash_log_every_round_once_at_the_step_it_landed(tmp_path: Path, monkeypatch) -> None:
    """The leg that crashes has landed a fragment, and sent one, after the checkpoint it is resumed from."""
    whole, broken = (tiny(tmp_path, name=name, checkpoint_every=1, **STREAMING) for name in ("whole", "broken"))
    receipt = quiet_train(whole)
    good = Replica.inner_step

    def crash(self: Replica, step: int) -> torch.Tensor:
        if step == 11:
            raise OSError("power cut")
        return good(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(Replica, "inner_step", crash)
        with pytest.raises(OSError):
            quiet_train(broken)
    assert [(e["fragment"], e["sent_step"], e["step"]) for e in rounds(broken)][-2:] == [(0, 8, 10), (1, 9, 11)]
    assert_same_run(whole, receipt, broken, quiet_train(broken, resume=True))
    found = rounds(broken)
    assert sorted(e["round"] for e in found) == list(range(1, len(found) + 1))
    for e in found:
        flushed = e["partial"] or e["sent_step"] + 2 > 17
        assert e["step"] == (17 if flushed else e["sent_step"] + 2)
    assert [e["step"] for e in found] == sorted(e["step"] for e in found)


def test_fragments_are_sent_one_after_another_and_together_hold_each_token_once(tmp_path: Path) -> None:
    config = tiny(tmp_path, **STREAMING)
    receipt = quiet_train(config)
    # H = 4 and P = 3: offsets 0, 1 and 2; the last step flushes the windows that it leaves open.
    sent = [(e["fragment"], e["sent_step"]) for e in rounds(config)]
    assert sent[:9] == [(p, 4 * k + p) for k in (1, 2, 3) for p in (0, 1, 2)]
    for p in range(3):
        mine = [e for e in rounds(config) if e["fragment"] == p]
        assert sum(e["steps"] for e in mine) == 17 and mine[-1]["sent_step"] == 17
        assert [sum(e["tokens"][m] for e in mine) for m in range(2)] == receipt["tokens_per_replica"] == [17 * 128] * 2
    assert receipt["fragments"] == "balanced:3" and len(receipt["fragment_params"]) == 3
    assert receipt["inner_steps_unsynced"] == receipt["tokens_lost"] == receipt["rounds_airborne"] == 0


def test_equal_offsets_no_overlap_and_fp32_are_plain_diloco(tmp_path: Path) -> None:
    """At H = 1 all fragments are due at every step, whatever their number."""
    plain, split = (tiny(tmp_path, name=f, sync_every=1, fragments=f) for f in ("whole", "balanced:4"))
    quiet_train(plain), quiet_train(split)
    assert curve(plain) == curve(split) and evals(plain) == evals(split)


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "int4", "e3m0", "topk:0.1:4", "randk:0.1"])
def test_bytes_of_two_replicas_are_their_payloads(tmp_path: Path, codec: str) -> None:
    """Each sends its payload, or for fp32 half the sum twice, and a header and a trailer of 40 and 32 bytes."""
    receipt = quiet_train(tiny(tmp_path, codec=codec, fragments="balanced:2"))
    payload = [get_codec(codec).nbytes(n) for n in receipt["fragment_elements"]]
    assert receipt["rounds"] and receipt["codec"] == get_codec(codec).name
    for r in receipt["rounds"]:
        assert r["bytes_sent"] == pytest.approx(payload[r["fragment"]] + 40 + 32, abs=4)


def test_a_lossy_codec_with_feedback_ends_near_fp32(tmp_path: Path) -> None:
    losses = {}
    for codec in ("fp32", "int8", "e3m0"):
        losses[codec] = quiet_train(tiny(tmp_path, name=codec, codec=codec, steps=40))["loss"]
    assert losses["int8"] == pytest.approx(losses["fp32"], rel=0.01)
    assert losses["e3m0"] == pytest.approx(losses["fp32"], rel=0.05)
    assert len(set(losses.values())) == 3


# -- intervals


def test_an_adaptive_interval_leaves_its_decisions(tmp_path: Path) -> None:
    config = tiny(tmp_path, steps=40, interval="adaptive:2-16", eval_every=-1)
    quiet_train(config)
    changes = intervals(config)
    assert changes and all(2 <= e["sync_every"] <= 16 and e["noise"] > 0 for e in changes)
    every, sent = 4, [0, *(e["sent_step"] for e in rounds(config))]
    for before, now in zip(sent[1:], sent[2:], strict=False):
        every = next((e["sync_every"] for e in changes if e["step"] == before), every)
        assert now - before == every or now == 40
    measured = {e["step"]: e["noise"] for e in rounds(config)}
    # The cycle that begins at a step is decided on what the rounds before it measured.
    assert all(e["noise"] == measured[max(s for s in measured if s < e["step"])] for e in changes)


def test_a_tapered_interval_counts_from_the_runs_own_length(tmp_path: Path) -> None:
    config = tiny(tmp_path, steps=40, interval="taper:0.5=10", eval_every=-1)
    quiet_train(config)
    assert [(e["step"], e["sync_every"]) for e in intervals(config)] == [(20, 10)]
    assert [e["sent_step"] for e in rounds(config)] == [4, 8, 12, 16, 20, 30, 40]


# -- sites


def test_sites_average_between_rounds_and_send_less_far(tmp_path: Path) -> None:
    flat, sites = (
        tiny(tmp_path, name=name, replicas=4, **options)
        for name, options in (("flat", {}), ("sites", {"sites": 2, "site_every": 2}))
    )
    plain, receipt = quiet_train(flat), quiet_train(sites)
    # After steps 2, 6, 10 and 14: at 4, 8, ... a round takes everything.
    assert receipt["site_averages"] == 4 and plain["site_averages"] == 0
    assert receipt["site_bytes_sent"] > 0 == plain["site_bytes_sent"]
    # Only the leaders' sums leave a site: less than in the flat case, where each sends three quarters of it twice.
    assert 0 < receipt["bytes_sent"] - receipt["site_bytes_sent"] < plain["bytes_sent"]
    assert receipt["ok"] and receipt["rounds_committed"] == 5


# -- another number of replicas


@pytest.mark.parametrize("way", ["streaming", "rebase", "delayed", "eager", "topk"])
def test_other_replicas_land_what_was_under_way_and_drop_what_was_its_own(tmp_path: Path, way: str) -> None:
    """Residuals and late outer gradients belong to replicas that are no more."""
    config = tiny(tmp_path, **{**WAYS[way], "name": "run", "replicas": 4})
    left = quiet_train(config, stop_at=9)
    assert left["rounds_airborne"] > 0
    with open_job(dataclasses.replace(config, replicas=2, resume=True)) as job:
        for replica in job.replicas:
            sync = replica.sync
            assert sync.airborne == [] and sync.checksum() == left["checksum"]
            assert all(f.residual is None or not f.residual.any() for f in sync.fragments)
            for name, parameter in replica.model.named_parameters():
                assert torch.equal(parameter, sync.anchor()[name])
    notes = " ".join(e["text"] for e in events(config, "note"))
    assert "2 replicas instead of 4" in notes and f"{left['inner_steps_unsynced']} inner steps since" in notes
    assert ("what error feedback had kept back was dropped" in notes) == get_codec(left["codec"]).feedback
    assert sorted(e["round"] for e in rounds(config)) == list(range(1, left["rounds_planned"] + 1))


def test_each_sample_is_used_once_whatever_is_under_way_reports_42_51(tmp_path: Path, monkeypatch) -> None:
    seen: list[int] = []
    good = Data.batch

    def batch(self: Data, step: int, replica: int, replicas: int, sequences: int) -> torch.Tensor:
        seen.extend(self.sample_ids(step, replica, replicas, sequences).tolist())
        return good(self, step, replica, replicas, sequences)

    config = tiny(tmp_path, steps=20, name="run", **{**STREAMING, "replicas": 4})
    with monkeypatch.context() as patch:
        patch.setattr(Data, "batch", batch)
        patch.setattr("diloco.train.loop.Job._check_batches", lambda self: None)
        for replicas, stop in ((4, 6), (1, 11), (2, 20)):
            receipt = quiet_train(config, replicas=replicas, stop_at=stop, resume=stop > 6)
    assert len(set(seen)) == len(seen) == 20 * 8
    assert receipt["tokens"] == len(seen) * config.data.seq_len
    assert receipt["tokens_lost"] == receipt["inner_steps_dropped"] * config.batch_tokens > 0


# -- faults


@pytest.mark.parametrize("way", ["streaming", "delayed", "eager"])
def test_a_replica_that_turns_nan_is_left_out_of_the_fragments_it_spoilt_reports_85_117(
    tmp_path: Path, monkeypatch, way: str
) -> None:
    config = tiny(tmp_path, steps=25, **WAYS[way])
    good, rng = Replica.inner_step, random.Random(0)

    def inner_step(self: Replica, step: int) -> torch.Tensor:
        if step == 9 and self.shards == (1,):
            with torch.no_grad():
                rng.choice(list(self.model.parameters())).fill_(float("nan"))
        return good(self, step)

    monkeypatch.setattr(Replica, "inner_step", inner_step)
    receipt = quiet_train(config)
    assert receipt["ok"] and receipt["rounds_failed"] == 0 and receipt["replica_resets"][0] == 0
    assert receipt["replica_resets"][1] > 0 and receipt["loss"] < 6
    assert all(e["left_out"] in ([], [1]) for e in rounds(config))
    # Once it was reset it takes part again, to the end.
    assert [e["left_out"] for e in rounds(config)][-len(receipt["fragment_params"]) :] == (
        [[]] * len(receipt["fragment_params"])
    )
