"""Axes that follow others in the runs, by a power of each: what a law holds along, and cannot tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from diloco.laws.axes import TOKENS_PER_PARAM
from diloco.laws.spread import COLLINEAR, moves_with

ON_RELATION = 0.05
"""In logs: up to here a question is still on a relation."""

_LEAST_SHARE = 0.01
"""Of the follower's spread that a leader must move it by, to be one."""

_LEAST_DOF = 2
"""Runs to spare, under which several leaders explain anything."""

_WHOLE = 0.005
"""Of an exponent that is shown as a whole number."""


@dataclass(frozen=True)
class Relation:
    """axis = factor * product of leader^power, as the runs have it."""

    axis: str
    log_factor: float
    powers: dict[str, float]
    off: float
    """Of the runs, in logs, at most."""

    def at(self, point: Mapping[str, float]) -> float:
        """What goes with the leaders at `point`."""
        return float(np.exp(self.log_factor + sum(power * np.log(point[name]) for name, power in self.powers.items())))

    def __str__(self) -> str:
        return f"{self.axis} = {np.exp(self.log_factor):.3g} * " + " * ".join(
            name if abs(power - 1) < _WHOLE else f"{name}^{power:.2g}" for name, power in self.powers.items()
        )

    @property
    def leaders(self) -> str:
        """ "params", "params and replicas"."""
        return listed([*self.powers])

    @property
    def axes(self) -> str:
        """ "params, replicas and tokens"."""
        return listed([*self.powers, self.axis])


def listed(names: Sequence[str]) -> str:
    """ "a, b and c"."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def relation(axis: str, columns: Mapping[str, np.ndarray], leaders: Sequence[str], share: float) -> Relation | None:
    """How `axis` follows those of `leaders` that move it; None where they explain less than `share` of its variance.

    With too few runs to tell several leaders apart, the nearest one alone.
    """
    y = np.log(columns[axis])
    spread = float(y.std())
    kept = [name for name in leaders if np.ptp(np.log(columns[name])) > 0]
    if len(kept) > 1 and len(y) - len(kept) - 1 < _LEAST_DOF:
        kept = [max(kept, key=lambda name: abs(moves_with(columns[name], columns[axis])))]
    while kept and spread > 0:
        logs = np.stack([np.log(columns[name]) for name in kept], axis=1)
        middle = logs.mean(axis=0)
        powers = np.linalg.lstsq(logs - middle, y - y.mean(), rcond=1e-10)[0]
        off = y - y.mean() - (logs - middle) @ powers
        if off.var() > (1 - share) * y.var():
            return None
        moved = np.abs(powers) * logs.std(axis=0) > _LEAST_SHARE * spread
        if moved.all():
            start = float(y.mean() - middle @ powers)
            return Relation(axis, start, dict(zip(kept, map(float, powers), strict=True)), float(np.abs(off).max()))
        kept = [name for name, does in zip(kept, moved, strict=True) if does]
    return None


def relations(columns: Mapping[str, np.ndarray]) -> list[Relation]:
    """For each axis that follows one before it, or several of them together."""
    free: list[str] = []
    found = []
    # Tokens are set by the size and the replicas, and not they by it.
    for axis, values in sorted(columns.items(), key=lambda item: item[0] in ("tokens", TOKENS_PER_PARAM)):
        near = [name for name in free if abs(moves_with(columns[name], values)) > COLLINEAR][:1]
        follows = relation(axis, columns, near or (free if len(free) > 1 else []), COLLINEAR**2)
        if follows:
            found.append(follows)
        else:
            free.append(axis)
    return found
