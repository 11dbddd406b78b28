"""The state of a `DiLoCo`: complete, loud when it is not, and equal to never having stopped.

pytest tests/sync/test_resume.py
"""

from __future__ import annotations

import copy
import uuid
from functools import partial

import pytest
import torch
from support.replicas import Fleet, restored, small_model, trees_of
from torch import nn

import diloco
from diloco import checkpoint

OUTERS = [
    diloco.Nesterov(0.7, 0.9),
    diloco.Adam(lr=0.3),
    diloco.SGD(0.5),
    partial(torch.optim.SGD, lr=0.7, momentum=0.9),
]


def saved(fleet: Fleet) -> list[dict]:
    """What a user would save, through the checkpoint format."""
    place = f"memory://{uuid.uuid4().hex}"
    checkpoint.save(place, fleet.step, {f"replica-{m}": tree for m, tree in enumerate(trees_of(fleet))}, {})
    return list(checkpoint.load(checkpoint.steps(place)[0])[0].values())


@pytest.mark.parametrize("outer", OUTERS, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("stops", [[8], [6], [3, 9]], ids=str)
def test_resumed_equals_uninterrupted_report_21_22_23_47(outer: object, stops: list[int]) -> None:
    """After a sync, inside a window, and twice; momentum, anchor, counters and local weights all count."""
    whole = Fleet(2, sync_every=4, outer=outer)
    whole.run(14)
    fleet = Fleet(2, sync_every=4, outer=outer)
    for stop in stops:
        fleet.run(stop - fleet.step)
        fleet = restored(Fleet(2, build=lambda m: small_model(99), sync_every=4, outer=outer), saved(fleet), stop)
    fleet.run(14 - fleet.step)
    for f in (whole, fleet):
        f.finish()
    assert torch.equal(whole.weights(1), fleet.weights(1))
    assert [r.checksum for r in whole.syncs[0].rounds] == [r.checksum for r in fleet.syncs[0].rounds]
    assert [r.step for r in fleet.syncs[0].rounds] == [4, 8, 12, 14]


@pytest.mark.parametrize("key", ["anchor", "outer", "buffers", "counts", "rounds"])
def test_every_missing_piece_is_named_report_22(key: str) -> None:
    fleet = Fleet(1)
    fleet.run(5)
    state = fleet.syncs[0].state_dict()
    del state[key]
    with pytest.raises(diloco.BadInput, match=repr(key)):
        fleet.syncs[0].load_state_dict(state)


@pytest.mark.parametrize("where, key", [("outer", "momentum"), ("counts", "inner_step"), ("anchor", "0.weight")])
def test_missing_details_are_named(where: str, key: str) -> None:
    fleet = Fleet(1)
    state = copy.deepcopy(fleet.syncs[0].state_dict())
    del state[where][key]
    with pytest.raises(diloco.BadInput, match=key):
        fleet.syncs[0].load_state_dict(state)


def test_another_outer_optimizers_state_is_refused() -> None:
    state = Fleet(1, outer=diloco.Nesterov()).syncs[0].state_dict()
    with pytest.raises(diloco.BadInput, match="outer state"):
        Fleet(1, outer=diloco.Adam()).syncs[0].load_state_dict(state)
    with pytest.raises(diloco.BadInput, match=r"anchor 'weight' was saved with shape \(3, 5\), here \(3, 4\)"):
        wide, narrow = nn.Linear(5, 3), nn.Linear(4, 3)
        syncs = [
            diloco.DiLoCo(m, torch.optim.SGD(m.parameters(), lr=0.1), sync_every=1, exchange=diloco.Local(1))
            for m in (wide, narrow)
        ]
        syncs[1].load_state_dict(syncs[0].state_dict())


@pytest.mark.parametrize("replicas", [1, 2, 6])
def test_another_number_of_replicas_keeps_anchor_and_momentum_report_39(replicas: int) -> None:
    fleet = Fleet(4, sync_every=4)
    fleet.run(8)
    state, other = fleet.syncs[0].state_dict(), Fleet(replicas, build=lambda m: small_model(99), sync_every=4)
    for sync in other.syncs:
        sync.load_state_dict(copy.deepcopy(state))
        sync.restart_window()
    assert other.syncs[-1].checksum() == fleet.syncs[0].checksum()
    ours, theirs = (f.syncs[0].fragments[0].state.tensors["momentum"] for f in (other, fleet))
    assert torch.equal(ours, theirs) and theirs.norm() > 0
    assert torch.equal(other.weights(0), fleet.weights(0))
    other.step = 8
    other.run(4)
    assert other.syncs[0].rounds[-1].step == 12


def test_rounds_go_on_where_they_stopped_report_25() -> None:
    fleet = Fleet(1, sync_every=4)
    fleet.run(6)
    again = restored(Fleet(1, sync_every=4), saved(fleet), 6)
    again.run(4)
    assert [r.step for r in again.syncs[0].rounds] == [4, 8]


def test_saved_between_the_steps_of_two_optimizers() -> None:
    """Half an inner step is remembered, so that H does not drift."""

    def build() -> tuple[list[torch.optim.Optimizer], diloco.DiLoCo]:
        model = small_model()
        parameters = list(model.parameters())
        pair = [torch.optim.SGD(parameters[:3], lr=0.1), torch.optim.SGD(parameters[3:], lr=0.1)]
        return pair, diloco.DiLoCo(model, pair, sync_every=4, exchange=diloco.Local(1))

    pair, sync = build()
    pair[0].step()
    other_pair, other = build()
    other.load_state_dict(copy.deepcopy(sync.state_dict()))
    other_pair[1].step()
    assert other.inner_step == 1 and sync.inner_step == 0
