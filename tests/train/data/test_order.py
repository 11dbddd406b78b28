"""The order of samples, against plain loops.

Run: pytest tests/train/data/test_order.py
"""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diloco.errors import BadInput
from diloco.train.data.order import Order, apportion, mixture, permute, shuffled_positions, stream_keys


def order(samples=(101,), counts=(1000,), seed=0, shards="shuffled", overlap=0.0) -> Order:
    return Order(samples=samples, block_counts=counts, seed=seed, shards=shards, overlap=overlap)


def step_ids(o: Order, step: int, replicas: int, sequences: int) -> list[list[int]]:
    return [o.sample_ids(step, m, replicas, sequences).tolist() for m in range(replicas)]


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 3000), seed=st.integers(0, 2**40))
def test_permute_is_a_bijection(n, seed):
    keys = stream_keys(seed, "any", np.zeros(n, dtype=np.int64))
    assert sorted(permute(np.arange(n), n, keys).tolist()) == list(range(n))


def test_permute_holds_at_a_billion_and_scatters():
    n = 10**9 + 7
    out = permute(np.arange(20_000), n, stream_keys(1, "any", np.zeros(20_000, dtype=np.int64)))
    assert len(set(out.tolist())) == 20_000 and out.min() >= 0 and out.max() < n
    # Uniform over [0, n): counts in 20 bins of 1000 expected each, 6 standard deviations.
    counts = np.histogram(out, bins=20, range=(0, n))[0]
    assert np.abs(counts - 1000).max() < 6 * math.sqrt(1000)
    assert abs(np.corrcoef(out[:-1], out[1:])[0, 1]) < 0.04


def test_every_place_is_equally_likely_for_small_n():
    keys = stream_keys(3, "any", np.arange(12_000))
    counts = Counter(permute(np.zeros(12_000, dtype=np.int64), 6, keys).tolist())
    assert all(abs(counts[place] - 2000) < 6 * math.sqrt(2000) for place in range(6))


