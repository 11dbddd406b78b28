"""Numbers as a reader wants them, and series thinned without moving them.

pytest tests/watch/test_units.py
"""

from __future__ import annotations

import math
from statistics import fmean

import pytest

from diloco.watch import charts, units


@pytest.mark.parametrize(
    "show, value, text",
    [
        (units.count, 2_500_000, "2.5M"),
        (units.count, 1024, "1k"),
        (units.count, 800, "800"),
        (units.count, 1.3e9, "1.3B"),
        (units.count, None, "–"),
        (units.size, 12_345_678, "12.3 MB"),
        (units.size, 7.7e9, "7.7 GB"),
        (units.size, 0, "0 B"),
        (units.bandwidth, 94.13, "94.1 Mbit/s"),
        (units.bandwidth, 0.3, "300 kbit/s"),
        (units.bandwidth, None, "–"),
        (units.duration, 42.54, "42.5 s"),
        (units.duration, 75.5, "1 min 15 s"),
        (units.duration, 7260, "2 h 1 min"),
        (units.loss, 1.28, "1.280"),
        (units.loss, math.nan, "nan"),
        (units.percent, 3.14, "+3.1%"),
        (units.percent, -0.5, "\N{MINUS SIGN}0.5%"),
        (units.percent, None, "–"),
    ],
)
def test_numbers_read_well(show, value, text):
    assert show(value) == text


@pytest.mark.parametrize("thin", [charts.thin, charts.thin_evenly_in_log])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 500, 501, 12_345])
def test_thinning_covers_every_point_once(thin, length):
    calls = thin([1.0] * length)
    assert len(calls) <= charts.MAX_POINTS and all(value == 1.0 for value in calls)
    assert bool(calls) == bool(length)


def test_thinning_is_the_mean_of_the_finite_values():
    values = [1.0, math.nan, 3.0, None] * charts.MAX_POINTS
    assert charts.thin(values) == [fmean([1.0, 3.0])] * charts.MAX_POINTS
    assert charts.thin([math.inf, None]) == [None, None]


def test_short_series_are_drawn_as_they_are():
    values = [float(i) for i in range(charts.MAX_POINTS)]
    assert charts.thin(values) == values


def test_log_pieces_start_single_and_grow():
    positions = charts.thin_evenly_in_log([float(i) for i in range(10_000)])
    steps = [b - a for a, b in zip(positions, positions[1:], strict=False)]
    assert positions[:3] == [0.0, 1.0, 2.0] and steps[-1] > 100
