"""Two distributions, from scipy, loaded when first asked for: a saved law answers without it."""

from __future__ import annotations

import math

import numpy as np

_NODES = 64


def t_quantile(probability: float, dof: float) -> float:
    """The value that Student's t with `dof` degrees of freedom stays under with `probability`; infinite at dof <= 0."""
    from scipy.special import stdtrit

    return float(stdtrit(dof, probability)) if dof > 0 else float("inf")


def t_within(t: float, dof: float) -> float:
    """The chance that Student's t lies within +-t, to about 1e-4 from 1 degree of freedom on; needs no scipy.

    By Gauss-Legendre over the angle atan(t / sqrt(dof)), in which the density is a power of the cosine.
    """
    scale = math.exp(math.lgamma((dof + 1) / 2) - math.lgamma(dof / 2)) * 2 / math.sqrt(math.pi)
    end = math.atan(t / math.sqrt(dof))
    node, weight = np.polynomial.legendre.leggauss(_NODES)
    return float(scale * end / 2 * (weight @ np.cos(end * (node + 1) / 2) ** (dof - 1)))


def regularised_beta(a: float, b: float, x: float) -> float:
    """The chance that a Beta(a, b) variable stays under x."""
    from scipy.special import betainc

    return float(betainc(a, b, x))
