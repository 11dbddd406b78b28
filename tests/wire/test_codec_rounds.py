"""Codecs in whole rounds: replicas end with the same bits, in one process and over gloo, and error feedback loses
nothing.

pytest tests/wire/test_codec_rounds.py
"""

from __future__ import annotations

import pytest
import torch
from support.drift import HALVES, Drifters, Tensors, digest, drift, flat_of, flat_weights, make_sync, residual_digest
from support.processes import run_ranks
from support.replicas import Fleet

import diloco
from diloco.outer.round import Round

pytestmark = pytest.mark.slow

NAMES = ("bf16", "fp16", "int8", "int4", "e3m0", "topk:0.05", "randk:0.05")
SPECS = ("fp32", *(name + feedback for name in NAMES for feedback in ("-ef", "+ef")))


@pytest.mark.parametrize("replicas", [2, 3, 4, 8])
@pytest.mark.parametrize("codec", SPECS)
def test_replicas_that_differ_are_bit_identical_after_a_round_report_2(codec: str, replicas: int) -> None:
    fleet = Drifters(replicas, codec=codec, fragments=HALVES, offsets=[0, 0])
    for _ in range(2):
        fleet.drift()
        fleet.sync()
        fleet.drift()
        assert fleet.apart()
        fleet.sync()
        assert not fleet.apart()
    assert all(r.committed for r in fleet.syncs[0].rounds) and len({s.checksum() for s in fleet.syncs}) == 1


@pytest.mark.parametrize("codec", SPECS)
def test_a_codec_moves_the_anchor_about_where_fp32_does(codec: str) -> None:
    """Dense codecs in one round; sparse ones send a part of it, and never away from it."""
    plain, coded = Drifters(4, outer=diloco.SGD(1.0)), Drifters(4, outer=diloco.SGD(1.0), codec=codec)
    start = flat_weights(plain.models[0])
    for fleet in (plain, coded):
        fleet.run(2)
    wanted, got = flat_weights(plain.models[0]) - start, flat_weights(coded.models[0]) - start
    cosine = torch.nn.functional.cosine_similarity(wanted, got, dim=0).item()
    assert cosine > (0.15 if codec.startswith(("topk", "randk")) else 0.9)


# -- error feedback


@pytest.mark.parametrize(
    "replicas, options",
    [
        (2, {}),
        (3, {}),
        (4, {}),
        (4, {"fragments": HALVES, "offsets": [0, 0]}),
        (4, {"bucket_bytes": 20_000}),
        (3, {"merge": "tokens"}),
        (4, {"sites": 2}),
        (6, {"sites": 3}),
    ],
    ids=str,
)
@pytest.mark.parametrize("codec", [name + "+ef" for name in NAMES])
def test_sent_plus_residual_is_the_truth_report_91(codec: str, replicas: int, options: dict) -> None:
    """Summed over rounds and replicas, what the anchor received is the true outer gradients less the residuals left:
    among two, who gather, and among more, whose owners round a second time; among sites' leaders, and with weights."""
    sites = options.get("sites")
    exchange = diloco.Hierarchical(diloco.Local(replicas), sites=sites) if sites else diloco.Local(replicas)
    options = {key: value for key, value in options.items() if key != "sites"}
    fleet = Drifters(replicas, exchange, codec=codec, outer=diloco.SGD(1.0), sync_every=1, **options)
    start = anchor = flat_weights(fleet.models[0])
    true = torch.zeros_like(start)
    tokens = [3.0, 2.0, 1.0] if "merge" in options else [1.0] * replicas
    for _ in range(4):
        fleet.drift()
        for m, (model, sync) in enumerate(zip(fleet.models, fleet.syncs, strict=True)):
            sync.count_tokens(int(tokens[m]))
            true += (anchor - flat_weights(model)) * tokens[m] * replicas / sum(tokens)
        fleet.sync()
        anchor = flat_weights(fleet.models[0])
    left = sum(flat_of(kept) for kept in (s.state_dict()["local"].get("residual") for s in fleet.syncs) if kept)
    sent = (start - anchor) * replicas
    assert left.norm() > 1e-5 * true.norm()
    torch.testing.assert_close(sent + left, true, rtol=0, atol=replicas * 3e-6)


