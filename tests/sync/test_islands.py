"""Replicas that are islands: sharded equals unsharded, each rank syncs its own shards, and all ranks decide alike.

pytest tests/sync/test_islands.py
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.islands import history, largest_difference, make_mesh, unsharded
from support.processes import run_ranks

import diloco

STEPS = 13  # three rounds, and a last partial one

# Elementwise from end to end, so that shards give the same bits.
EXACT: dict[str, dict[str, Any]] = {
    "plain": {},
    "overlap": {"overlap": 1, "mixing": 0.5, "fragments": "strided:1"},
    "rebase": {"overlap": 2, "mixing": "rebase", "fragments": "balanced:3"},
    "eager": {"overlap": "eager"},
    "tokens": {"merge": "tokens", "outer": diloco.HeavyBall(lr=0.5)},
    "bf16": {"codec": "bf16"},
    "adam": {"outer": diloco.Adam(lr=0.01)},
    "torch": {"outer": torch.optim.SGD, "fragments": "sequential:2"},
    "small buckets": {"bucket_bytes": 64},
}
# Norms over the whole replica are summed in another order, and a codec's blocks are cut elsewhere.
CLOSE: dict[str, tuple[dict[str, Any], float]] = {
    "clipped merge": ({"merge": "clipped:0.5"}, 1e-5),
    "rda": ({"merge": "rda"}, 1e-5),
    "outer clip": ({"outer": diloco.Nesterov(lr=0.7, momentum=0.9, clip=0.01)}, 1e-5),
    "e3m0": ({"codec": "e3m0"}, 0.05),
    "int8": ({"codec": "int8"}, 0.02),
}
CASES = EXACT | {name: options for name, (options, _) in CLOSE.items()}
REPORTED = ("outer_gradient_norm", "outer_update_norm", "spread_median", "spread_max", "cosine_median", "noise")


def ranks_of(mesh_shape: tuple[int, int, int], cases: dict[str, dict]) -> list[dict[str, dict]]:
    def work(rank: int) -> dict[str, dict]:
        mesh = make_mesh(*mesh_shape)
        return {name: history(mesh, STEPS, options) for name, options in cases.items()}

    found = run_ranks(mesh_shape[0] * mesh_shape[1] * mesh_shape[2], work)
    assert not [f for f in found if isinstance(f, str)], found
    return found


def check_same_reports(mine: list[dict], theirs: list[dict], rel: float) -> None:
    assert [r["committed"] for r in mine] == [r["committed"] for r in theirs]
    for ours, reference in zip(mine, theirs, strict=True):
        for key in REPORTED:
            assert ours[key] == pytest.approx(reference[key], rel=rel, abs=1e-9), key


@pytest.mark.slow
def test_fsdp_equals_unsharded() -> None:
    ranks = ranks_of((2, 2, 1), CASES)
    for name, options in CASES.items():
        reference, bound = unsharded(2, STEPS, options), CLOSE.get(name, ({}, 0.0))[1]
        for rank, found in enumerate(ranks):
            mine, theirs = found[name], reference[rank // 2]
            if name in EXACT:
                assert mine["losses"] == theirs["losses"], name
            for kind in ("weights", "anchor"):
                assert largest_difference(mine[kind], theirs[kind]) <= bound, (name, kind)
            check_same_reports(mine["reports"], theirs["reports"], max(1e-5, 2 * bound))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 1, 2), (2, 2, 2)])
def test_tensor_parallel_equals_unsharded(shape: tuple[int, int, int]) -> None:
    """Sums over shards have another order, so to rounding; gains and biases that both ranks hold count once."""
    cases = {name: CASES[name] for name in ("plain", "overlap", "rda")}
    ranks = ranks_of(shape, cases)
    for name, options in cases.items():
        reference = unsharded(2, STEPS, options)
        for rank, found in enumerate(ranks):
            mine, theirs = found[name], reference[rank // (len(ranks) // 2)]
            assert mine["losses"] == pytest.approx(theirs["losses"], rel=1e-5)
            # Adam divides by the root of tiny second moments, which makes a last bit of a gradient a visible step.
            assert largest_difference(mine["anchor"], theirs["anchor"]) <= 1e-3
            check_same_reports(mine["reports"], theirs["reports"], 1e-3)


@pytest.mark.slow
def test_sites_of_islands() -> None:
    options = {"sites": 2}
    reference = unsharded(4, STEPS, options)
    for rank, found in enumerate(ranks_of((4, 2, 1), {"sites": options})):
        assert found["sites"]["losses"] == reference[rank // 2]["losses"]
        assert largest_difference(found["sites"]["weights"], reference[rank // 2]["weights"]) == 0


@pytest.mark.slow
def test_each_rank_sends_its_own_shard() -> None:
    """2 (M - 1) / M of the shard's bytes a round, beside headers and trailers; all ranks together, the model's."""
    steps, per_rank = 4, []
    for rank, found in enumerate(run_ranks(4, _bytes_of, steps)):
        sent, shard_bytes, rounds = found
        assert rounds == 1
        assert 0 <= sent - shard_bytes <= 200, (rank, sent, shard_bytes)
        per_rank.append(shard_bytes)
    total = sum(p.numel() * 4 for p in _model().parameters())
    assert per_rank[0] + per_rank[1] == total == per_rank[2] + per_rank[3]


def _bytes_of(rank: int, steps: int) -> tuple[int, int, int]:
    from support.islands import Member

    member = Member(make_mesh(2, 2, 1))
    member.messages.clear()
    for step in range(steps):
        member.step(step)
    shard_bytes = sum(p.to_local().numel() * 4 for p in member.model.parameters())
    return sum(m.bytes_sent for m in member.messages), shard_bytes, len(member.sync.rounds)


def _model() -> torch.nn.Module:
    from support.islands import island_model

    return island_model()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"overlap": 1, "fragments": "strided:1"}], ids=["plain", "overlap"])
def test_a_nan_in_one_shard_leaves_out_the_whole_replica(options: dict) -> None:
    """On the rank that has it as on the one that has not; the others' result is that of a replica spoilt as a whole."""

    def spoil(member: Any, step: int) -> None:
        if member.replica == 1 and step == 2:
            with torch.no_grad():
                weight = member.model[4].weight
                part = weight.to_local() if hasattr(weight, "to_local") else weight
                if not hasattr(weight, "to_local") or weight.device_mesh.get_local_rank() == 0:
                    part[0, 0] = float("nan")

    def work(rank: int) -> dict:
        return history(make_mesh(2, 2, 1), STEPS, options, spoil)

    reference = unsharded(2, STEPS, options, spoil)
    for rank, found in enumerate(run_ranks(4, work)):
        theirs = reference[rank // 2]
        assert [r["left_out"] for r in found["reports"]] == [r["left_out"] for r in theirs["reports"]]
        assert any(r["left_out"] == [1] for r in found["reports"])
        assert largest_difference(found["anchor"], theirs["anchor"]) == 0
        assert largest_difference(found["weights"], theirs["weights"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("by_rank", "sentence"),
    [
        (lambda rank: {"sync_every": 4 + rank % 2}, "sync_every differs"),
        (lambda rank: {"sync_every": 4 + rank // 2}, "sync_every differs"),
        (lambda rank: {"fragments": "strided:1" if rank == 3 else "whole"}, "number of fragments"),
        (lambda rank: {"merge": "no such" if rank == 1 else "mean"}, "merge"),
        (lambda rank: {"codec": "int8" if rank == 2 else "fp32"}, "codec differs"),
    ],
    ids=["inside", "across", "fragments", "one refuses", "codec"],
)
def test_all_ranks_refuse_alike(by_rank: Any, sentence: str) -> None:
    def work(rank: int) -> None:
        history(make_mesh(2, 2, 1), 1, by_rank(rank))

    found = run_ranks(4, work)
    assert all(isinstance(f, str) and f.startswith("BadInput") and sentence in f for f in found), found


@pytest.mark.slow
def test_damage_on_one_shard_is_raised_on_all_ranks() -> None:
    def damage(member: Any, step: int) -> None:
        if step == 5 and torch.distributed.get_rank() == 3:
            member.sync.fragments[0].anchor[0] += 1

    def work(rank: int) -> None:
        history(make_mesh(2, 2, 1), STEPS, {}, damage)

    found = run_ranks(4, work)
    assert all(isinstance(f, str) and "anchors differ between replicas" in f for f in found), found


@pytest.mark.slow
def test_an_evaluation_between_syncs_is_no_change_of_parameters() -> None:
    """After a forward pass without a backward FSDP2's root keeps whole parameters in place of its shards."""

    def evaluate(member: Any, step: int) -> None:
        if step == 3:
            with torch.no_grad():
                member.model(torch.ones(2, 5))

    def work(rank: int) -> list[float]:
        return history(make_mesh(2, 2, 1), STEPS, {}, evaluate)["losses"]

    reference = unsharded(2, STEPS, {})
    for rank, losses in enumerate(run_ranks(4, work)):
        assert losses == reference[rank // 2]["losses"]
