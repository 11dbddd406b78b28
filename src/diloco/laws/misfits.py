"""Where the runs that a fit left out lie together: there the law may be what is wrong, and not the runs.

Runs that went wrong lie anywhere. Runs of one level of an axis, or of the far end of it, that are left out together say
that the form does not hold there, so that a law must not be spared the test on them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from diloco.laws.spread import from_level, is_level, levels

_MOST_LEFT_OUT = 0.5
"""Of the runs of a level or beyond; more, and they were not left out for their own sake."""

_MOST_OF_LARGER = 2 / 3
"""The same among those from a size on, where it takes more: two of three may be chance."""

_SEVERAL = 2
"""Runs left out from which on they can be a pattern."""

_ALIKE, _SHARE_ALIKE = 3, 0.75
"""Runs left out at one level, and their share of all that were, from which on they are hardly there by chance."""


@dataclass(frozen=True)
class Misfit:
    """A level of an axis at which a law leaves runs out together."""

    axis: str
    level: float
    runs: tuple[int, ...]
    """Left out, by their places in the rows."""
    of: int
    """All that were left out."""
    beyond: bool
    """Whether larger values are among them."""
    upward: bool
    """Whether no run beyond it speaks for the law, so that larger values are as much in doubt."""
    downward: bool
    """The same of smaller ones."""

    def holds(self, value: float) -> bool:
        """Whether a question at `value` is at that level or beyond."""
        here = bool(is_level(value, self.level))
        return here or (self.upward and value > self.level) or (self.downward and value < self.level)

    def __str__(self) -> str:
        which = f"all {self.of}" if len(self.runs) == self.of else f"{len(self.runs)} of the {self.of}"
        place = f"{self.axis} {self.level:.4g}{' or more' if self.beyond else ''}"
        return f"{which} runs that the fit left out have {place}: the law may be what is wrong there, not the runs"


def misfits(size_axis: str, columns: Mapping[str, np.ndarray], left_out: Collection[int]) -> tuple[Misfit, ...]:
    """The levels, of any axis, at which runs were left out together; of several on one axis the fullest."""
    out_N = _flags(columns, left_out)
    found = []
    for axis, values in columns.items():
        on_axis = [
            _misfit(axis, values, level, out_N, beyond)
            for level in levels(values[out_N])
            for beyond in (False, True)
            if _together(columns[size_axis], values, level, out_N, beyond, axis == size_axis)
        ]
        found += sorted(on_axis, key=lambda misfit: (-len(misfit.runs), misfit.beyond))[:1]
    return tuple(found)


def doubtful(size_axis: str, columns: Mapping[str, np.ndarray], left_out: Collection[int]) -> frozenset[int]:
    """The runs left out that test the law all the same.

    On each axis, those of a level from which on more runs were left out than stayed; and those of a level, or from a
    level on, of which from some size on several and more than two thirds were left out.
    """
    out_N = _flags(columns, left_out)
    size_N, found = columns[size_axis], set()
    for axis, values in columns.items():
        for level in levels(values[out_N]):
            beyond_N = from_level(values, level)
            if out_N[beyond_N].mean() > _MOST_LEFT_OUT:
                found |= set(np.flatnonzero(out_N & is_level(values, level)))
            for group_N in (beyond_N, is_level(values, level)) if axis != size_axis else ():
                if from_size := _from_size(size_N, group_N, out_N):
                    found |= set(np.flatnonzero(out_N & is_level(values, level) & from_level(size_N, from_size)))
    return frozenset(int(run) for run in found)


def _from_size(size_N: np.ndarray, group_N: np.ndarray, out_N: np.ndarray) -> float | None:
    """The least size from which on most runs of a group, and several, were left out; None where there is none."""
    for size in levels(size_N[group_N & out_N]):
        larger_N = group_N & from_level(size_N, size)
        if out_N[larger_N].sum() >= _SEVERAL and out_N[larger_N].mean() > _MOST_OF_LARGER:
            return float(size)
    return None


def _together(
    size_N: np.ndarray, values: np.ndarray, level: float, out_N: np.ndarray, beyond: bool, is_size: bool
) -> bool:
    at_N = is_level(values, level)
    group_N = from_level(values, level) if beyond else at_N
    count = int((group_N & out_N).sum())
    if count < _SEVERAL or (beyond and count == int((at_N & out_N).sum())) or levels(values).size < _SEVERAL:
        return False
    if out_N[group_N].mean() > _MOST_LEFT_OUT or (not is_size and _from_size(size_N, group_N, out_N)):
        return True
    return not beyond and count >= _ALIKE and count >= _SHARE_ALIKE * out_N.sum()


def _misfit(axis: str, values: np.ndarray, level: float, out_N: np.ndarray, beyond: bool) -> Misfit:
    group_N = from_level(values, level) if beyond else is_level(values, level)
    runs = tuple(int(run) for run in np.flatnonzero(group_N & out_N))
    least, *_, most = levels(values)
    ends = beyond or bool(is_level(most, level)), bool(is_level(least, level))
    return Misfit(axis, float(level), runs, int(out_N.sum()), beyond, *ends)


def _flags(columns: Mapping[str, np.ndarray], left_out: Collection[int]) -> np.ndarray:
    rows = len(next(iter(columns.values())))
    return np.isin(np.arange(rows), list(left_out))
