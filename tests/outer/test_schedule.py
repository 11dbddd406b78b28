"""Schedules against plain loops: when each fragment is sent, how H changes, what is refused.

pytest tests/outer/test_schedule.py
"""

from __future__ import annotations

import itertools
import json
import random

import numpy as np
import pytest

from diloco.errors import BadInput
from diloco.outer.interval import MAX_NOISE
from diloco.outer.schedule import (
    Adaptive,
    Fixed,
    Interval,
    Smooth,
    Tapered,
    Timetable,
    as_interval,
    check_overlap,
    count_rounds,
    noise_ratio,
    parse_interval,
)


def sends(
    interval: Interval, fragments: int, steps: int, offsets: tuple[int, ...] | None = None, reload: bool = False
) -> dict[int, list[int]]:
    """The steps at which each fragment is sent, by the driver's loop; `reload` goes through JSON at every step."""
    table = Timetable.begin(fragments, interval.at(0, 0, None), offsets)
    found: dict[int, list[int]] = {p: [] for p in range(fragments)}
    for step in range(1, steps + 1):
        if reload:
            table = Timetable.from_dict(json.loads(json.dumps(table.to_dict())))
        if table.ends(step):
            table = table.next(interval.at(step, table.every, None))
        due = table.due(step)
        assert due == sorted(due)
        for p in due:
            found[p].append(step)
    return found


# -- timetable


def test_two_fragments_as_in_the_paper() -> None:
    assert sends(Fixed(100), 2, 400) == {0: [100, 200, 300, 400], 1: [150, 250, 350]}


@pytest.mark.parametrize("fragments", [1, 2, 3, 7])
@pytest.mark.parametrize("every", [1, 2, 5, 10, 30])
def test_constant_interval_need_not_divide_report_129(fragments: int, every: int) -> None:
    """Fragment p is due when (t - floor(p H / P)) mod H = 0, from step H on; each once in any H steps."""
    found = sends(Fixed(every), fragments, 4 * every)
    for p in range(fragments):
        offset = (p * every) // fragments
        assert found[p] == [t for t in range(every, 4 * every + 1) if (t - offset) % every == 0]


def test_equal_offsets_are_plain_diloco() -> None:
    assert sends(Fixed(4), 3, 13, offsets=(0, 0, 0)) == {p: [4, 8, 12] for p in range(3)}


def test_offsets_of_ones_own_scale_with_the_interval() -> None:
    found = sends(Tapered(10, ((20, 25),)), 2, 80, offsets=(2, 9))
    assert found == {0: [12, 25, 50, 75], 1: [19, 42, 67]}, "2 and 9 of 10 become 5 and 22 of 25"


