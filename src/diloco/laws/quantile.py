"""Two distributions, from scipy, loaded when first asked for: a saved law answers without it."""

from __future__ import annotations


def t_quantile(probability: float, dof: float) -> float:
    """The value that Student's t with `dof` degrees of freedom stays under with `probability`; infinite at dof <= 0."""
    from scipy.special import stdtrit

    return float(stdtrit(dof, probability)) if dof > 0 else float("inf")


def regularised_beta(a: float, b: float, x: float) -> float:
    """The chance that a Beta(a, b) variable stays under x."""
    from scipy.special import betainc

    return float(betainc(a, b, x))
