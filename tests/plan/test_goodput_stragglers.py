"""Learners that meet at merges, and the slowest of many, against order statistics and a plain loop.

pytest tests/plan/test_goodput_stragglers.py
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diloco.plan.fleet import Fleet
from diloco.plan.goodput import simulate
from diloco.plan.merges import MergeRules, meet
from diloco.plan.policy import decoupled, synchronous
from diloco.plan.stragglers import slowest

INF = math.inf


def harmonic(n: int) -> float:
    return sum(1 / k for k in range(1, n + 1))


@pytest.mark.parametrize(("learners", "quorum"), [(2, 2), (8, 8), (8, 1), (8, 5)])
def test_exponential_windows(learners: int, quorum: int) -> None:
    """The K-th of M exponentials of mean 1 comes after H_M - H_(M-K): each next one of j left takes 1/j (Renyi).

    Whoever is late starts afresh, so every merge takes that long on average.
    """
    rng = np.random.default_rng(0)
    work = rng.exponential(size=(40_000, learners)).tolist()
    got = meet(work, MergeRules(quorum, drop_late=True), INF)
    wanted = harmonic(learners) - harmonic(learners - quorum)
    assert got.horizon_s / got.merges == pytest.approx(wanted, rel=0.01)
    assert sum(got.on_time) == quorum * got.merges
    if quorum == learners:
        assert np.mean(got.waiting_s) / got.horizon_s == pytest.approx(1 - 1 / wanted, rel=0.01)
        assert sum(got.dropped_s) == 0


def test_nobody_waits_for_late_work_that_counts() -> None:
    """Speeds 1 and 3/4, K = 1: the fast one merges every 12 s, the slow one is late for all and adds to the next."""
    got = meet([[12.0, 16.0]] * 401, MergeRules(1), INF)
    assert got.horizon_s == 400 * 12.0 and got.merges == 400
    assert got.on_time == [400, 0]
    assert sum(got.waiting_s) == 0 and sum(got.dropped_s) == 0


def test_one_window_may_miss_several_merges() -> None:
    """Merges at 10, 20, 30 and 40: a window of 35 misses three and then passes; the next, of 5, is on time at 40."""
    got = meet([[10.0, 35.0], [10.0, 5.0], [10.0, 99.0], [10.0, 99.0], [10.0, 99.0]], MergeRules(1), INF)
    assert got.merges == 4 and got.on_time == [4, 1]


def test_an_outage_brings_a_slow_learner_back_in_step() -> None:
    """Late at 10 with a window until 41.25, out from 18 to 24: with the shared clock it is in step for 30, and late
    again for 40 and 50: its window of 12 from 30 passes at 42.25, the next one at 57.25."""
    work = [[10.0, 35.0], [10.0, 5.0], [10.0, 99.0], [10.0, 12.0], [10.0, 15.0], [10.0, 99.0], [10.0, 99.0]]
    outages = [np.empty((0, 2)), np.array([[18.0, 24.0], [40.5, 40.75]])]
    for merges in (3, 6):
        got = meet(work[: merges + 1], MergeRules(1, shared_clock=True), INF, outages)
        assert got.merges == merges and got.on_time == [merges, 1]


def test_overlap_is_work_ahead() -> None:
    """Both arrive at 10, have the result at 11 and work on meanwhile: the next arrival is 20, and the late one loses
    all it did since 10 when it takes the result at 21."""
    got = meet([[10.0, 10.0], [10.0, 30.0], [1.0, 1.0]], MergeRules(1, overlap_s=2.0, sync_s=1.0, drop_late=True), INF)
    assert got.horizon_s == 21.0
    assert got.dropped_s == [0.0, 11.0] and got.waiting_s == [0.0, 0.0]


def test_jitter_of_steps_averages_out_over_a_window() -> None:
    """4 learners of one slice, H = 25: windows are normal with sd s sqrt(H), the largest of 4 lies 1.0294 sd above the
    mean, and 1.0294 s / sqrt(H) of a window's mean is waited by each."""
    fleet = Fleet(4, slice_chips=1, mtbi_days=1e9, step_jitter=0.3)
    got = simulate(fleet, synchronous(4, sync_every=25, step_s=1.0), days=6)
    above = 1.0294 * math.sqrt(math.expm1(0.09)) / 5
    assert got.breakdown["waiting"] == pytest.approx(above / (1 + above), rel=0.02)
    assert got.mean == pytest.approx(1 / (1 + above), rel=0.01)