def test_changing_interval_equals_a_plain_loop() -> None:
    """Random H in every cycle: the sends are those of the definition."""
    chance = random.Random(0)
    for fragments in (1, 2, 3, 7):
        lengths = [chance.randint(1, 40) for _ in range(30)]
        table, begins, expected, found = Timetable.begin(fragments, lengths[0]), lengths[0], [], []
        for every in lengths[1:]:
            expected += [(begins + p * every // fragments, p) for p in range(fragments)]
            begins += every
        upcoming = iter(lengths[1:])
        for step in range(1, begins):
            if table.ends(step):
                table = table.next(next(upcoming))
            found += [(step, p) for p in table.due(step)]
        assert found == sorted(expected)


def test_sends_of_one_fragment_are_never_closer_than_the_shorter_interval() -> None:
    """So an overlap below the shortest H has always been applied before the fragment is sent again."""
    for fragments, before, after in itertools.product((1, 2, 3, 7), range(1, 25), range(1, 25)):
        for offsets in (None, tuple((5 * p) % before for p in range(fragments))):
            first = Timetable.begin(fragments, before, offsets).next(before)
            second = first.next(after)
            for p in range(fragments):
                gap = (second.start + second.offset(p)) - (first.start + first.offset(p))
                assert gap >= min(before, after) and 0 <= second.offset(p) < after


@pytest.mark.parametrize("interval", [Fixed(7), Tapered(5, ((20, 11),)), Smooth(4, 15, 60)])
def test_a_resumed_run_keeps_its_timetable_report_25(interval: Interval) -> None:
    assert sends(interval, 3, 100, reload=True) == sends(interval, 3, 100)
    offsets = (0, 1, 3)
    assert sends(interval, 3, 100, offsets, reload=True) == sends(interval, 3, 100, offsets)


@pytest.mark.parametrize(
    ("fragments", "every", "offsets", "message"),
    [
        (0, 5, None, "fragments is 0"),
        (2, 0, None, "sync_every is 0"),
        (2, 5, (0,), r"offsets are \[0\] for 2 fragments: give 2"),
        (2, 5, (0, 5), r"offsets are \[0, 5\]: with sync_every 5 each must be 0 to 4"),
        (2, 5, (-1, 0), "must be 0 to 4"),
        (2, 5, (0, 1.5), "must be 0 to 4"),
    ],
)
def test_bad_timetables_report_129(fragments: int, every: int, offsets: tuple | None, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Timetable.begin(fragments, every, offsets)


@pytest.mark.parametrize("interval", [Fixed(10), Tapered(50, ((9, 10),)), Smooth(10, 30, 5), Adaptive(20, 10, 30)])
def test_overlap_stays_below_the_shortest_interval_report_129(interval: Interval) -> None:
    check_overlap(interval, 0)
    check_overlap(interval, 9)
    for overlap in (10, -1, 2.5):
        with pytest.raises(BadInput, match=f"overlap is {overlap} .* shortest sync interval is 10 .* from 0 to 9"):
            check_overlap(interval, overlap)


# -- intervals


def test_rounds_of_a_run_are_those_that_the_timetable_sends() -> None:
    """The partial one at the end included, whatever H does."""
    for interval in (Fixed(7), Tapered(5, ((20, 9), (50, 3))), Smooth(4, 20, 60), Adaptive(6, 3, 12)):
        for steps in (1, 6, 7, 8, 35, 60, 61, 100):
            table, sent, last = Timetable.begin(2, interval.at(0, 0, None)), 0, 0
            for t in range(1, steps + 1):
                if table.ends(t):
                    table = table.next(interval.at(t, table.every, None))
                if 0 in table.due(t):
                    sent, last = sent + 1, t
            assert count_rounds(interval, steps) == sent + (last < steps), (interval, steps)


def test_tapered_changes_with_the_first_cycle_after_a_milestone() -> None:
    interval = Tapered(10, ((25, 20), (60, 5)))
    assert [interval.at(t, 0, None) for t in (0, 24, 25, 59, 60, 999)] == [10, 10, 20, 20, 5, 5]
    assert (interval.shortest, interval.longest) == (5, 20)
    assert sends(interval, 1, 80)[0] == [10, 20, 30, 50, 70, 75, 80]


@pytest.mark.parametrize(("start", "end"), [(10, 160), (160, 10), (7, 7), (1, 3)])
def test_smooth_is_geometric_and_monotone(start: int, end: int) -> None:
    interval = Smooth(start, end, 400)
    values = [interval.at(t, 0, None) for t in range(0, 500)]
    assert (values[0], values[400], values[-1]) == (start, end, end)
    assert values[200] == pytest.approx((start * end) ** 0.5, abs=0.5)
    assert values == sorted(values, reverse=end < start)
    assert (min(values), max(values)) == (interval.shortest, interval.longest)


def test_adaptive_follows_the_noise_within_its_bounds() -> None:
    interval = Adaptive(40, 10, 50, target=0.5, factor=2.0, band=1.5)
    assert interval.at(0, 999, 9.0) == 40
    assert [interval.at(1, 40, noise) for noise in (0.8, 0.7, None, 0.4, 0.3)] == [20, 40, 40, 40, 50]
    assert [interval.at(1, 12, noise) for noise in (MAX_NOISE, 0.0)] == [10, 24]
    turned = Adaptive(40, 10, 50, target=0.5, factor=2.0, band=1.5, noisy="later")
    assert [turned.at(1, 40, noise) for noise in (0.8, 0.7, None, 0.4, 0.3)] == [50, 40, 40, 40, 20]


def test_adaptive_never_stops_short_of_a_bound_by_rounding() -> None:
    interval = Adaptive(2, 1, 9, factor=1.01)
    up, down = [2], [9]
    for _ in range(8):
        up.append(interval.at(1, up[-1], 0.0))
        down.append(interval.at(1, down[-1], 99.0))
    assert up == [2, 3, 4, 5, 6, 7, 8, 9, 9] and down == [9, 8, 7, 6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Fixed(0), "sync_every is 0: it must be a whole number of at least 1"),
        (lambda: Fixed(True), "sync_every is True"),
        (lambda: Tapered(5, ()), "give at least one"),
        (lambda: Tapered(5, ((9, 3), (4, 2))), r"steps \[9, 4\]: .* ascending"),
        (lambda: Tapered(5, ((4, 3), (4, 2))), "ascending"),
        (lambda: Tapered(5, ((4, 0),)), "sync_every from step 4 is 0"),
        (lambda: Smooth(5, 0, 10), "the last sync_every is 0"),
        (lambda: Smooth(5, 9, 0), "steps is 0"),
        (lambda: Adaptive(5, 10, 20), "sync_every is 5, outside the bounds 10-20 .* nearest valid value is 10"),
        (lambda: Adaptive(15, 20, 10), "bounds are 20-10: give 10-20"),
        (lambda: Adaptive(15, 10, 20, target=0), "target is 0"),
        (lambda: Adaptive(15, 10, 20, factor=1), "factor is 1: it must be a number above 1"),
        (lambda: Adaptive(15, 10, 20, band=0.5), "band is 0.5"),
        (lambda: Adaptive(15, 10, 20, noisy="never"), "noisy is 'never': give 'sooner' or 'later'"),
        (lambda: as_interval("fixed"), "sync_every is 'fixed'"),
        (lambda: as_interval(Fixed), "sync_every is"),
        (lambda: as_interval(2.5), "sync_every is 2.5"),
    ],
)
def test_bad_intervals_are_refused(build: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        build()


def test_as_interval() -> None:
    assert as_interval(30) == Fixed(30) and as_interval(Smooth(1, 2, 3)) == Smooth(1, 2, 3)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("fixed", Fixed(30)),
        ("taper:0.5=60,0.75=120", Tapered(30, ((500, 60), (750, 120)))),
        ("Taper:.1=60", Tapered(30, ((100, 60),))),
        ("smooth:120", Smooth(30, 120, 1000)),
        ("adaptive:10-200", Adaptive(30, 10, 200)),
    ],
)
def test_parse_interval(spec: str, expected: Interval) -> None:
    assert parse_interval(spec, sync_every=30, total_steps=1000) == expected


