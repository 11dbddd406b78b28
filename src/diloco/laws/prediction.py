"""What a law answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

_FAR = 10.0
"""Times the largest run, from which on a prediction is called far."""


class Curve(NamedTuple):
    """A law over many points: its value, the interval of the law, and the interval of a new run."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    new_low: np.ndarray
    new_high: np.ndarray


@dataclass(frozen=True)
class Prediction:
    """A target at one point. Both intervals take the form as true; `forms` shows what other forms say."""

    target: str
    value: float
    low: float
    """Of a new run at this point, at `level`."""
    high: float
    curve_low: float
    """Of the law itself: what many runs' mean would do."""
    curve_high: float
    level: float
    forms: dict[str, float]
    """Central predictions of this form and of those that the hold-out cannot tell from it."""
    warnings: tuple[str, ...]
    """What the prediction extrapolates over, a sentence each."""
    point: dict[str, float]
    law: str

    @property
    def form_low(self) -> float:
        return min(self.forms.values())

    @property
    def form_high(self) -> float:
        return max(self.forms.values())


def extrapolations(point: Mapping[str, float], ranges: Mapping[str, tuple[float, float]]) -> list[str]:
    """A sentence for each axis on which `point` lies outside `ranges`."""
    found = []
    for axis, (low, high) in ranges.items():
        value = point.get(axis, low)
        if value > high * (1 + 1e-9):
            far = ", which is far: the form decides more than the data" if value > _FAR * high else ""
            found.append(f"{axis} {value:.4g} is {value / high:.3g} times the largest run's ({high:.4g}){far}")
        elif value < low * (1 - 1e-9):
            found.append(f"{axis} {value:.4g} is {value / low:.2g} of the smallest run's ({low:.4g})")
    return found
