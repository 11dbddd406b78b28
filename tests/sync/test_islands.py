"""Replicas that are islands: sharded equals unsharded, each rank syncs its own shards, and all ranks decide alike.

pytest tests/sync/test_islands.py
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from support.islands import (
    Member,
    history,
    inner_optimizer,
    island_model,
    largest_difference,
    make_mesh,
    unsharded,
    wide_model,
)
from support.processes import run_ranks
from support.replicas import inner_step
from torch import nn
from torch.utils._pytree import tree_map

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
    **{f"{codec} blocks": {"codec": codec, "build": wide_model} for codec in ("e3m0", "int8", "int4", "fp16")},
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
    total = sum(p.numel() * 4 for p in island_model().parameters())
    assert per_rank[0] + per_rank[1] == total == per_rank[2] + per_rank[3]


def _bytes_of(rank: int, steps: int) -> tuple[int, int, int]:
    member = Member(make_mesh(2, 2, 1))
    member.messages.clear()
    for step in range(steps):
        member.step(step)
    shard_bytes = sum(p.to_local().numel() * 4 for p in member.model.parameters())
    return sum(m.bytes_sent for m in member.messages), shard_bytes, len(member.sync.rounds)


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
        (lambda rank: {"fragments": "strided:1" if rank == 3 else "whole"}, "fragments differs"),
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


@pytest.mark.slow
def test_what_several_ranks_hold_stays_equal_whatever_the_codec() -> None:
    """Coordinates, and who rounds a sum the second time, hang upon what else a rank holds: the owner's values count."""
    cases = {codec: {"codec": codec} for codec in ("e3m0", "int4", "topk:0.1", "randk:0.1+ef")}
    cases["overlap"] = {"codec": "e3m0", "overlap": 1, "mixing": 0.5}
    found = ranks_of((3, 1, 2), cases)
    for name in cases:
        for first, second in zip(found[0::2], found[1::2], strict=True):
            for kind in ("weights", "anchor"):
                assert largest_difference(first[name][kind], second[name][kind]) == 0, (name, kind)


# -- across a restart


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "overlap", "eager", "e3m0"])
def test_resumed_equals_uninterrupted(name: str) -> None:
    """In mid-window and with a fragment in flight; the state of a sharded parameter is sharded as it is."""

    def work(rank: int) -> tuple[list[float], list[float], bool]:
        mesh = make_mesh(2, 2, 1)
        first = Member(mesh, **CASES[name])
        for step in range(6):
            first.step(step)
        live = [first.model.state_dict(), first.optimizer.state_dict(), first.sync.state_dict()]
        saved = tree_map(
            lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else copy.copy(leaf), live
        )
        sharded = all(hasattr(t, "to_local") for t in saved[2]["anchor"].values())
        uninterrupted = [first.step(step) for step in range(6, STEPS)]
        second = Member(mesh, **CASES[name])
        second.model.load_state_dict(saved[0])
        second.optimizer.load_state_dict(saved[1])
        second.sync.load_state_dict(saved[2])
        return uninterrupted, [second.step(step) for step in range(6, STEPS)], sharded

    for found in run_ranks(4, work):
        assert not isinstance(found, str), found
        uninterrupted, resumed, sharded = found
        assert resumed == uninterrupted and sharded


# -- replicated inside the island


@pytest.mark.slow
def test_data_parallel_islands_count_everything_once() -> None:
    """DistributedDataParallel over each replica's ranks: the same norms as of replicas on one device."""

    def work(rank: int) -> dict:
        mesh = make_mesh(2, 2, 1)
        replica = rank // 2
        model = nn.parallel.DistributedDataParallel(island_model(replica), process_group=mesh["fsdp"].get_group())
        optimizer = inner_optimizer(model)
        exchange = diloco.Collective(mesh, dim="replica")
        sync = diloco.DiLoCo(model, optimizer, exchange=exchange, sync_every=4, fragments="strided:1")
        losses = [inner_step(model, optimizer, replica, step) for step in range(STEPS)]
        sync.finish()
        return {"losses": losses, "reports": [vars(r) for r in sync.rounds]}

    reference = unsharded(2, STEPS, {"fragments": "strided:1"})
    for rank, found in enumerate(run_ranks(4, work)):
        assert found["losses"] == reference[rank // 2]["losses"]
        check_same_reports(found["reports"], reference[rank // 2]["reports"], 1e-6)


@pytest.mark.slow
def test_stages_with_and_without_a_part_of_each_fragment() -> None:
    """A pipeline's stages have equally many fragments, some empty, and together the whole model's norms."""
    whole_model = island_model()
    options = {"fragments": [["0"], ["1"], ["2", "3", "4"]], "overlap": 1}

    def work(rank: int) -> dict:
        mesh = make_mesh(2, 2, 1)
        replica, stage = divmod(rank, 2)
        # No pipeline runs here: both stages hold a whole model's gradients, and each keeps its own layers.
        model = island_model(replica)
        kept = nn.Module()
        for name, child in list(model.named_children())[stage * 2 : stage * 2 + 2 + stage]:
            kept.add_module(name, child)
        optimizer = inner_optimizer(kept)
        fragments = diloco.Stage(options["fragments"], whole_model)
        exchange = diloco.Collective(mesh, dim="replica")
        sync = diloco.DiLoCo(kept, optimizer, exchange=exchange, sync_every=4, fragments=fragments)
        for _ in range(8):
            for parameter in kept.parameters():
                parameter.grad = torch.full_like(parameter, 1.0 + replica)
            optimizer.step()
        return {"reports": [vars(r) for r in sync.rounds], "fragments": [f.flat.numel for f in sync.fragments]}

    found = run_ranks(4, work)
    assert found[0]["fragments"][2] == 0 and found[1]["fragments"][0] == 0
    assert [sum(sizes) for sizes in zip(found[0]["fragments"], found[1]["fragments"], strict=True)] == [
        sum(p.numel() for n, p in whole_model.named_parameters() if n.split(".")[0] in group)
        for group in options["fragments"]
    ]
    for rank in range(1, 4):
        for key in REPORTED:
            assert [r[key] for r in found[rank]["reports"]] == [r[key] for r in found[0]["reports"]], key
    assert all(r["outer_gradient_norm"] > 0 for r in found[0]["reports"])
