"""Series thinned without moving them.

pytest tests/watch/test_charts.py
"""

from __future__ import annotations

import math
from statistics import fmean

import pytest

from diloco.watch import charts


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