def test_grace_brings_more_learners_into_a_merge_at_no_wait() -> None:
    """Own clocks drift apart until a learner may arrive anywhere in the furthest one's window of 24 s. Without grace
    that one of 4 is alone in a merge of K = 1; grace takes in who comes within 0.9 of 2 s: some 3/4 * 1.8/24 more."""
    fleet = Fleet(4, slice_chips=1, mtbi_days=1e9, step_jitter=0.2)
    alone, more = (simulate(fleet, decoupled(4, grace=grace), days=3) for grace in (0.0, 0.9))
    assert alone.on_time == pytest.approx(0.25, abs=0.001)
    assert more.on_time == pytest.approx(0.25 + 0.75 * 1.8 / 24, rel=0.15)
    assert alone.breakdown["waiting"] == more.breakdown["waiting"] == 0
    assert simulate(fleet, synchronous(4), days=1).on_time == 1


@pytest.mark.parametrize(("slices", "jitter"), [(1, 0.3), (2, 0.3), (2, 1.0)])
def test_slowest_of_two_lognormals(slices: int, jitter: float) -> None:
    """E max(X, Y) = 2 E X P(Y < X under X's size-biased law) = 2 E X Phi(s / sqrt 2): that law shifts log X by s^2."""
    mean, deviation = slowest(slices, jitter)
    wanted = 1.0 if slices == 1 else 1 + math.erf(jitter / 2)
    assert mean == pytest.approx(wanted, rel=0.002)
    if slices == 1:
        assert deviation == pytest.approx(math.sqrt(math.expm1(jitter**2)), rel=0.01)


@pytest.mark.parametrize("slices", [10, 600])
def test_slowest_of_many_by_drawing(slices: int) -> None:
    draws = np.random.default_rng(2).lognormal(-(0.05**2) / 2, 0.05, size=(4000, slices)).max(axis=1)
    mean, deviation = slowest(slices, 0.05)
    assert mean == pytest.approx(draws.mean(), rel=0.002)
    assert deviation == pytest.approx(draws.std(), rel=0.05)
    assert slowest(slices, 0.0) == (1.0, 0.0)


def test_grace_takes_in_who_comes_within_a_share_of_the_slack() -> None:
    """Arrivals 10, 10.5, 12; K = 1, overlap 4, sync 1: slack 3, so grace 0.5 closes at 11.5 and grace 0.7 at 12.1."""
    work = [[10.0, 10.5, 12.0]] * 2
    short = meet(work, MergeRules(1, grace=0.5, overlap_s=4.0, sync_s=1.0), INF)
    long = meet(work, MergeRules(1, grace=0.7, overlap_s=4.0, sync_s=1.0), INF)
    none = meet(work, MergeRules(1, overlap_s=4.0, sync_s=1.0), INF)
    assert (none.on_time, short.on_time, long.on_time) == ([1, 0, 0], [1, 1, 0], [1, 1, 1])
    assert short.waiting_s == long.waiting_s == [0.0, 0.0, 0.0], "grace never makes anyone wait"


def test_a_quorum_of_all_waits_for_the_slowest_less_the_overlap() -> None:
    got = meet([[10.0, 10.0, 16.0]] * 2, MergeRules(3, overlap_s=2.0, sync_s=1.0), INF)
    assert got.waiting_s == [5.0, 5.0, 0.0]  # results at 17; the first two can go on until 12, the last until 18


