"""Student's t, as far as comparing a few seeds needs it, in closed form and the standard library."""

from __future__ import annotations

import math
from statistics import fmean, stdev

_SIMPSON_PIECES = 100
_BISECTIONS = 50


def t_cdf(t: float, dof: float) -> float:
    """P(T <= t). With t = sqrt(dof) tan(u) the density is proportional to cos(u)^(dof - 1), on a finite range."""
    end = math.atan(t / math.sqrt(dof))
    width = end / _SIMPSON_PIECES
    weights = (1 if i in (0, _SIMPSON_PIECES) else 4 if i % 2 else 2 for i in range(_SIMPSON_PIECES + 1))
    area = width / 3 * sum(w * math.cos(i * width) ** (dof - 1) for i, w in enumerate(weights))
    return 0.5 + area * math.exp(math.lgamma((dof + 1) / 2) - math.lgamma(dof / 2)) / math.sqrt(math.pi)


def t_quantile(probability: float, dof: float) -> float:
    """The t with `t_cdf(t, dof) == probability`, for probability in [0.5, 1) and dof >= 1."""
    low, high = 0.0, math.pi / 2
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if t_cdf(math.sqrt(dof) * math.tan(middle), dof) < probability:
            low = middle
        else:
            high = middle
    return math.sqrt(dof) * math.tan((low + high) / 2)


def welch_interval(a: list[float], b: list[float], level: float = 0.95) -> tuple[float, float] | None:
    """Interval for mean(a) - mean(b) without assuming equal variances; None where either has fewer than two values.

    Source: Welch 1947, with the Welch-Satterthwaite degrees of freedom.
    """
    if len(a) < 2 or len(b) < 2:
        return None
    difference = fmean(a) - fmean(b)
    variance_a, variance_b = stdev(a) ** 2 / len(a), stdev(b) ** 2 / len(b)
    variance = variance_a + variance_b
    if variance == 0:
        return difference, difference
    dof = variance**2 / (variance_a**2 / (len(a) - 1) + variance_b**2 / (len(b) - 1))
    half = t_quantile((1 + level) / 2, dof) * math.sqrt(variance)
    return difference - half, difference + half