def test_without_feedback_the_truth_is_lost() -> None:
    """What the test above would find if residuals were dropped."""
    fleet = Drifters(4, codec="int4-ef", outer=diloco.SGD(1.0), sync_every=1)
    plain = Drifters(4, outer=diloco.SGD(1.0), sync_every=1)
    for f in (fleet, plain):
        f.run(4)
    assert (flat_weights(fleet.models[0]) - flat_weights(plain.models[0])).abs().max() > 1e-3
    assert not fleet.syncs[0].state_dict()["local"]


@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_a_replica_left_out_keeps_its_residual_for_the_next_round_report_91(replicas: int) -> None:
    """The truth of its lost window is not sent, what it owed before is; nor is what it lost as an owner of the
    others'."""
    fleet = Drifters(replicas, codec="int4+ef", outer=diloco.SGD(1.0), sync_every=1)
    anchor = flat_weights(fleet.models[0])
    balance = torch.zeros_like(anchor)
    for step in range(4):
        fleet.drift()
        live = [m for m in range(replicas) if (step, m) != (2, 1)]
        balance += sum(anchor - flat_weights(fleet.models[m]) for m in live)
        if len(live) < replicas:
            owed = residual_digest(fleet.syncs[1])
            with torch.no_grad():
                fleet.models[1].bias.fill_(float("nan"))
        fleet.sync()
        if len(live) < replicas:
            assert fleet.syncs[0].rounds[-1].left_out == [1]
            assert replicas > 2 or residual_digest(fleet.syncs[1]) == owed
        balance -= (anchor - flat_weights(fleet.models[0])) * len(live)
        anchor = flat_weights(fleet.models[0])
    left = sum(flat_of(s.state_dict()["local"]["residual"]) for s in fleet.syncs)
    torch.testing.assert_close(left, balance, rtol=0, atol=replicas * 3e-6)


# -- processes

OVER_GLOO = [
    {"codec": "fp32"},
    {"codec": "fp16", "merge": "tokens"},
    {"codec": "int8+ef"},
    {"codec": "e3m0", "fragments": HALVES, "bucket_bytes": 20_000},
    {"codec": "topk:0.05"},
    {"codec": "randk:0.05"},
    {"codec": "bf16", "overlap": 1, "mixing": 0.5, "fragments": HALVES},
    {"codec": "int4", "overlap": "eager", "fragments": HALVES},
]


def _digests(rank: int) -> list[list[str]]:
    found = []
    for options in OVER_GLOO:
        model = Tensors(rank)
        sync = make_sync(model, None, **options)
        for step in range(6):
            drift(model, rank, step)
            sync.count_tokens(rank + 1)
            sync.step()
        found.append([digest(model), residual_digest(sync), *(r.checksum for r in sync.rounds)])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_processes_equal_one_process_to_the_bit_report_101(replicas: int) -> None:
    """Weights, residuals and checksums, for every way of reducing."""
    found = run_ranks(replicas, _digests)
    for index, options in enumerate(OVER_GLOO):
        fleet = Drifters(replicas, **options)
        for _ in range(6):
            fleet.drift()
            for m, sync in enumerate(fleet.syncs):
                sync.count_tokens(m + 1)
            fleet.sync()
        for m, sync in enumerate(fleet.syncs):
            ours = [digest(fleet.models[m]), residual_digest(sync), *(r.checksum for r in sync.rounds)]
            assert found[m][index] == ours, (options, m)


def test_randk_takes_other_coordinates_in_every_fragment_and_round(monkeypatch) -> None:
    """Two fragments of equal length in one round, and one fragment in two rounds: a seed for each."""
    seeds, original = [], Round._reduction.fget

    def noting(self: Round) -> object:
        reduction = original(self)
        seeds.append((self.report.round, self.fragment.index, reduction.seed))
        return reduction

    monkeypatch.setattr(Round, "_reduction", property(noting))
    Fleet(2, codec="randk:0.5", fragments="balanced:2", sync_every=4).run(12)
    by_seed = {seed: (round, fragment) for round, fragment, seed in seeds}
    assert len(by_seed) == len({(round, fragment) for round, fragment, _ in seeds}) >= 4
