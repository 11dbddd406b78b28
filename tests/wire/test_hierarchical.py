"""Two levels: averages inside a site, rounds between the sites through their leaders.

pytest tests/wire/test_hierarchical.py
"""

from __future__ import annotations

import pytest
import torch
from support.drift import HALVES, Drifters, Tensors, digest, drift, flat_weights, make_sync, residual_digest
from support.processes import run_ranks
from support.replicas import inner_step, small_model, weights_of

import diloco
from diloco.wire.hierarchical import divide_into_sites


def sited(replicas: int, sites: object, every: int = 0, **options: object) -> Drifters:
    return Drifters(replicas, diloco.Hierarchical(diloco.Local(replicas), sites=sites, every=every), **options)


SITES = [(4, 2), (4, 1), (4, 4), (4, [[0, 3], [1, 2]]), (4, [[0], [1, 2, 3]]), (5, [[4, 0], [1, 2, 3]]), (6, 3)]


@pytest.mark.parametrize("replicas, sites", SITES, ids=str)
def test_a_round_is_the_plain_mean_over_all_replicas_report_6(replicas: int, sites: object) -> None:
    """Of unequal sites, too: a replica counts as much in a small site as in a large one."""
    fleet = sited(replicas, sites, outer=diloco.SGD(1.0))
    fleet.drift()
    fleet.sync()
    fleet.drift()
    mean = sum(flat_weights(m) for m in fleet.models) / replicas
    fleet.sync()
    assert not fleet.apart()
    torch.testing.assert_close(flat_weights(fleet.models[0]), mean, rtol=1e-6, atol=1e-6)


def test_sites_average_every_h1_and_meet_every_h2() -> None:
    fleet = sited(4, 2, every=2, sync_every=6)
    alone = Drifters(4, sync_every=100)
    for f in (fleet, alone):
        f.run(1)
    assert len({digest(m) for m in fleet.models}) == 4
    for f in (fleet, alone):
        f.run(1)
    assert digest(fleet.models[0]) == digest(fleet.models[1]) != digest(fleet.models[2]) == digest(fleet.models[3])
    for site in ((0, 1), (2, 3)):
        mean = sum(flat_weights(alone.models[m]) for m in site) / 2
        torch.testing.assert_close(flat_weights(fleet.models[site[0]]), mean, rtol=1e-6, atol=1e-6)
    fleet.run(3)
    assert len({digest(m) for m in fleet.models}) == 4
    fleet.run(1)
    assert not fleet.apart()
    receipt = fleet.syncs[0].receipt()
    # The average at step 6 is the round's.
    assert (receipt["site_averages"], receipt["rounds_committed"]) == (2, 1)
    assert 0 < receipt["site_bytes_sent"] < receipt["bytes_sent"]


@pytest.mark.parametrize("sites", [[[0, 1, 2], [3]], [[0, 2], [1], [3, 4, 5]]], ids=str)
def test_unequal_sites_average_by_themselves(sites: list[list[int]]) -> None:
    replicas = sum(map(len, sites))
    fleet = sited(replicas, sites, every=1, sync_every=3, codec="int8")
    fleet.run(1)
    digests = [digest(m) for m in fleet.models]
    assert all(len({digests[m] for m in site}) == 1 for site in sites) and len(set(digests)) == len(sites)
    fleet.run(2)
    assert not fleet.apart()


def test_averages_leave_anchor_and_drift_alone() -> None:
    """What a site averages stays in the next outer gradient: with equal sites and lr 1 the round is the mean that it
    would be without."""
    often, never = (sited(4, 2, every=every, sync_every=4, outer=diloco.SGD(1.0)) for every in (1, 0))
    anchor = often.syncs[0].checksum()
    for fleet in (often, never):
        fleet.run(3)
    assert often.syncs[0].checksum() == anchor
    for fleet in (often, never):
        fleet.run(1)
    torch.testing.assert_close(flat_weights(often.models[0]), flat_weights(never.models[0]), rtol=1e-6, atol=1e-6)


def test_leaders_alone_talk_between_sites() -> None:
    told: list[diloco.Message] = []
    exchange = diloco.Hierarchical(diloco.Local(6, on_message=told.append), sites=3)
    Drifters(6, exchange, codec="e3m0").run(2)
    between = [m for m in told if m.members == (0, 2, 4)]
    assert {m.kind for m in between} == {"Swap", "Gather"}
    assert {m.members for m in told if m.kind in ("Collect", "Spread")} == {(0, 1), (2, 3), (4, 5)}
    # Header and trailer are everybody's.
    assert {m.kind for m in told if len(m.members) == 6} == {"Gather"}
    assert max(m.bytes_sent for m in told if len(m.members) == 6) < 1000


# -- not finite


