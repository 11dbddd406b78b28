"""Waiting for fragments that queue on one link: the closed form and the search for loops against messages that are
played one by one, against the layer-by-layer simulator, and what must never make a run slower.

OMP_NUM_THREADS=1 pytest tests/plan/test_queueing.py
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diloco.plan.asked import Asked, read_question
from diloco.plan.clock import clock
from diloco.plan.graph import Method, Wire, Workload
from diloco.plan.question import STREAMING, methods, streaming
from diloco.plan.queueing import waiting_s
from diloco.plan.steps import simulate

CYCLES = 840
"""Half of them is a multiple of the numbers of cycles, mostly below 8, after which a pattern of waits repeats."""


def played_s(every: int, fragments: int, overlap: int, step_s: float, link_s: float, rest_s: float) -> float:
    """Seconds that H steps wait, from sends, one link and deadlines: the mean over the later half of the cycles."""
    now = link_free = 0.0
    due: dict[int, float] = {}
    begins = []
    for step in range(every * CYCLES + 1):
        if step % every == 0:
            begins.append(now)
        for p in range(fragments):
            if p * every // fragments == step % every:
                link_free = max(link_free, now) + link_s
                due[step + overlap] = link_free + rest_s
        now = max(now, due.pop(step, 0.0)) + step_s
    half = CYCLES // 2
    return (begins[-1] - begins[half]) / half - every * step_s


@st.composite
def schedules(draw) -> tuple[int, int, int]:
    every = draw(st.integers(1, 40))
    return every, draw(st.integers(1, min(every, 16))), draw(st.integers(0, every))


times = st.floats(-2, 1.5).map(lambda power: 10**power)


@settings(max_examples=60, deadline=None)
@given(schedules(), times, times | st.just(0.0))
def test_any_schedule_waits_as_messages_played_one_by_one(schedule, link_s, rest_s) -> None:
    every, fragments, overlap = schedule
    said = waiting_s(every, fragments, overlap, 1.0, link_s, rest_s)
    assert every + said == pytest.approx(every + played_s(*schedule, 1.0, link_s, rest_s), rel=0.01)


@settings(max_examples=40, deadline=None)
@given(schedules(), times, times | st.just(0.0))
def test_any_schedule_waits_as_in_the_simulation_of_layers(schedule, link_s, latency_s) -> None:
    every, fragments, overlap = schedule
    method = Method(
        sync_every=every, fragment_layers=1, overlap_steps=overlap, bits_per_param=16.0, even_gaps=False,
        layerwise=False,
    )  # fmt: skip
    played = simulate(Workload(fragments * 1e9, fragments, 1.0), method, Wire(16 / link_s, latency_s))
    assert every + waiting_s(every, fragments, overlap, 1.0, link_s, latency_s) == pytest.approx(
        played.total_s, rel=0.01
    )


@pytest.mark.parametrize("schedule", [(30, 1, 0), (30, 10, 2), (30, 7, 3), (100, 12, 8), (5, 5, 0)])
def test_one_fragment_at_a_time_waits_for_what_its_overlap_leaves(schedule) -> None:
    """P tau < H: P max(0, f - tau step), the sum over fragments that do not meet."""
    every, fragments, overlap = schedule
    for link_s, rest_s in ((0.5, 0.1), (2.0, 3.0), (40.0, 0.0)):
        alone_s = fragments * max(0.0, link_s + rest_s - overlap)
        assert waiting_s(*schedule, 1.0, link_s, rest_s) == pytest.approx(alone_s, abs=1e-12)


def test_fragments_under_way_together_share_their_wait() -> None:
    """8 fragments every 4 steps, awaited after 10: 3 are under way, and one wait of 20 - 10 s is for three of them."""
    assert waiting_s(32, 8, 10, 1.0, 0.0, 20.0) == pytest.approx(8 / 3 * 10)
    assert waiting_s(32, 8, 10, 1.0, 6.0, 0.0) == pytest.approx(8 * 6 - 32), "the link is the clock"


def test_sends_at_uneven_gaps_meet_where_they_are_closest() -> None:
    """Sends at 0, 2, 5, 7 of 10 steps, tau = 2, a link of 2.5 steps a message. After sends 0 and 5 results come before
    the next send is held up, so a loop of two messages, 2 x 2.5 - 2 - 2 steps, is waited for twice."""
    assert waiting_s(10, 4, 2, 1.0, 2.5, 0.0) == pytest.approx(played_s(10, 4, 2, 1.0, 2.5, 0.0), rel=1e-9)
    assert waiting_s(10, 4, 2, 1.0, 2.5, 0.0) == pytest.approx(2 * (2 * 2.5 - 2 - 2))


@settings(max_examples=100, deadline=None)
@given(schedules(), times, times, times, st.sampled_from(["link", "rest", "step"]), st.floats(0.05, 1))
def test_less_of_anything_never_takes_longer(schedule, step_s, link_s, rest_s, which, share) -> None:
    every = schedule[0]
    slow = {"step": step_s, "link": link_s, "rest": rest_s}
    fast = slow | {which: share * slow[which]}
    slow_s, fast_s = (every * t["step"] + waiting_s(*schedule, t["step"], t["link"], t["rest"]) for t in (slow, fast))
    assert fast_s <= slow_s * (1 + 1e-9)


BASE = {"params": "1b", "tokens": "20b", "sites": "2x32xh100", "between": "20gbit,50ms", "inside": "400gbit",
        "mfu": "30%", "batch_tokens": "1048576", "tensor": 1}  # fmt: skip
BETTER = {"mfu": "60%", "inside": "800gbit", "sites": "2x64xh100", "between": "", "codec": "e3m0"}


@settings(max_examples=60, deadline=None)
@given(
    st.integers(8, 60), st.integers(1, 8), st.integers(0, 8), st.sampled_from([*BETTER, "rate"]),
    st.sampled_from(["100mbit", "1gbit", "20gbit"]), st.sampled_from(["0ms", "50ms", "1s"]),
)  # fmt: skip
def test_nothing_better_makes_a_step_slower(every, fragments, overlap, what, rate, latency) -> None:
    """More MFU, a faster link inside, more chips, less latency, fewer bits, more bandwidth; H, P and tau as they are.

    (Where links inside hold the chips up, twice as many gather (d - 1) / d of the weights for a larger d.)
    """
    kept = BASE | {"between": f"{rate},{latency}", "codec": "int8", "sync_every": every, "fragments": fragments,
                   "overlap": overlap}  # fmt: skip
    changes = BETTER | {"between": f"{rate},0ms", "rate": f"1tbit,{latency}"}
    better = kept | {"between" if what == "rate" else what: changes[what]}
    slow, fast = (clock(streaming(read_question(Asked(**given)))).step_s for given in (kept, better))
    assert fast <= slow * (1 + 1e-9)


def test_faster_chips_are_not_slower_where_fragments_overlap() -> None:
    """8 fragments in 30 steps with an overlap of 5: the link holds both up, the faster chips less long."""
    question = {"params": "1b", "sites": "2x256xb200", "between": "20gbit,50ms", "sync_every": 30}
    slow, fast = (
        clock(methods(read_question(Asked(**question, mfu=mfu)))[STREAMING].run).step_s for mfu in ("30%", "60%")
    )
    assert 12e-3 < fast < slow < 13.5e-3
