"""The chips that are planned with, and when they fail.

Chips are grouped in slices: one chip's failure takes its whole slice out until the slice returns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from diloco.errors import BadInput
from diloco.units import DAY_S, YEAR_S

CHIPS_MOST = 10**8
"""Beyond it a slip of the pen: more than all accelerators ever made for training."""


@dataclass(frozen=True)
class Fleet:
    """Chips, how often they fail and how long a failed slice stays away.

    Raises:
        BadInput: a number that no fleet can have.
    """

    chips: int
    """In service. Spares come on top."""
    slice_chips: int = 256
    """Chips that fail and return together; rounded so that every learner has whole slices."""
    spare_chips: int = 0
    """Idle chips that take a failed slice's place at once, shared out evenly among the learners; they do not fail."""
    mtbi_days: float = YEAR_S / DAY_S
    """Mean time between interruptions of one chip."""
    weibull_shape: float = 1.0
    """1: failures without memory (exponential). Below 1 they come in bursts after a repair, above 1 with age."""
    return_s: float = 1800.0
    """From a slice's failure until it is whole again: a restart, a hot replacement or a repair."""
    idle_failures: bool = True
    """Whether chips also fail while their learner stands still; such a failure starts the stop anew."""
    step_jitter: float = 0.0
    """Standard deviation of the log of a slice's step time, drawn anew every step; the slowest slice decides."""
    speeds: tuple[float, ...] = (1.0,)
    """Relative speed of each learner, repeated where there are more learners than speeds."""

    def __post_init__(self) -> None:
        whole(self, "chips", 1, CHIPS_MOST)
        whole(self, "slice_chips", 1, self.chips)
        whole(self, "spare_chips", 0, CHIPS_MOST)
        number(self, "mtbi_days", 1e-6, 1e9)
        number(self, "weibull_shape", 0.2, 10)
        number(self, "return_s", 0, 1e9)
        number(self, "step_jitter", 0, 2)
        if not self.speeds or not all(1e-3 <= speed <= 1e3 for speed in self.speeds):
            raise BadInput(f"speeds is {self.speeds!r}: give factors from 0.001 to 1000, the nearest is (1.0,)")


def whole(options: object, name: str, least: int, most: int) -> None:
    """Refuses an option that is no whole number from `least` to `most`. Raises BadInput."""
    value = getattr(options, name)
    if isinstance(value, bool) or value != value or not least <= value <= most or value != int(value):
        near = min(max(round(value), least), most) if math.isfinite(value) else least
        raise BadInput(f"{name} is {value!r}: give a whole number from {least} to {most}, the nearest is {near}")


def number(options: object, name: str, least: float, most: float) -> None:
    """Refuses an option that is no number from `least` to `most`. Raises BadInput."""
    value = getattr(options, name)
    if not least <= value <= most:
        near = min(max(value, least), most) if value == value else least
        raise BadInput(f"{name} is {value!r}: give a number from {least:g} to {most:g}, the nearest is {near:g}")


def failures(
    rng: np.random.Generator, chips: float, slices: int, horizon_s: float, fleet: Fleet
) -> tuple[NDArray, NDArray]:
    """When failures strike and which slice each, both (F,), by time.

    Without memory, all chips together are one Poisson process. Else every chip renews itself, from a start in the
    middle of its life: F is chips * horizon / MTBI on average in both cases.
    """
    mtbi_s = fleet.mtbi_days * DAY_S
    if fleet.weibull_shape == 1.0:
        count = rng.poisson(chips * horizon_s / mtbi_s)
        return np.sort(rng.uniform(0, horizon_s, count)), rng.integers(0, slices, count)
    times, chip = _renewals(rng, max(1, round(chips)), mtbi_s, fleet, horizon_s)
    order = np.argsort(times)
    return times[order], (chip[order] * slices) // max(1, round(chips))


def _renewals(
    rng: np.random.Generator, chips: int, mtbi_s: float, fleet: Fleet, horizon_s: float
) -> tuple[NDArray, NDArray]:
    shape = fleet.weibull_shape
    scale = mtbi_s / math.gamma(1 + 1 / shape)
    # what is left of the life that covers a given moment: lives are met there in proportion to their length
    time = rng.uniform(size=chips) * scale * rng.gamma(1 + 1 / shape, size=chips) ** (1 / shape)
    chip = np.arange(chips)
    times, struck = [], []
    while True:
        alive = time < horizon_s
        time, chip = time[alive], chip[alive]
        if not len(time):
            return np.concatenate([*times, time]), np.concatenate([*struck, chip])
        times.append(time)
        struck.append(chip)
        time = time + fleet.return_s + scale * rng.weibull(shape, len(time))
