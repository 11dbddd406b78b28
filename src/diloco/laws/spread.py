"""How the runs lie on their axes: how many values each takes, and which axes move together."""

from __future__ import annotations

import numpy as np

FEW_LEVELS = 3
"""Values of an axis under which any curve goes through them."""

COLLINEAR = 0.98
"""Correlation of logs from which on two axes count as one."""

_SAME_LEVEL = 1e-6
"""Difference of logs."""

_MOST_LEVELS = 12
"""Of an axis; a finer one is cut at quantiles."""


def levels(values: np.ndarray) -> np.ndarray:
    """The different values of an axis, ascending; values closer than rounding are one."""
    ordered = np.sort(values)
    return ordered[np.diff(np.log(ordered), prepend=-np.inf) > _SAME_LEVEL]


def coarse_levels(values: np.ndarray) -> np.ndarray:
    """The same, but of an axis with many only some, at quantiles, the largest among them."""
    found = levels(values)
    if found.size <= _MOST_LEVELS:
        return found
    return levels(np.quantile(values, np.linspace(0, 1, _MOST_LEVELS + 1)[1:], method="lower"))


def is_level(values: np.ndarray, level: float) -> np.ndarray:
    """(n,) bool: which values are this level, but for rounding."""
    return np.abs(np.log(values / level)) < _SAME_LEVEL


def up_to(values: np.ndarray, level: float) -> np.ndarray:
    """(n,) bool: which values are this level, but for rounding, or below it."""
    return np.log(values / level) < _SAME_LEVEL


def from_level(values: np.ndarray, level: float) -> np.ndarray:
    """(n,) bool: which values are this level, but for rounding, or beyond it."""
    return np.log(values / level) > -_SAME_LEVEL


def moves_with(a: np.ndarray, b: np.ndarray) -> float:
    """Correlation of the logs of two columns; 0 where one of them is constant."""
    x, y = np.log(a), np.log(b)
    spread = x.std() * y.std()
    return float(((x - x.mean()) * (y - y.mean())).mean() / spread) if spread > 1e-12 else 0.0
