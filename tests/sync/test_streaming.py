"""Fragments, overlap and mixing: every weight after every inner step equals a plain loop that knows nothing of the
package.

pytest tests/sync/test_streaming.py
"""

from __future__ import annotations

import pytest
import torch
from support.replicas import Fleet, small_model
from support.streaming import GROUPS, Case, flat, history_of, inner_optimizer, plain_history
from torch import Tensor, nn

import diloco


def package_history(replicas: int, case: Case, **options: object) -> Tensor:
    exchange = diloco.Local(replicas)
    models = [small_model(0) for _ in range(replicas)]
    optimizers = [inner_optimizer(m) for m in models]
    chosen = {
        "sync_every": case.every,
        "outer": diloco.Nesterov(case.lr, case.momentum),
        "fragments": GROUPS[case.fragments],
        "offsets": case.offsets,
        "overlap": case.overlap,
        "mixing": case.mixing,
        **options,
    }
    syncs = [diloco.DiLoCo(m, o, exchange=exchange, **chosen) for m, o in zip(models, optimizers, strict=True)]
    return history_of(models, optimizers, range(replicas), case, lambda: [s.finish() for s in syncs])


def first_difference(ours: Tensor, plain: Tensor) -> str:
    """Empty where the two histories are equal bit for bit."""
    apart = (ours.view(torch.int32) != plain.view(torch.int32)).nonzero()
    return f"after step {apart[0, 0] + 1} replica {apart[0, 1]} differs" if len(apart) else ""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:mixing=.* has no effect")
@pytest.mark.parametrize("mixing", [0.0, 0.5, 1.0, "rebase"])
@pytest.mark.parametrize("overlap", [0, 1, 5])
@pytest.mark.parametrize("fragments", [1, 2, 3, 7])
def test_every_weight_after_every_step_equals_a_plain_loop_report_129(
    fragments: int, overlap: int, mixing: float | str
) -> None:
    """Bit for bit, for intervals that the number of fragments divides and does not divide, down to the shortest that
    the overlap allows."""
    for every in sorted({overlap + 1, 6, 7}):
        case = Case(fragments, every, overlap, mixing)
        assert first_difference(package_history(2, case), plain_history(2, case)) == "", case


@pytest.mark.parametrize("fragments, overlap, mixing", [(1, 5, 0.5), (3, 0, 0.0), (3, 5, 0.5), (7, 1, 0.0)])
def test_three_replicas_are_summed_in_order(fragments: int, overlap: int, mixing: float) -> None:
    case = Case(fragments, 7, overlap, mixing)
    assert first_difference(package_history(3, case), plain_history(3, case)) == ""


@pytest.mark.parametrize("offsets", [(0, 0, 0), (3, 3, 3), (6, 0, 6), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("overlap", [0, 5])
def test_offsets_of_ones_own(offsets: tuple[int, ...], overlap: int) -> None:
    case = Case(3, 7, overlap, 0.5 if overlap else 0.0, offsets=offsets)
    assert first_difference(package_history(2, case), plain_history(2, case)) == ""


@pytest.mark.parametrize("fragments, overlap", [(2, 0), (2, 3), (7, 0), (7, 3)])
def test_the_defaults_0_7_and_0_9_to_the_last_bits(fragments: int, overlap: int) -> None:
    """0.9 * momentum is rounded, and a fused multiply-add rounds once where the loop does twice: the first outer step
    may differ by a unit in the last place of the larger of its operands, and the inner steps after it amplify that."""
    case = Case(fragments, 6, overlap, 0.3 if overlap else 0.0, lr=0.7, momentum=0.9)
    ours, plain = package_history(2, case), plain_history(2, case)
    first = case.every + overlap
    torch.testing.assert_close(ours[:first], plain[:first], rtol=2**-23, atol=2**-23)
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fragments", [2, 3, 7])
def test_equal_offsets_without_overlap_are_plain_diloco(fragments: int) -> None:
    case = Case(1, 6)
    plain = package_history(2, case)
    assert first_difference(plain, plain_history(2, case)) == ""
    together = Case(fragments, 6, offsets=(0,) * fragments)
    assert first_difference(package_history(2, together), plain) == ""


@pytest.mark.parametrize("fragments", [2, 3, 5])
def test_no_bit_depends_on_how_a_model_is_laid_out_in_fragments(fragments: int) -> None:
    """At the usual 0.7 and 0.9 too, for tensors whose lengths no vector register divides."""

    def build(m: int) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 67), nn.Tanh(), nn.Linear(67, 41), nn.Tanh(), nn.Linear(41, 3))

    whole = Fleet(3, build, sync_every=5, outer=diloco.Nesterov(0.7, 0.9))
    parts = Fleet(
        3, build, sync_every=5, outer=diloco.Nesterov(0.7, 0.9), fragments=f"balanced:{fragments}",
        offsets=[0] * fragments,
    )  # fmt: skip
    for _ in range(40):
        assert whole.run(1) == parts.run(1)
        assert torch.equal(whole.weights(1), parts.weights(1))


