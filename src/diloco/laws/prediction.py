"""What a law answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from diloco.laws.relations import ON_RELATION, relations
from diloco.laws.spread import FEW_LEVELS, is_level, levels

_FAR = 10.0
"""Times the largest run, or below the smallest, from which on a prediction is called far."""


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
        is_far = value > _FAR * high or value < low / _FAR
        far = ", which is far: the form decides more than the data" if is_far else ""
        if value > high * (1 + 1e-9):
            found.append(f"{axis} {value:.4g} is {value / high:.3g} times the largest run's ({high:.4g}){far}")
        elif value < low * (1 - 1e-9):
            found.append(f"{axis} {value:.4g} is {value / low:.2g} of the smallest run's ({low:.4g}){far}")
    return found


def reservations(point: Mapping[str, float], columns: Mapping[str, np.ndarray]) -> list[str]:
    """A sentence for each way in which the runs, inside their ranges too, do not determine the law at `point`.

    Args:
        columns: of the runs, per axis (n,).
    """
    known_axes = [axis for axis in columns if axis in point]
    found = []
    for axis in known_axes:
        known = levels(columns[axis])
        if known.size < FEW_LEVELS and not is_level(known, point[axis]).any():
            seen = " and ".join(f"{value:.4g}" for value in known)
            found.append(
                f"{axis} was {seen} in the runs and never between or beyond, so its effect at {point[axis]:.4g} is the "
                "form's guess"
            )
    for follows in relations({axis: columns[axis] for axis in known_axes}):
        times = point[follows.axis] / follows.at(point)
        if abs(np.log(times)) > max(follows.off, ON_RELATION):
            where = " and ".join(f"{name} {point[name]:.4g}" for name in follows.powers)
            found.append(
                f"{follows.axes} moved together in the runs, and {follows.axis} {point[follows.axis]:.4g} is "
                f"{times:.3g} times what went with {where}: the law cannot say which of "
                "them did what"
            )
    return found


def unused(point: Mapping[str, float], axes: Sequence[str], whose: str) -> list[str]:
    """A sentence for each number that was given and that `whose` law, of these axes, does not know."""
    return [
        f"{axis} {value:.4g} does not change the answer: {whose} does not know {axis}"
        for axis, value in point.items()
        if axis not in axes
    ]