def poison(model: Tensors) -> None:
    with torch.no_grad():
        model.cube[0, 0, 0] = float("nan")


def test_a_nan_replica_takes_the_others_weights_at_a_site_average_report_85() -> None:
    fleet, alone = sited(4, 2, every=2, sync_every=6), Drifters(4, sync_every=100)
    for f in (fleet, alone):
        f.run(1)
        f.drift()
    poison(fleet.models[1])
    fleet.sync()
    assert digest(fleet.models[0]) == digest(fleet.models[1]) == digest(alone.models[0])
    fleet.run(4)
    assert not fleet.apart() and fleet.syncs[0].rounds[0].left_out == []


def test_a_nan_replica_loses_its_moments_at_a_site_average_report_85() -> None:
    """Else they would spoil its fresh weights at the next inner step, again and again."""
    exchange = diloco.Hierarchical(diloco.Local(2), sites=1, every=2)
    models = [small_model() for _ in range(2)]
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.05) for m in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        diloco.DiLoCo(model, optimizer, sync_every=8, exchange=exchange)
    for t in range(3):
        if t == 1:
            with torch.no_grad():
                models[1].scale.fill_(float("nan"))
        for m in range(2):
            inner_step(models[m], optimizers[m], m, t)
    assert weights_of(models[1]).isfinite().all()


def test_a_site_all_of_which_is_nan_waits_for_the_round_report_85() -> None:
    fleet = sited(4, 2, every=2, sync_every=4, outer=diloco.SGD(1.0))
    fleet.run(1)
    fleet.drift()
    for m in (0, 1):
        poison(fleet.models[m])
    fleet.sync()
    assert digest(fleet.models[2]) == digest(fleet.models[3])
    fleet.run(1)
    fleet.drift()
    mean = (flat_weights(fleet.models[2]) + flat_weights(fleet.models[3])) / 2
    fleet.sync()
    assert fleet.syncs[0].rounds[0].left_out == [0, 1] and not fleet.apart()
    torch.testing.assert_close(flat_weights(fleet.models[0]), mean, rtol=1e-6, atol=1e-6)


# -- processes

OVER_GLOO = [
    {"sites": 2},
    {"sites": 2, "codec": "e3m0", "every": 1, "sync_every": 3},
    {"sites": [[0, 3], [1, 2]], "every": 1, "overlap": 1, "mixing": 0.5, "fragments": HALVES, "sync_every": 3},
    {"sites": [[0], [1, 2, 3]], "codec": "int4", "bucket_bytes": 20_000},
    {"sites": 4, "codec": "int8", "merge": "tokens"},
    {"sites": 2, "codec": "topk:0.05", "overlap": "eager", "every": 1},
]


def _exchange(exchange: object, options: dict) -> tuple[object, dict]:
    options = dict(options)
    return diloco.Hierarchical(exchange, sites=options.pop("sites"), every=options.pop("every", 0)), options


def _digests(rank: int) -> list[list[str]]:
    found = []
    for case in OVER_GLOO:
        exchange, options = _exchange(diloco.Collective(), case)
        model = Tensors(rank)
        sync = make_sync(model, exchange, **options)
        digests = []
        for step in range(7):
            drift(model, rank, step)
            sync.count_tokens(rank + 1)
            sync.step()
            digests.append(digest(model))
        sync.finish()
        found.append([*digests, digest(model), residual_digest(sync), sync.checksum()])
    return found


@pytest.mark.slow
def test_processes_equal_one_process_to_the_bit_report_101() -> None:
    """After every step, with and without a codec, with averages inside the sites while rounds are under way."""
    found = run_ranks(4, _digests)
    assert not [f for f in found if isinstance(f, str)]
    for index, case in enumerate(OVER_GLOO):
        exchange, options = _exchange(diloco.Local(4), case)
        fleet = Drifters(4, exchange, **options)
        digests: list[list[str]] = [[], [], [], []]
        for _ in range(7):
            fleet.drift()
            for m, sync in enumerate(fleet.syncs):
                sync.count_tokens(m + 1)
            fleet.sync()
            for m, model in enumerate(fleet.models):
                digests[m].append(digest(model))
        fleet.finish()
        for m, sync in enumerate(fleet.syncs):
            own = [*digests[m], digest(fleet.models[m]), residual_digest(sync), sync.checksum()]
            assert found[m][index] == own, (case, m)


# -- dividing


def test_sites_are_in_rank_order_however_they_are_written() -> None:
    assert divide_into_sites(4, 2) == divide_into_sites(4, [[3, 2], [1, 0]]) == ((0, 1), (2, 3))
    assert divide_into_sites(3, 3) == ((0,), (1,), (2,))
    with pytest.raises(diloco.BadInput, match="sites is 4, which does not divide 6 replicas: the nearest is 3"):
        divide_into_sites(6, 4)