def test_counters_never_go_back_and_statistics_are_mixed_like_weights() -> None:
    """Both have gone on while what was sent was under way."""

    def build(m: int) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))

    fleets = {
        mixing: Fleet(2, build, sync_every=4, overlap=2, mixing=mixing, counters="max") for mixing in (0.0, 0.5, 1.0)
    }
    for mixing, fleet in fleets.items():
        seen = []
        for _ in range(6):
            fleet.run(1)
            norm = fleet.models[0][1]
            seen.append((int(norm.num_batches_tracked), norm.running_mean.clone()))
        assert [count for count, _ in seen] == [1, 2, 3, 4, 5, 6]
        fleets[mixing] = seen[5][1]
    # After step 6: the mean of what both had after step 4, what each has now, and half way.
    taken, middle, own = fleets.values()
    torch.testing.assert_close(middle, (taken + own) / 2)
    assert not torch.equal(taken, own)


def test_mixing_0_takes_the_anchor_1_leaves_the_replica_half_is_the_middle_report_15() -> None:
    """At the step an overlapped result lands, to the bit."""
    for mixing in (0.0, 0.5, 1.0):
        fleet = Fleet(2, sync_every=4, overlap=2, mixing=mixing, outer=diloco.Nesterov(0.5, 0.5))
        alone = Fleet(2, sync_every=100, outer=diloco.SGD())
        for f in (fleet, alone):
            f.run(6)
        anchor = flat_anchor(fleet)
        for m in range(2):
            own = flat(alone.models[m])
            assert torch.equal(flat(fleet.models[m]), mixing * own + (1 - mixing) * anchor)
            assert not torch.equal(own, anchor)


def flat_anchor(fleet: Fleet) -> Tensor:
    model = small_model()
    model.load_state_dict(fleet.syncs[0].anchor(), strict=False)
    return flat(model)


def test_drift_is_measured_from_the_anchor_not_from_where_the_replica_was_mixed_to() -> None:
    """With mixing 1 and no inner progress after the first window, the second outer gradient is the new anchor minus the
    replica: what it is ahead or behind is made up for."""
    fleet = Fleet(1, sync_every=2, overlap=1, mixing=1.0, outer=diloco.SGD(0.5), lr=0.05)
    start = flat(fleet.models[0])
    fleet.run(2)
    sent = flat(fleet.models[0])
    for group in fleet.optimizers[0].param_groups:
        group["lr"] = 0.0
    fleet.run(3)
    assert torch.equal(flat(fleet.models[0]), sent)
    torch.testing.assert_close(flat_anchor(fleet), sent - (sent - start) / 4, rtol=1e-6, atol=1e-7)


def test_results_land_when_they_should_and_the_books_say_so() -> None:
    fleet = Fleet(2, sync_every=5, fragments=GROUPS[3], overlap=3)
    fleet.run(13)
    assert [(r.fragment, r.step, r.landed_step) for r in fleet.syncs[0].rounds] == [
        (0, 5, 8), (1, 6, 9), (2, 8, 11), (0, 10, 13),
    ]  # fmt: skip
    receipt = fleet.syncs[0].receipt()
    assert (receipt["rounds_planned"], receipt["rounds_committed"], receipt["rounds_airborne"]) == (6, 4, 2)
    assert receipt["rounds_failed"] == 0
    fleet.finish()
    receipt = fleet.syncs[1].receipt()
    assert receipt["rounds_airborne"] == receipt["rounds_failed"] == receipt["inner_steps_unsynced"] == 0
    assert sum(r["steps"] for r in receipt["rounds"] if r["fragment"] == 0) == 13
    assert torch.equal(fleet.weights(0), fleet.weights(1))
