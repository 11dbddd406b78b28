"""The idealised wall clock against a second implementation, its limits, and the extended clock against plain sums.

OMP_NUM_THREADS=1 pytest tests/plan/test_clock.py
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from diloco.errors import BadInput
from diloco.outer.codec import get_codec
from diloco.plan import clock as clocks
from diloco.plan.catalogue import catalogue
from diloco.plan.codecs import codec_cost
from diloco.plan.hardware import Cluster, Link, Speed, assumed_speed
from diloco.plan.ideal import IdealRun, balanced_sync_every, data_parallel, diloco, streaming
from diloco.plan.model import get_model
from diloco.plan.run import Island, Run

CLOSE = 1e-12


def by_hand(n, d, b, r, q, w0, e0, w1, e1, bits, m=None, h=None) -> tuple[Fraction, Fraction, Fraction]:
    """Appendix A in exact fractions, step by step and message by message: compute, inside, between.

    A ring moves each of R equal parts of the N parameters 2 (R - 1) times over every link.
    """
    n, d, b, q, w0, e0, w1, e1, bits = map(Fraction, (n, d, b, q, w0, e0, w1, e1, bits))
    steps = d / b
    compute = sum((2 * n, 2 * n, 2 * n), Fraction(0)) * b / r / q * steps
    part_bits = n * bits / r
    across = 2 * (r - 1) * part_bits / (w1 * 10**9) + e1
    if m is None:
        return compute, Fraction(0), steps * across
    if m == 1:
        return compute, Fraction(0), steps * across + steps / h * across
    within = 2 * (r - m) * part_bits / (w0 * 10**9) + e0
    return compute, steps * within, steps / h * across


def relative(got: float, wanted: Fraction) -> float:
    return abs(Fraction(got) - wanted) / wanted if wanted else abs(got)


positive = st.floats(1e-3, 1e3)
latencies = st.just(0.0) | st.floats(1e-12, 1)


@example(  # nearly as many replicas as chips, where 1 - M/R would lose five digits
    params=1e6, batch=1e3, steps=1.0, chips=91096, speed=1e9, bandwidth=(1.0, 1.0), latency=(0.0, 0.0), bits=1.0,
    share=0.99999, every=1,
)  # fmt: skip
@settings(max_examples=150, deadline=None)
@given(
    params=st.floats(1e6, 1e13),
    batch=st.floats(1e3, 1e8),
    steps=st.floats(1, 1e7),
    chips=st.integers(1, 10**6),
    speed=st.floats(1e9, 1e16),
    bandwidth=st.tuples(positive, positive),
    latency=st.tuples(latencies, latencies),
    bits=st.floats(0.1, 32),
    share=st.floats(0, 1),
    every=st.integers(1, 10**5),
)
def test_formulas_equal_a_second_implementation(
    params, batch, steps, chips, speed, bandwidth, latency, bits, share, every
) -> None:
    inside, between = (Link("l", w, e) for w, e in zip(bandwidth, latency, strict=True))
    run = IdealRun(params, batch * steps, batch, chips, speed, inside, between, bits)
    given_ = (params, batch * steps, batch, chips, speed, bandwidth[0], latency[0], bandwidth[1], latency[1], bits)
    replicas = max(1, round(share * chips))
    for got, wanted in (
        (data_parallel(run), by_hand(*given_)),
        (diloco(run, 1, every), by_hand(*given_, 1, every)),
        (diloco(run, replicas, every), by_hand(*given_, replicas, every)),
        (streaming(run, replicas, every, 3), by_hand(*given_, replicas, every)),
    ):
        assert relative(got.compute_s, wanted[0]) < CLOSE
        assert relative(got.inside_s, wanted[1]) < CLOSE
        assert relative(got.between_s, wanted[2]) < CLOSE
        assert relative(got.total_s, sum(wanted)) < CLOSE
        assert relative(got.utilization, wanted[0] / sum(wanted)) < CLOSE


def paper_run(**changes) -> IdealRun:
    links = catalogue()
    run = IdealRun(10e9, 200e9, 2**20, 1024, 300e12, links.link("paper-high"), links.link("paper-low"))
    return replace(run, **changes)


def test_limits() -> None:
    run = paper_run()
    reference = data_parallel(run)
    assert diloco(run, 1, 10**15).between_s == pytest.approx(reference.between_s, rel=1e-12)
    assert diloco(run, 1, 1).between_s == pytest.approx(2 * reference.between_s, rel=1e-12)
    assert diloco(run, 4, 1).between_s == pytest.approx(reference.between_s, rel=1e-12)
    assert diloco(run, 4, 10**15).between_s < 1e-6
    fast = replace(run, inside=Link("i", float("inf")), between=Link("b", float("inf")))
    for case in (data_parallel(fast), diloco(fast, 1, 30), diloco(fast, 4, 30)):
        assert case.communication_s == 0 and case.utilization == 1
    alone = replace(run, chips=1)
    assert data_parallel(alone).between_s == pytest.approx(alone.steps * alone.between.latency_s)
    assert diloco(run, run.chips, 30).inside_s == pytest.approx(run.steps * run.inside.latency_s), "one chip a replica"


def test_from_w0_over_w1_on_outer_steps_are_half_of_the_communication_at_most() -> None:
    quiet = paper_run(inside=Link("i", 400.0), between=Link("b", 10.0))
    assert balanced_sync_every(quiet) == 40
    at = diloco(quiet, 2, 40)
    assert at.between_s / at.communication_s == pytest.approx(0.5, abs=0.001)
    assert diloco(quiet, 2, 80).between_s < diloco(quiet, 2, 80).inside_s


@pytest.mark.parametrize(
    "change, words",
    [
        ({"chips": 0}, "chips is 0"),
        ({"tokens": -1.0}, "tokens is -1"),
        ({"flop_per_s": float("nan")}, "flop_per_s is nan"),
        ({"batch_tokens": 1e12}, "give at most that"),
    ],
)
def test_nonsense_is_refused(change, words) -> None:
    with pytest.raises(BadInput, match=words):
        paper_run(**change)


def test_replicas_and_intervals_out_of_range_are_refused_with_the_nearest() -> None:
    run = paper_run(chips=8)
    with pytest.raises(BadInput, match="replicas is 9: 8 chips can hold 1 to 8, give 8"):
        diloco(run, 9, 30)
    with pytest.raises(BadInput, match="sync_every is 0: give 1 or more"):
        diloco(run, 2, 0)


@pytest.mark.parametrize(
    "spec", ["fp32", "bf16", "fp16", "int8", "int4", "e3m0", "topk:0.01", "topk:0.1:4", "randk:0.01", "randk:0.5:2-ef"]
)
def test_codec_sizes_and_gathering_are_those_of_the_codecs_themselves(spec) -> None:
    codec, cost, pages = get_codec(spec), codec_cost(spec), 64 * 4096
    assert cost.payload_bits(pages) == pytest.approx(8 * codec.nbytes(pages), rel=1e-12)
    assert cost.gathers == codec.gathers


@pytest.mark.parametrize("spec", ["int9", "topk", "topk:2", "topk:0.01:9", "fp32:3", ""])
def test_unknown_codecs_are_refused(spec) -> None:
    with pytest.raises(BadInput, match="codec is"):
        codec_cost(spec)


def slow_run(**changes) -> Run:
    """7B on two sites of 8 chips at 400 TFLOP/s; a step computes 6 N 2^20 / (16 * 4e14) = 6.88 s."""
    known = catalogue()
    site = known.site("h100", 8)
    cluster = Cluster((site, site), Link("b", 1.0, 0.02))
    run = Run(replace(get_model("7b"), params=7e9), cluster, Speed(4e14, "given"), 1e9, 2**20, 2)
    return replace(run, **changes)


STEP_S = 6 * 7e9 * 2**20 / (16 * 4e14)


def test_a_plain_round_takes_its_bytes_its_latency_and_its_coding() -> None:
    run = slow_run(sync_every=50)
    latency_s = (2 + 2) * 0.02  # there and back, and two small messages
    bits, coding_s = 32 * 7e9, 4 * 7e9 / (8 * 3350e9 / clocks.CODEC_PASSES)
    found = clocks.clock(run)
    assert found.compute_s / found.steps == pytest.approx(STEP_S)
    assert found.between_s / found.steps == pytest.approx((bits / 1e9 + latency_s) / 50)
    assert found.codec_s / found.steps == pytest.approx(coding_s / 50)
    assert found.total_s == pytest.approx(found.compute_s + found.between_s + found.codec_s)
    assert found.step_s == pytest.approx(STEP_S + (bits / 1e9 + latency_s + coding_s) / 50)


def test_data_parallel_hides_two_thirds_of_a_step() -> None:
    run = slow_run(data_parallel=True, sync_every=1, codec="bf16")
    assert clocks.clock(run).step_s == pytest.approx(STEP_S + 16 * 7 + 2 * 0.02 - 2 / 3 * STEP_S)


def test_overlap_hides_whole_steps_until_the_link_is_full() -> None:
    run = slow_run(sync_every=50, fragments=10, codec="e3m0")
    one = clocks.outer_round(run)
    plain = clocks.clock(run).step_s
    hidden = clocks.clock(replace(run, overlap_steps=1)).step_s
    assert plain == pytest.approx(STEP_S + 10 * one.total_s / 50)
    assert one.total_s < STEP_S and hidden == pytest.approx(STEP_S)
    slow = clocks.with_between(replace(run, overlap_steps=50), 0.01)
    assert clocks.clock(slow).step_s == pytest.approx(10 * clocks.outer_round(slow).total_s / 50), (
        "the exchanges are the clock"
    )


def test_sites_send_one_sum_and_flat_replicas_each_their_own() -> None:
    run = slow_run(replicas=8, codec="int8")
    assert clocks.outer_round(run).link_bits == pytest.approx(8.125 * 7e9)
    assert clocks.outer_round(replace(run, two_level=False)).link_bits == pytest.approx(2 * 7 / 8 * 8.125 * 7e9)
    assert clocks.outer_round(run).inside_s > 0


def test_one_replica_waits_for_nobody() -> None:
    run = slow_run()
    alone = replace(run, cluster=Cluster(run.cluster.sites[:1], run.cluster.between), replicas=1)
    assert clocks.clock(alone).communication_s == 0


def test_pipelines_have_bubbles_and_tensor_parallelism_talks() -> None:
    run = slow_run(island=Island(tensor=2, pipeline=4, micro_batches=12))
    step, model = clocks.inner_step(run), run.model
    tokens, node_gbit_per_s = 2**20 / 2, 3600
    sent_bits = 8 * 4 * model.layers / 4 * 2 * (1 / 2) * tokens * model.width * 2
    assert step.inside_s == pytest.approx(sent_bits / (1e9 * node_gbit_per_s))
    assert step.bubble_s == pytest.approx(3 / 12 * (step.compute_s + step.inside_s))


def test_needed_bandwidth_gives_the_utilization_asked_for() -> None:
    run = slow_run(sync_every=50)
    needed = clocks.needed_gbit_per_s(run, 0.95)
    assert clocks.clock(clocks.with_between(run, needed)).utilization == pytest.approx(0.95, abs=1e-4)
    assert clocks.clock(clocks.with_between(run, needed / 1.01)).utilization < 0.95
    with pytest.raises(BadInput, match="utilization is 1.5"):
        clocks.needed_gbit_per_s(run, 1.5)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"replicas": 3}, "replicas is 3, which 2 sites cannot share alike: give 4"),
        ({"replicas": 6}, "replicas is 6, which a site's 8 chips cannot hold: give 4"),
        ({"replicas": 0}, "replicas is 0"),
        ({"overlap_steps": 101}, "give 0 to the sync interval, 100"),
        ({"fragments": 99}, "fragments is 99: give at most the model's 43 layers"),
        ({"tokens": float("inf")}, "tokens is inf"),
        ({"batch_tokens": 2e9}, "give at most the run's 1e\\+09 tokens"),
    ],
)
def test_runs_that_cannot_be_are_refused_with_the_nearest(change, words) -> None:
    with pytest.raises(BadInput, match=words):
        slow_run(**change)


def test_islands_must_divide_their_chips() -> None:
    with pytest.raises(BadInput, match="tensor is 3, which does not divide a replica's 8 chips: give 4"):
        clocks.clock(slow_run(island=Island(tensor=3)))


def test_assumed_speed_says_that_it_is_assumed() -> None:
    speed = assumed_speed(catalogue().chip("h100"), mfu=0.5)
    assert speed.flop_per_s == pytest.approx(0.5 * 989.5e12) and "assumed, not measured" in speed.how
