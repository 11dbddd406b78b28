"""Waiting for fragments whose exchanges go one after another: the closed form against messages that are played one by
one, against the layer-by-layer simulator, and what must never make a run slower.

OMP_NUM_THREADS=1 pytest tests/plan/test_waiting.py
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import diloco
from diloco.plan.asked import Asked, read_question
from diloco.plan.clock import Round, Step, clock, outer_round, waiting_per_step_s
from diloco.plan.graph import Method, Wire, Workload
from diloco.plan.question import STREAMING, methods, streaming
from diloco.plan.run import Run
from diloco.plan.steps import simulate

CYCLES = 240
BASE = {"params": "1b", "tokens": "20b", "sites": "2x32xh100", "between": "20gbit,50ms", "inside": "400gbit",
        "mfu": "30%", "batch_tokens": "1048576", "tensor": 1}  # fmt: skip
BETTER = {"mfu": "60%", "inside": "800gbit", "sites": "2x64xh100", "between": "", "codec": "e3m0"}


@pytest.fixture(scope="module")
def run() -> Run:
    return streaming(read_question(Asked(**BASE)))


def waiting_s(run: Run, schedule: tuple[int, int, int], exchange_s: float, step_s: float = 1.0) -> float:
    """Of H steps, as the clock says."""
    every, fragments, overlap = schedule
    scheduled = replace(run, sync_every=every, fragments=fragments, overlap_steps=overlap)
    one = Round(exchange_s, 0.0, 0.0, 0.0, 1.0)
    return every * waiting_per_step_s(scheduled, Step(step_s, 0.0, 0.0), one)


def played_s(schedule: tuple[int, int, int], exchange_s: float, step_s: float = 1.0) -> float:
    """Seconds that H steps wait, in the trainer's order: after a step results land, then fragments are sent, and one
    thread runs the exchanges. The mean over the later half of the cycles."""
    every, fragments, overlap = schedule
    now = free = 0.0
    due: dict[int, float] = {}
    begins = []
    for step in range(every * CYCLES + 1):
        now = max(now, due.pop(step, 0.0))
        if step % every == 0:
            begins.append(now)
        for p in range(fragments):
            if p * every // fragments == step % every:
                free = max(free, now) + exchange_s
                due[step + overlap] = free
        now = max(now, due.pop(step, 0.0)) + step_s
    half = CYCLES // 2
    return (begins[-1] - begins[half]) / half - every * step_s


@st.composite
def schedules(draw, even: bool = False) -> tuple[int, int, int]:
    fragments = draw(st.integers(1, 16))
    every = fragments * draw(st.integers(1, 8)) if even else draw(st.integers(fragments, 60))
    return every, fragments, draw(st.integers(0, every))


times = st.floats(-2, 1.5).map(lambda power: 10**power)


@settings(max_examples=60)
@given(schedules(even=True), times)
def test_even_gaps_wait_as_messages_played_one_by_one(run, schedule, exchange_s) -> None:
    said, played = waiting_s(run, schedule, exchange_s), played_s(schedule, exchange_s)
    assert schedule[0] + said == pytest.approx(schedule[0] + played, rel=1e-9)


@settings(max_examples=60)
@given(schedules(), times)
def test_uneven_gaps_come_within_5_percent_of_a_cycle(run, schedule, exchange_s) -> None:
    said, played = waiting_s(run, schedule, exchange_s), played_s(schedule, exchange_s)
    assert schedule[0] + said == pytest.approx(schedule[0] + played, rel=0.05)


@settings(max_examples=40)
@given(schedules(even=True), times)
def test_waits_are_those_of_the_simulation_of_layers(run, schedule, exchange_s) -> None:
    every, fragments, overlap = schedule
    method = Method(
        sync_every=every, fragment_layers=1, overlap_steps=overlap, bits_per_param=16.0, even_gaps=False,
        layerwise=False,
    )  # fmt: skip
    simulated = simulate(Workload(fragments * 1e9, fragments, 1.0), method, Wire(16 / exchange_s))
    assert every + waiting_s(run, schedule, exchange_s) == pytest.approx(simulated.total_s, rel=0.01)


def test_a_long_overlap_saves_no_more_than_the_exchanges_leave(run) -> None:
    """8 exchanges of 6 s in 32 steps of 1 s take 48 s however late they are awaited; awaited after 2 steps, 64 s."""
    assert waiting_s(run, (32, 8, 10), 6.0) == pytest.approx(8 * 6 - 32)
    assert waiting_s(run, (32, 8, 4), 6.0) == pytest.approx(8 * 6 - 32)
    assert waiting_s(run, (32, 8, 2), 6.0) == pytest.approx(8 * (6 - 2))


def test_a_round_has_the_latencies_that_the_wire_counts(run) -> None:
    """Of two replicas on a simulated link with 300 ms, on which the bytes of a small layer take no time."""
    exchange = diloco.Local(2, link=diloco.Link.parse("1000gbit,300ms"))
    layers = [torch.nn.Linear(8, 8) for _ in range(2)]
    syncs = [
        diloco.DiLoCo(m, torch.optim.SGD(m.parameters(), lr=0.1), sync_every=1, hook=False, exchange=exchange)
        for m in layers
    ]
    for sync in syncs:
        sync.step()
    plain = replace(run, codec="fp32")
    assert syncs[0].rounds[0].stall_s / 0.3 == pytest.approx(outer_round(plain).latency_s / 0.05, abs=0.2)


@settings(max_examples=60)
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
    """8 fragments in 30 steps with an overlap of 5: exchanges follow one another, and hold both up alike."""
    question = {"params": "1b", "sites": "2x256xb200", "between": "20gbit,50ms", "sync_every": 30}
    slow, fast = (
        clock(methods(read_question(Asked(**question, mfu=mfu)))[STREAMING].run).step_s for mfu in ("30%", "60%")
    )
    assert fast <= slow * (1 + 1e-9)