def test_milestones_of_a_short_run_may_coincide() -> None:
    assert parse_interval("taper:0.5=60,0.55=120", 30, 4) == Tapered(30, ((2, 120),))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tapered:0.5=60", "interval is 'tapered:0.5=60': did you mean 'taper:0.5=60,0.75=120'?"),
        ("sometimes", "give one of fixed, taper:0.5=60,0.75=120, smooth:120, adaptive:10-200"),
        ("fixed:3", "write it as in 'fixed'"),
        ("fixed:", "write it as in 'fixed'"),
        ("taper:", "write it as in 'taper:0.5=60,0.75=120'"),
        ("taper:0.5:60", "write it as in"),
        ("taper:1.5=60", "fractions of the run must lie between 0 and 1"),
        ("taper:0=60", "fractions of the run must lie between 0 and 1"),
        ("taper:0.7=60,0.5=80", "ascending"),
        ("taper:0.5=0", "each with an H of 1 or more"),
        ("smooth:0", "an H of 1 or more"),
        ("smooth:fast", "write it as in 'smooth:120'"),
        ("adaptive", "write it as in 'adaptive:10-200'"),
        ("adaptive:10", "write it as in 'adaptive:10-200'"),
        ("adaptive:50-90", "nearest valid value is 50"),
    ],
)
def test_bad_interval_specs(spec: str, message: str) -> None:
    with pytest.raises(BadInput) as refusal:
        parse_interval(spec, sync_every=30, total_steps=1000)
    assert message in str(refusal.value)


# -- noise


def measured(replicas: np.ndarray) -> float | None:
    mean = replicas.mean(0)
    return noise_ratio([float(((row - mean) ** 2).sum()) for row in replicas], float((mean**2).sum()))


@pytest.mark.parametrize("replicas", [2, 4, 8])
def test_noise_ratio_estimates_variance_over_squared_length(replicas: int) -> None:
    """In 20000 dimensions one draw is close to the expectation: trace(covariance) / M / |true mean|^2."""
    generator, dimensions = np.random.default_rng(0), 20_000
    truth = generator.normal(size=dimensions)
    draws = truth + 1.5 * generator.normal(size=(replicas, dimensions))
    expected = 1.5**2 * dimensions / replicas / (truth**2).sum()
    assert measured(draws) == pytest.approx(expected, rel=0.05)


def test_noise_ratio_at_its_ends() -> None:
    assert noise_ratio([], 1.0) is None and noise_ratio([0.0], 1.0) is None, "one replica has nothing to compare with"
    assert measured(np.ones((3, 5))) == 0 and measured(np.zeros((3, 5))) == 0
    assert measured(np.array([[1.0], [-1.0]])) == pytest.approx(MAX_NOISE), "nothing but noise"