@settings(max_examples=40, deadline=None)
@given(n=st.integers(8, 400).map(lambda k: 2 * k + 1), replicas=st.sampled_from([1, 2, 4]), b=st.integers(1, 2))
def test_one_epoch_covers_every_sample_exactly_once(n, replicas, b):
    o, sequences = order(samples=(n,)), replicas * b
    steps = -(-3 * n // sequences)
    drawn = [i for step in range(steps) for ids in step_ids(o, step, replicas, sequences) for i in ids]
    for epoch in range(3):
        assert sorted(drawn[epoch * n : (epoch + 1) * n]) == list(range(n))


def test_epochs_differ_and_repeat_from_the_seed_report_46():
    o = order(samples=(60,))
    epochs = [[i for step in range(10 * e, 10 * e + 10) for i in o.sample_ids(step, 0, 1, 6)] for e in range(3)]
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    again = order(samples=(60,))
    assert epochs[1] == [i for step in range(10, 20) for i in again.sample_ids(step, 0, 1, 6)]
    other = order(samples=(60,), seed=1)
    assert epochs[0] != [i for step in range(10) for i in other.sample_ids(step, 0, 1, 6)]


@pytest.mark.parametrize("samples, counts", [((101,), (1000,)), ((50, 33), (700, 300))])
def test_the_union_over_replicas_is_the_same_for_any_number_of_them(samples, counts):
    o = order(samples=samples, counts=counts)
    for step in range(60):
        whole = o.sample_ids(step, 0, 1, 8).tolist()
        for replicas in (2, 4, 8):
            assert sum(step_ids(o, step, replicas, 8), []) == whole


def test_replicas_are_disjoint_and_no_id_is_used_twice_in_an_epoch_report_42():
    o, used = order(samples=(1001,)), []
    for step in range(1001 // 8):
        shards = step_ids(o, step, 4, 8)
        assert len({i for shard in shards for i in shard}) == 8
        used += sum(shards, [])
    assert len(set(used)) == len(used) == 1000


def test_a_restart_with_other_replicas_neither_repeats_nor_skips_report_42():
    o = order(samples=(240,))
    used = [i for step in range(17) for ids in step_ids(o, step, 4, 8) for i in ids]
    used += [i for step in range(17, 30) for ids in step_ids(o, step, 2, 8) for i in ids]
    assert sorted(used) == list(range(240))


def test_overlap_follows_its_closed_form():
    """Fresh positions run on without a gap, and each replica's tail is its right neighbour's head."""
    replicas, sequences, overlap = 4, 28, 0.1
    b, x = 7, Fraction(7, 10)
    next_fresh = 0
    for step in range(40):
        shared = math.floor((step + 1) * x) - math.floor(step * x)
        parts = [shuffled_positions(step, m, replicas, sequences, overlap) for m in range(replicas)]
        for m in range(replicas):
            assert len(set(parts[m].tolist())) == b
            right = parts[(m + 1) % replicas]
            assert parts[m][b - shared :].tolist() == right[:shared].tolist()
            assert len(set(parts[m].tolist()) & set(right.tolist())) == shared
        fresh = sorted({p for part in parts for p in part.tolist()})
        assert fresh == list(range(next_fresh, next_fresh + replicas * (b - shared)))
        next_fresh += len(fresh)


@pytest.mark.parametrize("overlap", [0.05, 0.1, 0.5])
@pytest.mark.parametrize("b", [2, 3, 8])
def test_overlap_is_met_on_average(overlap, b):
    o, steps, shared = order(samples=(10_000,), overlap=overlap), 400, 0
    for step in range(steps):
        first, second = (set(o.sample_ids(step, m, 4, 4 * b).tolist()) for m in (0, 1))
        shared += len(first & second)
    assert shared / (steps * b) == pytest.approx(min(overlap, (b // 2) / b), abs=0.005)


def test_contiguous_replicas_stay_in_their_part_and_reshuffle_it():
    o = order(samples=(103,), shards="contiguous")
    for m in range(4):
        part = range(103 * m // 4, 103 * (m + 1) // 4)
        drawn = [int(i) for step in range(2 * len(part)) for i in o.sample_ids(step, m, 4, 4)]
        assert sorted(drawn[: len(part)]) == sorted(drawn[len(part) :]) == list(part)
        assert drawn[: len(part)] != drawn[len(part) :]


@pytest.mark.parametrize("overlap", [0.05, 0.1])
def test_contiguous_overlap_reaches_into_the_next_part(overlap):
    o = order(samples=(400,), shards="contiguous", overlap=overlap)
    seen = [{int(i) for step in range(400) for i in o.sample_ids(step, m, 4, 4)} for m in range(4)]
    for m in range(4):
        assert len(seen[m]) == 100 + 100 * overlap
        assert len(seen[m] & seen[(m + 1) % 4]) == 100 * overlap
    assert seen[3] & seen[0] == set(range(int(100 * overlap)))


def test_mixture_weights_are_exact_in_every_block():
    counts = apportion(1000, (2, 1, 0.5))
    assert counts.tolist() == [571, 286, 143]
    source, position = mixture(np.arange(3000), counts, 0, "any")
    for block in range(3):
        assert np.bincount(source[1000 * block : 1000 * (block + 1)]).tolist() == counts.tolist()
    for k in range(3):
        assert sorted(position[source == k].tolist()) == list(range(3 * counts[k]))
    # Shuffled inside a block: no long runs of one source.
    changes = (source[1:] != source[:-1]).mean()
    assert 0.4 < changes < 0.75


def test_each_source_of_a_mixture_has_epochs_of_its_own():
    o = order(samples=(100, 30), counts=(500, 500))
    drawn = np.concatenate([o.sample_ids(step, 0, 1, 10) for step in range(100)])
    assert np.bincount(drawn[drawn < 100], minlength=100).tolist() == [5] * 100
    assert set(np.bincount(drawn[drawn >= 100] - 100).tolist()) == {16, 17}


def test_apportion_adds_up():
    assert apportion(1000, (1, 1, 1)).tolist() == [334, 333, 333]
    assert apportion(7, (0.7, 0.3)).tolist() == [5, 2]


def test_more_replicas_than_sequences_is_refused_with_the_numbers_report_115():
    with pytest.raises(BadInput, match="8 replicas cannot evenly share a global batch of 4 sequences: use 8"):
        order().sample_ids(0, 0, 8, 4)


@pytest.mark.parametrize(
    "kwargs, call, message",
    [
        ({}, (0, 0, 4, 10), "use 8 or 12"),
        ({}, (-1, 0, 1, 1), "step is -1"),
        ({}, (0, 2, 2, 2), "replica 2 of 2"),
        ({}, (0, 0, 0, 2), "replica 0 of 0"),
        ({}, (0, 0, 1, 102), "102 sequences is more than the 101 training sequences"),
        ({"shards": "contiguous", "samples": (3,)}, (0, 0, 4, 4), "more than the 3|contiguous shards for 4"),
        ({"shards": "contiguous", "samples": (50, 3), "counts": (500, 500)}, (0, 0, 4, 4), "one has 3"),
        ({"overlap": 0.1}, (0, 0, 4, 4), "overlap 0.1 needs 2 or more sequences per replica.*use 8"),
    ],
)
def test_bad_calls_are_refused(kwargs, call, message):
    with pytest.raises(BadInput, match=message):
        order(**kwargs).sample_ids(*call)
