"""Student's t against printed tables and closed forms.

pytest tests/watch/test_student.py
"""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest

from diloco.watch.student import t_cdf, t_quantile, welch_interval


@pytest.mark.parametrize(
    "dof, quantile", [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (10, 2.2281), (30, 2.0423), (1000, 1.9623)]
)
def test_two_sided_95_percent_of_the_printed_table(dof, quantile):
    assert t_quantile(0.975, dof) == pytest.approx(quantile, abs=6e-5)


def test_one_degree_of_freedom_is_cauchy():
    for t in (0.1, 1.0, 5.0):
        assert t_cdf(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi, abs=1e-12)


def test_two_degrees_of_freedom_in_closed_form():
    for t in (0.1, 1.0, 5.0):
        assert t_cdf(t, 2) == pytest.approx(0.5 + t / (2 * math.sqrt(2 + t * t)), abs=1e-10)


def test_quantile_inverts_the_distribution_for_fractional_dof():
    assert t_cdf(t_quantile(0.9, 2.7), 2.7) == pytest.approx(0.9, abs=1e-10)


def test_welch_by_hand():
    # variances 1 and 4 over three values each: se^2 = 5/3, dof = (5/3)^2 / ((1/3)^2/2 + (4/3)^2/2) = 50/17
    low, high = welch_interval([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    half = t_quantile(0.975, 50 / 17) * math.sqrt(5 / 3)
    assert (low, high) == pytest.approx((-2 - half, -2 + half))


def test_welch_interval_holds_the_truth_19_times_of_20():
    rng = random.Random(1)
    held = []
    for _ in range(200):
        a, b = [rng.gauss(1.0, 1.0) for _ in range(3)], [rng.gauss(0.0, 3.0) for _ in range(5)]
        low, high = welch_interval(a, b)
        held.append(low <= 1.0 <= high)
    assert 0.91 <= fmean(held) <= 0.985


def test_welch_needs_two_values_each_and_takes_equal_ones():
    assert welch_interval([1.0], [1.0, 2.0]) is None
    assert welch_interval([1.0, 1.0], [0.5, 0.5]) == (0.5, 0.5)