def test_timeout_goes_on_without_the_missing() -> None:
    """Learner 1 stands still from 5 to 50; the merge closes 3 s after the first arrival at 10 and drops its 5 s."""
    outages = [np.empty((0, 2)), np.array([[5.0, 50.0]])]
    got = meet([[10.0, 10.0]] * 2, MergeRules(2, timeout_s=3.0, drop_late=True), INF, outages)
    assert got.horizon_s == 13.0
    assert got.waiting_s == [3.0, 0.0] and got.dropped_s == [0.0, 5.0] and got.on_time == [1, 0]


def test_a_quorum_that_never_comes_leaves_all_waiting() -> None:
    outages = [np.empty((0, 2)), np.array([[5.0, 100.0]])]
    got = meet([[10.0, 10.0]] * 3, MergeRules(2), 100.0, outages)
    assert got.merges == 0 and got.horizon_s == 100.0 and got.waiting_s == [90.0, 0.0]


def test_shared_clock_sends_what_there_is() -> None:
    """Learner 1 is back at 20 with a short window; without the shared clock all wait for its other 4 s of steps."""
    outages = [np.empty((0, 2)), np.array([[6.0, 20.0]])]
    own = meet([[10.0, 10.0]] * 2, MergeRules(2), INF, outages)
    shared = meet([[10.0, 10.0]] * 2, MergeRules(2, shared_clock=True), INF, outages)
    assert own.waiting_s == [14.0, 0.0] and shared.waiting_s == [10.0, 0.0]
    back_early = [np.empty((0, 2)), np.array([[2.0, 5.0]])]
    assert meet([[10.0, 10.0]] * 2, MergeRules(2, shared_clock=True), INF, back_early).waiting_s == [0.0, 0.0]


def test_shared_clock_after_a_missed_merge() -> None:
    """Out from 6 to 14, learner 1 misses the merge at 10 and is back in step for that at 20; else it comes at 28."""
    outages = [np.empty((0, 2)), np.array([[6.0, 14.0]])]
    shared = meet([[10.0, 10.0]] * 3, MergeRules(1, shared_clock=True), INF, outages)
    own = meet([[10.0, 10.0]] * 3, MergeRules(1), INF, outages)
    assert shared.on_time == [2, 1] and shared.waiting_s == [0.0, 0.0]
    assert own.on_time == [2, 0] and own.merges == shared.merges == 2


def plain_lockstep(work: np.ndarray, outages: list[np.ndarray], sync_s: float) -> tuple[float, list[float]]:
    """Every merge waits for all, no overlap: second by second a hundredth at a time, as slow as it is plain."""
    tick, now, waiting = 0.01, 0.0, [0.0] * work.shape[1]
    for left in work[:-1].tolist():
        result = INF
        while now < result - tick / 2:
            at = now + tick / 2
            for m in range(len(left)):
                up = not np.any((outages[m][:, 0] <= at) & (at < outages[m][:, 1]))
                if up and left[m] > tick / 2:
                    left[m] -= tick
                elif up:
                    waiting[m] += tick
            now += tick
            if result == INF and max(left) <= tick / 2:
                result = now + sync_s
    return now, waiting


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_lockstep_equals_a_plain_loop(data: st.DataObject) -> None:
    hundredths = st.integers(10, 200).map(lambda n: n / 100)
    work = np.array([[data.draw(hundredths) for _ in range(2)] for _ in range(3)])
    outages = []
    for _ in range(2):
        edges = np.cumsum([data.draw(hundredths) for _ in range(4)])
        outages.append(edges.reshape(2, 2))
    sync_s = data.draw(st.sampled_from([0.0, 0.25]))
    got = meet(work.tolist(), MergeRules(2, sync_s=sync_s), 1e6, outages)
    now, waiting = plain_lockstep(work, outages, sync_s)
    assert got.horizon_s == pytest.approx(now, abs=0.05)
    assert got.waiting_s == pytest.approx(waiting, abs=0.06)
