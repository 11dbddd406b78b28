"""Stopped and resumed with error feedback, fragments in flight and late outer gradients: as if never stopped, to the
bit.

pytest tests/sync/test_resume_wire.py
"""

from __future__ import annotations

import copy

import pytest
import torch
from support.replicas import Fleet, restored, small_model, trees_of
from support.streaming import GROUPS
from torch import Tensor

import diloco

pytestmark = pytest.mark.slow

WAYS = {
    "residual of two": {"codec": "int4+ef", "replicas": 2},
    "residual of owners": {"codec": "e3m0", "replicas": 4},
    "topk": {"codec": "topk:0.05", "replicas": 3},
    "randk": {"codec": "randk:0.05", "replicas": 3},
    "in flight": {"fragments": GROUPS[3], "overlap": 3, "mixing": 0.5},
    "in flight, to be rebased": {"fragments": GROUPS[3], "overlap": 4, "mixing": "rebase"},
    "in flight with residual": {"fragments": GROUPS[3], "overlap": 4, "mixing": 0.5, "codec": "e3m0"},
    "delayed": {"fragments": GROUPS[2], "overlap": "delayed", "codec": "int4"},
    "eager": {"fragments": GROUPS[2], "overlap": "eager", "codec": "int4"},
    "eager with a schedule": {"overlap": "eager", "outer": diloco.Nesterov(diloco.Cosine(0.8, 6), 0.9)},
    "clipped": {"merge": "clipped:1.0", "overlap": 2},
    "adaptive": {"sync_every": diloco.Adaptive(5, 5, 9, target=1e-4), "fragments": GROUPS[2], "overlap": 3},
}


def build(way: dict, seed: int = 0) -> Fleet:
    options = {"sync_every": 5, "outer": diloco.Nesterov(0.7, 0.9), **way}
    return Fleet(options.pop("replicas", 2), build=lambda m: small_model(seed), **options)


def bits(fleet: Fleet) -> list[Tensor]:
    """Everything a replica is: weights, anchor, and what it keeps for itself."""
    found = []
    for model, sync in zip(fleet.models, fleet.syncs, strict=True):
        state = sync.state_dict()
        found += [p.detach().clone() for p in model.parameters()]
        found += [v.clone() for v in state["anchor"].values()]
        found += [v.clone() for views in state["local"].values() for v in views.values()]
    return found


@pytest.mark.parametrize("stops", [[5], [6], [7, 8, 13]], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_resumed_equals_uninterrupted_report_91(way: str, stops: list[int]) -> None:
    """Just after a sending, with fragments in flight, and several times; after the end, too."""
    whole, fleet = build(WAYS[way]), build(WAYS[way])
    whole.run(22)
    for stop in stops:
        fleet.run(stop - fleet.step)
        fleet = restored(build(WAYS[way], seed=99), copy.deepcopy(trees_of(fleet)), stop)
    fleet.run(22 - fleet.step)
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(bits(whole), bits(fleet), strict=True))
        assert [r.checksum for r in whole.syncs[0].rounds] == [r.checksum for r in fleet.syncs[0].rounds]
        for f in (whole, fleet):
            f.finish()
    same = ("rounds_planned", "rounds_committed", "rounds_failed", "inner_steps", "bytes_sent", "checksum")
    ours, theirs = (f.syncs[0].receipt() for f in (fleet, whole))
    assert {k: ours[k] for k in same} == {k: theirs[k] for k in same}


def test_residual_is_state_by_parameter_and_not_by_bucket_report_91() -> None:
    """A run that goes on with other buckets keeps its residuals."""
    fleet = build({"codec": "e3m0", "bucket_bytes": 256, "replicas": 4})
    fleet.run(12)
    states = copy.deepcopy(trees_of(fleet))
    assert {n: v.shape for n, v in states[0]["sync"]["local"]["residual"].items()} == {
        n: p.shape for n, p in fleet.models[0].named_parameters()
    }
    assert any(v.norm() > 0 for v in states[0]["sync"]["local"]["residual"].values())
    other = restored(build({"codec": "e3m0", "bucket_bytes": 1 << 20, "replicas": 4}, seed=99), states, 12)
    for f in (fleet, other):
        f.run(13)
    assert all(torch.equal(a, b) for a, b in zip(bits(fleet), bits(other), strict=True))


def test_another_number_of_replicas_starts_without_residuals() -> None:
    state = copy.deepcopy(trees_of(build({"codec": "int4", "replicas": 2})))[0]["sync"]
    del state["local"]
    other = build({"codec": "int4", "replicas": 3})
    other.run(6)
    for sync in other.syncs:
        sync.load_state_dict(state)
        sync.restart_window()
        assert not sync.state_dict()["local"]
