"""Where the runs that a fit left out lie together: there the law may be what is wrong, and not the runs.

Runs that went wrong lie anywhere. More of them at one level of an axis, or at its far end, than chance puts there say
that the form does not hold there, so that a law must not be spared the test on them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from diloco.laws.spread import coarse_levels, from_level, is_level, levels

_CHANCE = 0.02
"""Of naming any place where runs were left out without regard to where they lie, over all the places looked at."""

_SEVERAL = 2
"""Runs left out from which on they can be a pattern."""

_DRAWS = 4000
"""Of as many runs at random as were left out; where there are no more ways to draw them, each way once."""


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
    """The levels at which runs were left out together; of several on one axis the one that chance explains least.

    Each place is judged by the hypergeometric chance of as many there, and that against the least such chance of runs
    drawn at random: so it is known how rare it is to find any, however many places there are and overlap.
    """
    out_N = _flags(columns, left_out)
    places = list(_places(size_axis, columns)) if out_N.sum() >= _SEVERAL else []
    if not places:
        return ()
    groups_GN = np.stack([group_N for *_, group_N in places])
    chance_G, rare_G = _chances(groups_GN, out_N)
    found: dict[str, tuple[tuple, Misfit]] = {}
    for (axis, level, beyond, _), chance, rare in zip(places, chance_G, rare_G, strict=True):
        if rare:
            misfit = _misfit(axis, columns[axis], level, out_N, beyond)
            rank = (chance, -len(misfit.runs), beyond)
            found[axis] = min(found.get(axis, (rank, misfit)), (rank, misfit), key=lambda item: item[0])
    return tuple(found[axis][1] for axis in columns if axis in found)


def doubtful(size_axis: str, columns: Mapping[str, np.ndarray], left_out: Collection[int]) -> frozenset[int]:
    """The runs left out that test the law all the same: those that `misfits` names."""
    return frozenset(run for misfit in misfits(size_axis, columns, left_out) for run in misfit.runs)


def _places(size_axis: str, columns: Mapping[str, np.ndarray]) -> Iterator[tuple[str, float, bool, np.ndarray]]:
    """Axis, level, whether larger values count too, and its runs (n,) bool.

    Of the size axis the far end alone; of others each level, and from each on, in all sizes or in the largest few.
    """
    size_N = columns[size_axis]
    sizes = coarse_levels(size_N)
    for axis, values in columns.items():
        found = coarse_levels(values)
        for level in found[1:] if axis == size_axis else found if found.size > 1 else ():
            most = bool(is_level(found[-1], level))
            for beyond in (not most,) if axis == size_axis else (False,) if most else (False, True):
                group_N = from_level(values, level) if beyond else is_level(values, level)
                for size in sizes[:1] if axis == size_axis else sizes[:-1]:
                    yield axis, float(level), beyond, group_N & from_level(size_N, size)


def _chances(groups_GN: np.ndarray, out_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(g,): chance of as many left out in each group, and whether any group is that unlikely in few draws only."""
    rows, out = len(out_N), int(out_N.sum())
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, rows + 1)))])

    def log_ways(of: np.ndarray, some: np.ndarray) -> np.ndarray:
        possible = (some >= 0) & (some <= of)
        some = np.clip(some, 0, of)
        return np.where(possible, log_factorial[of] - log_factorial[some] - log_factorial[of - some], -np.inf)

    members_G, count = groups_GN.sum(axis=1)[:, None], np.arange(out + 1)
    ways = log_ways(members_G, count) + log_ways(rows - members_G, out - count)
    exactly = np.exp(ways - log_ways(np.array(rows), np.array(out)))
    at_least_GK = exactly[:, ::-1].cumsum(axis=1)[:, ::-1]
    at_least_GK[:, :_SEVERAL] = 1
    place_G = np.arange(len(groups_GN))
    chance_G = at_least_GK[place_G, groups_GN @ out_N.astype(int)]
    drawn_DG = (_draws(rows, out).astype(np.float32) @ groups_GN.T.astype(np.float32)).astype(int)
    least_D = np.sort(at_least_GK[place_G, drawn_DG].min(axis=1))
    return chance_G, np.searchsorted(least_D, chance_G * (1 + 1e-9), side="right") / len(least_D) <= _CHANCE


def _draws(rows: int, out: int) -> np.ndarray:
    """(d, rows) bool, with `out` chosen in each."""
    if math.comb(rows, out) <= _DRAWS:
        chosen = np.array(list(combinations(range(rows), out)))
    else:
        chosen = np.random.default_rng(0).random((_DRAWS, rows)).argpartition(out - 1, axis=1)[:, :out]
    drawn = np.zeros((len(chosen), rows), dtype=bool)
    np.put_along_axis(drawn, chosen, True, axis=1)
    return drawn


def _misfit(axis: str, values: np.ndarray, level: float, out_N: np.ndarray, beyond: bool) -> Misfit:
    group_N = from_level(values, level) if beyond else is_level(values, level)
    runs = tuple(int(run) for run in np.flatnonzero(group_N & out_N))
    least, *_, most = levels(values)
    ends = beyond or bool(is_level(most, level)), bool(is_level(least, level))
    return Misfit(axis, float(level), runs, int(out_N.sum()), beyond, *ends)


def _flags(columns: Mapping[str, np.ndarray], left_out: Collection[int]) -> np.ndarray:
    rows = len(next(iter(columns.values())))
    return np.isin(np.arange(rows), list(left_out))
