"""The slowest of many slices that step together."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

_POINTS = 4000


def slowest(slices: int, jitter: float) -> tuple[float, float]:
    """Mean and standard deviation of the slowest of `slices` step times, as multiples of one slice's mean.

    Step times are lognormal with `jitter` the deviation of the log; integrated over the quantiles of the largest.
    """
    if jitter == 0 or slices == 1:
        return 1.0, math.sqrt(math.expm1(jitter**2))
    middles = (np.arange(_POINTS) + 0.5) / _POINTS
    upper = -np.expm1(np.log(middles) / slices)
    deviates = np.array([-NormalDist().inv_cdf(tail) for tail in upper.tolist()])
    largest = np.exp(jitter * deviates - jitter**2 / 2)
    return float(largest.mean()), float(largest.std())
