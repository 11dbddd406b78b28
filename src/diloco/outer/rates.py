"""Outer learning rates that change with the round: pure functions of the outer step, counted from 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from diloco.errors import BadInput


class Rate(Protocol):
    """Any callable from the outer step (1, 2, ...) to an outer lr."""

    def __call__(self, round: int) -> float: ...


@dataclass(frozen=True)
class Cosine:
    """From `peak` at the first outer step down to `floor * peak` at outer step `rounds`, and flat from there."""

    peak: float
    rounds: int
    floor: float = 0.05

    def __call__(self, round: int) -> float:
        done = min(max(round - 1, 0) / max(self.rounds - 1, 1), 1.0)
        return self.peak * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done)))


@dataclass(frozen=True)
class Linear:
    """A straight line from `peak` at the first outer step to `floor * peak` at outer step `rounds`, and flat from
    there."""

    peak: float
    rounds: int
    floor: float = 0.05

    def __call__(self, round: int) -> float:
        done = min(max(round - 1, 0) / max(self.rounds - 1, 1), 1.0)
        return self.peak * (1 - (1 - self.floor) * done)


def rate_at(lr: float | Rate, round: int) -> float:
    """The outer lr of outer step `round`, whichever way it was given."""
    return float(lr(round)) if callable(lr) else float(lr)


def check_rate(name: str, lr: float | Rate) -> None:
    """Refuses an lr whose first value is not a finite number >= 0."""
    first = rate_at(lr, 1)
    if not (math.isfinite(first) and first >= 0):
        raise BadInput(f"{name} is {first!r}: give a finite number of 0 or more")
