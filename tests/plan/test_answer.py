"""The answer: one question worked out by hand, what must hold for every question, and the parts against each other.

pytest tests/plan/test_answer.py
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diloco.laws import recommend
from diloco.plan.answer import TARGETS, answer
from diloco.plan.asked import Asked, read_question
from diloco.plan.clock import clock, with_between
from diloco.plan.cost import Failures, days_of, goodput
from diloco.plan.fleet import Fleet
from diloco.plan.goodput import simulate
from diloco.plan.loss import LossLaw
from diloco.plan.policy import static
from diloco.plan.question import DATA_PARALLEL, DILOCO, ONE_SITE, STREAMING, settle, streaming
from diloco.plan.window import window
from diloco.units import YEAR_S

BASE = {"params": "1b", "tokens": "20b", "sites": "2x8xh100", "between": "8gbit", "batch_tokens": "1048576",
        "sync_every": 100, "overlap": 0, "fragments": 1, "tensor": 1, "mtbi": "1y"}  # fmt: skip


def ask(**words):
    return read_question(Asked(**BASE | words))


def test_a_question_worked_out_by_hand():
    """1B parameters, 20B tokens in steps of 2^20, 2 sites of a server of 8 H100 at 40% of 989.5 TFLOP/s, 8 Gbit/s.

    compute     6 * 1e9 * 2^20 / (16 * 0.4 * 989.5e12)              = 0.993466 s a step
    inside      3 * 7/8 * 2e9 bytes / 450 GB/s = 11.7 ms, hidden    = 0
    coding      4e9 bytes / (8 * 3350e9/16 bytes a second)          = 2.3881 ms a round
    DiLoCo      32e9 bits / 8e9 = 4 s and the coding, every 100     = 40.0239 ms a step
    streaming   (4 + 8/128) 1e9 bits / 8e9 = 0.507813 s, likewise   = 5.10201 ms a step
    data parallel  16e9 / 8e9 = 2 s less 2/3 of the computation     = 1.337689 s a step
    goodput     r = 8 / 31557600 s, r C = r 99.3466, r S = r 2100   = 0.999455
    days        19073.486 steps * 0.998884 s / 86400 / goodput      = 0.220632
    cost        16 * 3 * 24 * days                                  = $254.17
    """
    lines = answer(ask()).lines
    assert all(line.clock.compute_s / line.clock.steps == pytest.approx(0.993466, rel=1e-5)
               for name, line in lines.items() if name != ONE_SITE)  # fmt: skip
    assert lines[ONE_SITE].clock.step_s == pytest.approx(2 * 0.993466, rel=1e-5)
    waits = {DILOCO: 0.0425101, STREAMING: 0.00541764, DATA_PARALLEL: 1.461998}
    for name, seconds in waits.items():
        assert lines[name].clock.communication_s / lines[name].clock.steps == pytest.approx(seconds, rel=1e-4), name
    last = lines[STREAMING]
    assert last.goodput == pytest.approx(0.999455, abs=1e-6) and last.days == pytest.approx(0.220632, rel=1e-4)
    assert last.cost_usd == pytest.approx(254.17, rel=1e-4)
    assert last.clock.utilization == pytest.approx(0.993466 / 0.998884, rel=1e-5)
    assert last.bytes_per_day == pytest.approx(4.0625e9 / 8 / 100 / 0.998884 * 86400, rel=1e-4)


def test_the_chosen_line_is_the_last_and_its_numbers_lead_the_record():
    said = answer(ask())
    record = said.as_dict()
    fixed = ("step_s", "compute_s", "communication_s", "compute_utilization", "days", "gbit_per_s_needed", "cost_usd")
    assert said.chosen.name == STREAMING == record["method"]
    assert all(record[key] == record["methods"][STREAMING][key] for key in fixed)
    assert record["step_s"] == pytest.approx(record["compute_s"] + record["communication_s"] + record["bubble_s"])


links = st.floats(-3, 3).map(lambda power: 10**power)
intervals = st.sampled_from([5, 10, 30, 100, 300, 1000])


@settings(max_examples=40, deadline=None)
@given(links, st.floats(1, 50), intervals, st.sampled_from(["fp32", "int8", "e3m0"]), st.integers(0, 5), st.booleans())
def test_more_bandwidth_is_never_slower(gbit_per_s, factor, sync_every, codec, overlap, data_parallel):
    run = replace(streaming(ask()), sync_every=sync_every, codec=codec, overlap_steps=overlap)
    run = replace(run, data_parallel=True, sync_every=1, overlap_steps=0) if data_parallel else run
    slow, fast = (clock(with_between(run, rate)) for rate in (gbit_per_s, factor * gbit_per_s))
    assert fast.total_s <= slow.total_s * (1 + 1e-12)
    assert fast.compute_s == slow.compute_s


@settings(max_examples=40, deadline=None)
@given(links, intervals, intervals, st.integers(0, 5), st.sampled_from([1, 4]))
def test_a_longer_interval_never_communicates_more(gbit_per_s, a, b, overlap, fragments):
    run = replace(streaming(ask(between=f"{gbit_per_s}gbit")), overlap_steps=overlap, fragments=fragments)
    short, long = (clock(replace(run, sync_every=h)) for h in sorted((a, b)))
    assert long.communication_s <= short.communication_s * (1 + 1e-12)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(["2x8xh100", "16xa100", "8xh100+8xa100", "4x4xtpu-v5e"]), st.floats(0.1, 20))
def test_cost_is_days_times_chips_times_price(sites, price):
    for line in answer(ask(sites=sites, price=f"{price}", sync_every=30, between="1gbit,20ms")).lines.values():
        assert line.cost_usd == pytest.approx(line.days * 24 * line.run.cluster.chips * price)


def test_the_bandwidth_needed_reaches_its_utilization_and_no_less_does():
    line = answer(ask(between="100mbit")).lines[STREAMING]
    for target in TARGETS:
        rate = line.needed_gbit_per_s[target]
        assert clock(with_between(line.run, rate)).utilization >= target
        assert clock(with_between(line.run, 0.99 * rate)).utilization < target


@pytest.mark.parametrize("chips", [1000, 10_000])
@pytest.mark.parametrize(("every_s", "price_s"), [(1800, 0), (None, 10), (None, 60)])
def test_closed_form_of_goodput_agrees_with_the_simulator(chips, every_s, price_s):
    """A renewal: useful work between two failures is C / (exp(r (C + c)) - 1), a cycle lasts exp(rS) / r, as a failure
    during the stop of S seconds starts it anew."""
    failures = Failures(mtbi_s=YEAR_S, checkpoint_every_s=every_s, checkpoint_s=price_s, spare_servers=0)
    run = replace(streaming(ask(sites=f"{chips}xh100", replicas=1)), data_parallel=True, sync_every=1)
    fleet = Fleet(chips, slice_chips=8, return_s=failures.away_s)
    every = {"checkpoint_every_s": failures.interval_s(chips), "checkpoint_s": price_s}
    policy = static(detect_s=0, restart_s=failures.restart_s, **every)
    played = simulate(fleet, policy, days=60, seed=1, repeats=12)
    assert goodput(run, failures) == pytest.approx(played.mean, abs=max(0.01, 4 * played.se))


def test_goodput_falls_with_chips_and_rises_with_replicas():
    small, large = answer(ask(sites="2x8xh100")).lines, answer(ask(sites="2x64xh100")).lines
    for name in (ONE_SITE, DATA_PARALLEL, DILOCO, STREAMING):
        assert large[name].goodput < small[name].goodput <= 1
    assert large[STREAMING].goodput > large[DATA_PARALLEL].goodput
    assert days_of(86400, 0.5) == 2 and days_of(1, 0) == math.inf


@pytest.mark.parametrize("link", ["30mbit,20ms", "300mbit,20ms", "10gbit,1ms"])
@pytest.mark.parametrize("overlap", [0, 1, 5])
def test_a_window_waits_as_long_as_the_clock_says(link, overlap):
    """Messages that land before the next is sent; test_waiting.py has those that meet."""
    run = settle(streaming(ask(between=link, overlap=overlap, fragments=5, tensor=None))).run
    played, spent = window(run), clock(run)
    waits_s = sum(end - start for start, end in played.waiting)
    computing_s = sum(end - start for start, end in played.computing)
    assert computing_s == pytest.approx(run.sync_every * played.step_s)
    assert len(played.messages) == 5 and all(m.landed_s > m.start_s >= m.sent_s for m in played.messages)
    expected_s = (spent.total_s - spent.steps * played.step_s) / spent.steps * run.sync_every
    assert waits_s == pytest.approx(expected_s, rel=1e-6, abs=1e-9)


def test_data_parallel_has_no_window():
    assert window(answer(ask()).lines[DATA_PARALLEL].run) is None


def test_the_verdict_weighs_speed_against_chips():
    fast, slow = answer(ask(between="10gbit,1ms", overlap=5)), answer(ask(between="3mbit,20ms"))
    assert fast.verdict.startswith("Worth it: with a second site over 10 Gbit/s")
    assert slow.verdict.endswith("on it would be worth it, at this H.")
    assert "times as fast" in fast.verdict and "money" in fast.verdict and "loss" in fast.verdict
    assert slow.verdict.startswith("Not worth it") and "times as long" in slow.verdict
    rate = float(slow.verdict.split("From ")[1].split()[0])
    unit = {"Mbit/s": "mbit", "Gbit/s": "gbit"}[slow.verdict.split("From ")[1].split()[1]]
    assert answer(ask(between=f"{1.05 * rate}{unit},20ms")).verdict.startswith("Worth it:")
    assert not answer(ask(between=f"{0.9 * rate}{unit},20ms")).verdict.startswith("Worth it:")


def test_a_model_that_barely_fits_says_where_the_anchor_lies():
    """20B on 8 chips of 80 GB: 16 bytes a parameter fill 40 GB of each, and the anchor and momentum 20 more."""
    room = answer(ask(params="20b", tokens="400b")).lines[STREAMING]
    assert 60e9 < room.memory_bytes < room.chip_bytes and room.settled.fits
    tight = answer(ask(params="26b", tokens="520b", tensor=None))
    assert "in the hosts' memory" in "\n".join(tight.notes) and tight.lines[STREAMING].settled.fit.options.offload_outer


def test_the_loss_is_what_predict_says_and_data_parallel_has_the_papers_own():
    lines = answer(ask()).lines
    assert lines[STREAMING].loss.value == recommend("paper", 1e9, 2).loss
    ratio = 18.129 * 1e9**-0.0953 / (18.363 * 1e9**-0.0961)  # Table 7: dp over M = 1
    assert lines[ONE_SITE].loss.value == pytest.approx(ratio * recommend("paper", 1e9, 1).loss)
    assert lines[DATA_PARALLEL].loss == lines[ONE_SITE].loss
    low, value, high = (getattr(lines[STREAMING].loss, name) for name in ("low", "value", "high"))
    assert low < value < high


def test_what_a_law_does_not_know_is_said():
    notes = "\n".join(answer(ask()).notes)
    assert "law paper has no H, codec and overlap" in notes and "studies/wire" in notes and "fails once in" in notes
    assert LossLaw("article").axes == {"replicas"} and not LossLaw("paper").follows_tokens
