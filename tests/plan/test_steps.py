"""The step simulator against an explicit graph that is relaxed node by node, and against closed forms.

OMP_NUM_THREADS=1 pytest tests/plan/test_steps.py
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diloco.errors import BadInput
from diloco.plan.graph import Method, Wire, Workload, fragments, sends
from diloco.plan.steps import simulate, timeline

KINDS = ("forward", "activations", "parameters", "reduction")


def explicit_cycle_s(work: Workload, method: Method, wire: Wire, cycles: int) -> float:
    """A cycle's length in a graph of every node of every step: the mean over the later half of so many cycles.

    A node starts when all that it follows have ended; the chips' nodes form one chain and the link's another.
    """
    layers, node_s = work.layers, work.step_s / (3 * work.layers - 1)
    reduce_s = work.params / layers * method.bits_per_param * wire.factor / wire.gbit_per_s / 1e9
    length, offsets = sends(layers, method)
    when = {layer: at for part, at in zip(fragments(layers, method), offsets, strict=True) for layer in part}
    ends: dict[tuple, float] = {}
    chip, link, arrivals = 0.0, 0.0, {}
    for step in range(length * cycles + 1):
        for layer in range(1, layers + 1):
            need = arrivals.get((step, layer), 0.0)
            chip = ends["forward", step, layer] = max(chip, need) + node_s
        ready = {}
        for layer in range(layers, 0, -1):
            if layer > 1:
                chip = ends["activations", step, layer] = chip + node_s
            chip = ends["parameters", step, layer] = ready[layer] = chip + node_s
        for layer in range(layers, 0, -1):
            if step % length == when[layer]:
                link = max(link, ready[layer]) + reduce_s
                ends["reduction", step, layer] = link
                arrivals[step + 1 + method.overlap_steps, layer] = link + wire.latency_s
    half = cycles // 2
    return (ends["forward", length * cycles, 1] - ends["forward", length * half, 1]) / (cycles - half)


@settings(max_examples=40, deadline=None)
@given(
    layers=st.integers(1, 9),
    every=st.integers(1, 9),
    size=st.integers(1, 9) | st.none(),
    overlap=st.integers(0, 9),
    gbit_per_s=st.floats(0.05, 50),
    latency=st.sampled_from([0.0, 0.01, 0.3]),
    strided=st.booleans(),
    even=st.booleans(),
)
def test_any_schedule_equals_the_explicit_graph(
    layers, every, size, overlap, gbit_per_s, latency, strided, even
) -> None:
    method = Method(every, size, min(overlap, every), 16.0, strided, even)
    work, wire = Workload(1e9, layers, 1.0), Wire(gbit_per_s, latency)
    explicit_s = max(explicit_cycle_s(work, method, wire, 120), wire.reduction_s(work.params, 16.0))
    tolerance = 1e-9 if method.overlap_steps == 0 else 5e-3  # a link that is a little too slow fills up slowly
    assert simulate(work, method, wire).total_s == pytest.approx(explicit_s, rel=tolerance)


def test_a_step_has_four_nodes_a_layer_less_one() -> None:
    work = Workload(1e9, 5, 1.0)
    spans = timeline(work, Method(), Wire(1e3), steps=1)
    assert len(spans) == 4 * 5 - 1
    assert [sum(s.kind == kind for s in spans) for kind in KINDS] == [5, 4, 5, 5]
    chips = sorted((s.start_s, s.end_s) for s in spans if s.kind != "reduction")
    assert all(a[1] == pytest.approx(b[0]) for a, b in zip(chips, chips[1:], strict=False)), "one after another"
    assert sum(end - start for start, end in chips) == pytest.approx(work.step_s)


def test_reductions_follow_their_gradients_and_precede_the_next_forward_of_their_layer() -> None:
    spans = timeline(Workload(1e9, 4, 1.0), Method(), Wire(30.0), steps=3)
    at = {(s.kind, s.step, s.layer): s for s in spans}
    for step in range(2):
        for layer in range(1, 5):
            assert at["reduction", step, layer].start_s >= at["parameters", step, layer].end_s - 1e-12
            assert at["forward", step + 1, layer].start_s >= at["reduction", step, layer].end_s - 1e-12


def test_a_fast_link_leaves_the_first_layer_alone_to_wait_for() -> None:
    work = Workload(1e9, 24, 0.1)
    found = simulate(work, Method(), Wire(1000.0))
    assert found.exposed_s == pytest.approx(16e9 / 24 / 1000e9)


def test_a_slow_link_leaves_all_but_the_backward_pass_to_wait_for() -> None:
    work = Workload(1e9, 24, 0.1)
    found = simulate(work, Method(), Wire(10.0))
    before_first_s = (24 + 2) * 0.1 / 71
    assert found.total_s == pytest.approx(before_first_s + 1.6)


def test_diloco_waits_once_in_h_steps() -> None:
    work = Workload(1e9, 24, 0.1)
    each, seldom = simulate(work, Method(), Wire(10.0)), simulate(work, Method(sync_every=1000), Wire(10.0))
    assert seldom.exposed_s == pytest.approx(each.exposed_s / 1000)
    assert seldom.steps == 1000 and seldom.compute_s == pytest.approx(100)


def test_a_result_used_an_outer_step_later_waits_only_for_the_link() -> None:
    work = Workload(1e9, 24, 0.1)
    delayed = Method(sync_every=100, overlap_steps=100)
    assert simulate(work, delayed, Wire(1.7)).utilization == 1
    full = simulate(work, delayed, Wire(0.8))
    assert full.total_s == pytest.approx(16 / 0.8), "twice as many bits as the link takes in the computation"


def test_latency_is_hidden_like_bytes() -> None:
    work, wire = Workload(1e9, 24, 0.1), Wire(100.0, latency_s=0.05)
    plain = simulate(work, Method(sync_every=100), wire)
    assert simulate(work, Method(sync_every=100, overlap_steps=5), wire).exposed_s == 0 < plain.exposed_s


@pytest.mark.parametrize("strided, first", [(True, (1, 4, 7, 10)), (False, (1, 2, 3))])
def test_fragments_hold_every_layer_once(strided, first) -> None:
    parts = fragments(10, Method(sync_every=10, fragment_layers=3, strided=strided))
    assert sorted(layer for part in parts for layer in part) == list(range(1, 11))
    assert len(parts) == 4 and (parts[0] == first or parts[0] == (1, 5, 9))


@pytest.mark.parametrize("strided", [True, False])
@pytest.mark.parametrize("layers, count", [(24, 7), (10, 4), (5, 5), (9, 1)])
def test_fragments_by_their_number_are_as_equal_as_can_be(layers, count, strided) -> None:
    parts = fragments(layers, Method(sync_every=10, fragments=count, strided=strided))
    assert sorted(layer for part in parts for layer in part) == list(range(1, layers + 1))
    assert len(parts) == count and max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    "layers, even, length, gap", [(24, True, 96, 12), (48, True, 96, 6), (108, True, 108, 3), (24, False, 100, 12)]
)
def test_fragments_follow_one_another_through_the_interval(layers, even, length, gap) -> None:
    found, offsets = sends(layers, Method(sync_every=100, fragment_layers=3, even_gaps=even))
    assert (found, offsets[1]) == (length, gap) and len(set(offsets)) == layers // 3


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Method(sync_every=0), "sync_every is 0: give 1 or more"),
        (lambda: Method(overlap_steps=-1), "overlap_steps is -1: give 0 or more"),
        (lambda: Method(bits_per_param=0), "bits_per_param is 0"),
        (lambda: Method(fragments=2, fragment_layers=3), "fragments is 2 and fragment_layers 3: give one of them"),
        (lambda: fragments(4, Method(fragments=5)), "fragments is 5 for 4 layers: give 4 or fewer"),
        (lambda: Workload(1e9, 0, 1.0), "layers is 0"),
        (lambda: Workload(1e9, 2, float("nan")), "step_s is nan"),
        (lambda: Wire(-1.0), "give a rate above 0"),
    ],
)
def test_nonsense_is_refused(make, words) -> None:
    with pytest.raises(BadInput, match=words):
        make()
