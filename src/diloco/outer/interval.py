"""Intervals: how the number of inner steps between two syncs, H, follows from the step and from what was measured."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from diloco.errors import BadInput

MAX_NOISE = 1e6


@runtime_checkable
class Interval(Protocol):
    """A rule for H. All replicas call it with equal numbers, so they decide alike."""

    def at(self, step: int, current: int, noise: float | None) -> int:
        """H in inner steps of the cycle that begins at `step`.

        `current`: H of the cycle that ends, ignored at step 0. `noise`: see `noise_ratio`; None when not measured yet.
        """

    @property
    def shortest(self) -> int:
        """No H is below it."""

    @property
    def longest(self) -> int:
        """No H is above it."""


@dataclass(frozen=True)
class Fixed:
    """The same H throughout."""

    every: int

    def __post_init__(self) -> None:
        whole_number("sync_every", self.every)

    def at(self, step: int, current: int, noise: float | None) -> int:
        return self.every

    @property
    def shortest(self) -> int:
        return self.every

    @property
    def longest(self) -> int:
        return self.every


@dataclass(frozen=True)
class Tapered:
    """H = `start` until the first milestone; from milestone (step, H) on, its H. Fewer syncs late in training, or more.

    Cycles are not cut short: H changes with the first cycle that begins at or after the milestone.
    """

    start: int
    milestones: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "milestones", tuple((step, every) for step, every in self.milestones))
        whole_number("sync_every", self.start)
        for step, every in self.milestones:
            whole_number("a milestone's step", step)
            whole_number(f"sync_every from step {step}", every)
        steps = [step for step, _ in self.milestones]
        if not steps or sorted(set(steps)) != steps:
            raise BadInput(f"milestones are at steps {steps}: give at least one, in ascending order")

    def at(self, step: int, current: int, noise: float | None) -> int:
        return next((every for begins, every in reversed(self.milestones) if step >= begins), self.start)

    @property
    def shortest(self) -> int:
        return min(self.start, *(every for _, every in self.milestones))

    @property
    def longest(self) -> int:
        return max(self.start, *(every for _, every in self.milestones))


@dataclass(frozen=True)
class Smooth:
    """H goes from `start` to `end` over `steps` inner steps, by the same factor in every step, and stays there."""

    start: int
    end: int
    steps: int

    def __post_init__(self) -> None:
        for field, value in (("sync_every", self.start), ("the last sync_every", self.end), ("steps", self.steps)):
            whole_number(field, value)

    def at(self, step: int, current: int, noise: float | None) -> int:
        exact = self.start * (self.end / self.start) ** min(step / self.steps, 1.0)
        return min(max(_round(exact), self.shortest), self.longest)

    @property
    def shortest(self) -> int:
        return min(self.start, self.end)

    @property
    def longest(self) -> int:
        return max(self.start, self.end)


@dataclass(frozen=True)
class Adaptive:
    """H follows the noise in the merged outer gradient (`noise_ratio`), within [low, high].

    Above `target * band` the replicas disagree: H is divided by `factor`, since averaging is what removes the noise.
    Below `target / band` they would find the same without talking: H is multiplied by `factor`. In between it stays, as
    it does while nothing was measured and with one replica, which has no noise to measure.

    `noisy="later"` turns the rule round: a noisy window was too short to say anything, so the next is longer. That is
    what the norm test of local methods does with a batch (arXiv 2406.13936), and keeps the noise near the target where
    it falls with H, as it does while replicas still make progress; "sooner" then ends at a bound.

    The ratio rises over a run: with 4 replicas of the 30k model at H = 20 from 0.01 to 1, and it passed the default
    target after about a seventh of the steps.
    """

    start: int
    low: int
    high: int
    target: float = 0.1
    factor: float = 1.25
    band: float = 1.5
    noisy: Literal["sooner", "later"] = "sooner"

    def __post_init__(self) -> None:
        for field, value in (("start", self.start), ("low", self.low), ("high", self.high)):
            whole_number(f"the adaptive interval's {field}", value)
        if self.low > self.high:
            raise BadInput(f"the adaptive interval's bounds are {self.low}-{self.high}: give {self.high}-{self.low}")
        if not self.low <= self.start <= self.high:
            nearest = min(max(self.start, self.low), self.high)
            raise BadInput(
                f"sync_every is {self.start}, outside the bounds {self.low}-{self.high} of its adaptive interval: the "
                f"nearest valid value is {nearest}"
            )
        if not 0 < self.target < math.inf:
            raise BadInput(f"the adaptive interval's target is {self.target}: it must be a number above 0")
        for field, value in (("factor", self.factor), ("band", self.band)):
            if not 1 < value < math.inf:
                raise BadInput(f"the adaptive interval's {field} is {value}: it must be a number above 1")
        if self.noisy not in ("sooner", "later"):
            raise BadInput(f"the adaptive interval's noisy is {self.noisy!r}: give 'sooner' or 'later'")

    def at(self, step: int, current: int, noise: float | None) -> int:
        if step == 0:
            return self.start
        if noise is None or self.target / self.band <= noise <= self.target * self.band:
            return current
        if (noise > self.target) == (self.noisy == "sooner"):
            return max(min(_round(current / self.factor), current - 1), self.low)
        return min(max(_round(current * self.factor), current + 1), self.high)

    @property
    def shortest(self) -> int:
        return self.low

    @property
    def longest(self) -> int:
        return self.high


def noise_ratio(own_minus_mean_squares: Sequence[float], mean_square: float) -> float | None:
    """How much of the merged outer gradient is noise: the variance of the mean over its true squared length.

    `own_minus_mean_squares`: ||D_m - D||^2 of each of M replicas; `mean_square`: ||D||^2, D their mean. All replicas
    must be given the same gathered numbers. None for fewer than two replicas.

    S = sum ||D_m - D||^2 / (M - 1) estimates the trace of the covariance of one replica's outer gradient, S / M that of
    the mean's, and ||D||^2 exceeds the true squared length by S / M on average. The ratio is the gradient noise scale
    of McCandlish et al. (arXiv 1812.06162, appendix A.1), with one replica's window as the batch, over M. At 1 the
    merged outer gradient is half noise. Where noise is all there is, the answer is MAX_NOISE.
    """
    count = len(own_minus_mean_squares)
    if count < 2:
        return None
    variance = sum(own_minus_mean_squares) / (count - 1) / count
    if variance == 0:
        return 0.0
    return variance / max(mean_square - variance, variance / MAX_NOISE)


def as_interval(value: object) -> Interval:
    """An interval from itself or from a whole number of steps. Raises BadInput for anything else."""
    if isinstance(value, Interval) and not isinstance(value, type):
        return value
    whole_number("sync_every", value)
    return Fixed(value)


def parse_interval(spec: str, sync_every: int, total_steps: int) -> Interval:
    """The interval a spec describes, for a run of `total_steps` inner steps that begins with H = `sync_every`:

    "fixed"; "taper:0.5=60,0.75=120" (H from these fractions of the run on); "smooth:120" (to that H over the run);
    "adaptive:10-200" (between these bounds).

    Raises BadInput for anything else.
    """
    name, colon, value = spec.strip().lower().partition(":")
    if name not in _SPECS:
        near = difflib.get_close_matches(name, _SPECS, n=1)
        hint = f"did you mean {_SPECS[near[0]]!r}? " if near else ""
        raise BadInput(f"interval is {spec!r}: {hint}give one of {', '.join(_SPECS.values())}")
    found = re.fullmatch(_PATTERNS[name], value)
    if not found or (name == "fixed" and colon):
        raise BadInput(f"interval is {spec!r}: write it as in {_SPECS[name]!r}")
    if name == "taper":
        pairs = [pair.split("=") for pair in value.split(",")]
        if not all(0 < float(fraction) < 1 for fraction, _ in pairs):
            raise BadInput(f"interval is {spec!r}: the fractions of the run must lie between 0 and 1")
        if sorted(pairs, key=lambda pair: float(pair[0])) != pairs or not all(int(every) for _, every in pairs):
            raise BadInput(f"interval is {spec!r}: give the fractions in ascending order, each with an H of 1 or more")
        # Two milestones may fall on one step of a short run: the later one counts.
        steps = {max(_round(float(fraction) * total_steps), 1): int(every) for fraction, every in pairs}
        return Tapered(sync_every, tuple(steps.items()))
    if name == "smooth" and not int(value):
        raise BadInput(f"interval is {spec!r}: give an H of 1 or more to end with")
    if name == "smooth":
        return Smooth(sync_every, int(value), total_steps)
    return Adaptive(sync_every, *map(int, found.groups())) if name == "adaptive" else Fixed(sync_every)


_SPECS = {
    "fixed": "fixed",
    "taper": "taper:0.5=60,0.75=120",
    "smooth": "smooth:120",
    "adaptive": "adaptive:10-200",
}
_FRACTION = r"[0-9]*\.?[0-9]+"
_PATTERNS = {
    "fixed": "",
    "taper": rf"{_FRACTION}=[0-9]+(,{_FRACTION}=[0-9]+)*",
    "smooth": "[0-9]+",
    "adaptive": "([0-9]+)-([0-9]+)",
}


def whole_number(option: str, value: object) -> None:
    """Raises BadInput unless the value is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadInput(f"{option} is {value!r}: it must be a whole number of at least 1")


def _round(value: float) -> int:
    return math.floor(value + 0.5)
