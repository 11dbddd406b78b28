"""Replicas that are not finite while fragments are under way.

pytest tests/sync/test_nan_overlap.py
"""

from __future__ import annotations

import math

import pytest
import torch
from support.drift import HALVES, Drifters
from support.replicas import Fleet
from support.streaming import GROUPS

import diloco


def poisoned(fleet: Fleet, replicas: tuple[int, ...], at_step: int, steps: int) -> Fleet:
    """Runs the fleet; these replicas meet a NaN in inner step `at_step`, counted from 1."""

    def poison(m: int, step: int) -> None:
        if m in replicas and step == at_step - 1:
            with torch.no_grad():
                fleet.models[m].scale.fill_(math.nan)

    fleet.run(steps, each=poison)
    return fleet


def build(**options: object) -> Fleet:
    return Fleet(3, **{"sync_every": 6, "fragments": GROUPS[3], "overlap": 2, "mixing": 0.5, **options})


@pytest.mark.parametrize("codec", ["fp32", "e3m0"])
@pytest.mark.parametrize("at_step", [8, 9, 10, 11, 12])
def test_a_nan_replica_is_left_out_reset_and_named_report_85(at_step: int, codec: str) -> None:
    """Fragments are sent at 6, 8, 10, 12, 14 and land two steps later, so that one is under way when it happens."""
    fleet = poisoned(build(codec=codec), (1,), at_step, 24)
    sent = [(r.step, r.left_out) for r in fleet.syncs[0].rounds]
    sick = [step for step, left_out in sent if left_out]
    assert all(left_out in ([], [1]) for _, left_out in sent)
    # From the first sending with a NaN in it on, until that one has landed: no more than one other goes with it.
    first = at_step + at_step % 2
    assert sick and sick[0] == first and sick[-1] <= first + 2
    fleet.finish()
    assert all(m.isfinite().all() for m in (fleet.weights(r) for r in range(3)))
    assert torch.equal(fleet.weights(0), fleet.weights(1))
    receipt = fleet.syncs[2].receipt()
    assert receipt["replica_resets"] == [0, len(sick), 0] and receipt["rounds_failed"] == 0
    assert [r["left_out"] for r in receipt["rounds"] if r["step"] == first] == [[1]]
    moments = [v for s in fleet.optimizers[1].state.values() for v in s.values() if v.dim()]
    assert all(v.isfinite().all() for v in moments)


def test_the_others_merge_without_it() -> None:
    """The round a NaN replica is left out of is the mean of the rest, as if there had been two."""
    sick = poisoned(build(outer=diloco.SGD(0.5), mixing=0.0), (2,), 6, 8)
    pair = Fleet(2, sync_every=6, fragments=GROUPS[3], overlap=2, outer=diloco.SGD(0.5))
    pair.run(8)
    for m in range(2):
        assert torch.equal(sick.weights(m), pair.weights(m))


@pytest.mark.parametrize("overlap", [2, "delayed", "eager"])
def test_rounds_without_a_finite_replica_fail_and_keep_the_anchor(overlap: object) -> None:
    fleet = build(overlap=overlap, mixing=0.0)
    poisoned(fleet, (0, 1, 2), 6, 14)
    fleet.finish()
    receipt = fleet.syncs[0].receipt()
    assert receipt["rounds_failed"] >= 1 and receipt["rounds_airborne"] == 0
    failed = [r for r in fleet.syncs[0].rounds if not r.committed]
    assert len(failed) == receipt["rounds_failed"] and all(r.left_out == [0, 1, 2] for r in failed)
    assert fleet.syncs[0].rounds[0] in failed
    assert all(fleet.weights(m).isfinite().all() for m in range(3))
    assert torch.equal(fleet.weights(0), fleet.weights(2))


def test_an_anchor_that_nobody_moved_is_kept_to_the_bit() -> None:
    fleet = build(fragments=None)
    before = fleet.syncs[0].checksum()
    poisoned(fleet, (0, 1, 2), 6, 8)
    assert fleet.syncs[0].checksum() == before
    assert fleet.syncs[0].receipt()["rounds_committed"] == 0
    assert all(torch.equal(fleet.weights(m), fleet.weights(0)) for m in range(3))


@pytest.mark.parametrize("overlap", ["delayed", "eager"])
def test_a_late_outer_gradient_of_a_nan_replica_costs_one_window(overlap: str) -> None:
    """The replica restarts when it is found out, not a whole window later when the result lands."""
    fleet = poisoned(build(overlap=overlap, fragments=None, mixing=0.0), (1,), 8, 30)
    fleet.finish()
    assert [r.left_out for r in fleet.syncs[0].rounds] == [[], [1], [], [], []]
    assert torch.equal(fleet.weights(0), fleet.weights(1)) and fleet.weights(1).isfinite().all()


@pytest.mark.parametrize("mixing", [0.0, 0.5, "rebase"])
def test_a_replica_that_was_reset_is_not_moved_by_what_it_had_sent_before(mixing: float | str) -> None:
    """Two fragments are sent together and one of them has a NaN: when that lands the replica restarts from the anchors,
    and the inner steps before it are no longer to be carried over to the other."""
    fleet = Drifters(3, sync_every=4, fragments=HALVES, offsets=[0, 0], overlap=2, mixing=mixing)
    fleet.run(3)
    fleet.drift()
    with torch.no_grad():
        fleet.models[1].scale.fill_(math.nan)
    fleet.sync()
    fleet.run(2)
    assert [r.left_out for r in fleet.syncs[0].rounds] == [[1], []]
    for name, anchor in fleet.syncs[1].anchor().items():
        torch.testing.assert_close(dict(fleet.models[1].named_parameters())[name].detach(), anchor, rtol=0, atol=0)
