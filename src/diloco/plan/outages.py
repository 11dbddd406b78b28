"""One learner through its failures: when it steps, when it stands still, and what becomes of its chips.

A learner is a group of slices that step together. An elastic one drops a failed slice and takes it up again when it
returns, each at the price of a reconfiguration; any other stops until it is whole and goes on from its last checkpoint.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Rules:
    """What a learner does about a failure; all in seconds but `elastic` and `idle_failures`."""

    elastic: bool
    step_s: float
    detect_s: float
    restart_s: float
    downscale_s: float
    upscale_s: float
    return_s: float
    checkpoint_every_s: float
    checkpoint_s: float
    idle_failures: bool


@dataclass
class Timeline:
    """A learner's time: outages, (n, 2) seconds, apart and in order, in which no work was done or none that lasted.

    The rest is slice-seconds; `useful` to `spare` sum to (slices + spares) * horizon.
    """

    useful: float = 0.0
    lost: float = 0.0
    checkpoint: float = 0.0
    stopped: float = 0.0
    away: float = 0.0
    spare: float = 0.0
    struck: int = 0
    stops: int = 0
    outages: NDArray = None  # type: ignore[assignment]


def live_through(times: NDArray, struck: NDArray, slices: int, spares: int, horizon_s: float, rules: Rules) -> Timeline:
    """A learner's timeline under failures at `times` of the slices `struck`, both (F,), by time.

    Time goes with the number of failures, whatever the number of chips, steps or days.
    """
    learner = _Learner(slices, spares, rules)
    away: deque[float] = deque()  # a fixed time to return: first gone, first back
    # chip counts reach millions, failures hundreds of thousands: plain floats are faster here than numpy's scalars
    for time, slot in zip(times.tolist(), struck.tolist(), strict=True):
        while away and away[0] <= time:
            learner.back(away.popleft())
        if learner.fail(time, slot):
            away.append(time + rules.return_s)
    while away and away[0] < horizon_s:
        learner.back(away.popleft())
    return learner.finish(horizon_s)


class _Learner:
    """Stepping since `ready` where that is past, standing still until `ready` where it is to come."""

    def __init__(self, slices: int, spares: int, rules: Rules) -> None:
        self.slices, self.spare, self.up = slices, spares, slices
        self.rules = rules
        self.total = slices + spares
        self.now = self.ready = self.known = 0.0
        self.dead: deque[int] = deque()
        self.is_dead = bytearray(slices)
        self.needed = 1 if rules.elastic else slices
        self.time = Timeline()
        self.outages: list[tuple[float, float]] = []
        self.since: float | None = None

    def fail(self, time: float, slot: int) -> bool:
        """A chip of `slot` fails; False where that changes nothing."""
        stepping = time >= self.ready
        if self.is_dead[slot] or not (stepping or self.rules.idle_failures):
            return False
        self._pass(time)
        self.time.struck += 1
        hard = not self.rules.elastic or (self.up == 1 and not self.spare)
        if stepping:
            self._stop(time, self._end_run(time, hard))
        if self.spare:
            self.spare -= 1
        else:
            self.is_dead[slot] = 1
            self.dead.append(slot)
            self.up -= 1
        self.known = time + self.rules.detect_s
        if self.up < self.needed:
            self.ready = math.inf
        else:
            again = self.known + (self.rules.restart_s if hard else self.rules.downscale_s)
            self.ready = max(self.ready, again)
        return True

    def back(self, time: float) -> None:
        """The slice that has been away longest is whole again."""
        self._pass(time)
        if not self.dead:
            self.spare += 1
            return
        self.is_dead[self.dead.popleft()] = 0
        self.up += 1
        if self.ready == math.inf and self.up >= self.needed:
            self.ready = max(time, self.known) + self.rules.restart_s
        elif time >= self.ready:
            self._stop(time, self._end_run(time, None))
            self.ready = time + self.rules.upscale_s
        # where a reconfiguration is under way, the slice joins in it

    def finish(self, horizon_s: float) -> Timeline:
        self._pass(horizon_s)
        if horizon_s > self.ready:
            self._end_run(horizon_s, None)
        if self.since is not None:
            self.outages.append((self.since, min(self.ready, horizon_s)))
        self.time.outages = np.array(self.outages).reshape(-1, 2)
        return self.time

    def _pass(self, time: float) -> None:
        """Books the slices' time up to now; a run is booked as useful here and corrected at its end."""
        passed = time - self.now
        still = min(time, self.ready) - self.now if self.ready > self.now else 0.0
        book = self.time
        book.useful += self.up * (passed - still)
        book.stopped += self.up * still
        book.spare += self.spare * passed
        book.away += (self.total - self.up - self.spare) * passed
        self.now = time

    def _end_run(self, time: float, hard: bool | None) -> float:
        """Takes checkpoints, and work that a failure undoes, out of the run that ends. Seconds undone.

        `hard` is None for an end that undoes nothing, True for one that undoes all since the last checkpoint.
        """
        rules, run = self.rules, time - self.ready
        cycle = rules.checkpoint_every_s + rules.checkpoint_s
        undone = 0.0 if hard is None else run % (cycle if hard else rules.step_s)
        saving = (run - undone) * rules.checkpoint_s / cycle
        self.time.lost += self.up * undone
        self.time.checkpoint += self.up * saving
        self.time.useful -= self.up * (undone + saving)
        return undone

    def _stop(self, time: float, undone: float) -> None:
        if self.since is not None:
            self.outages.append((self.since, self.ready))
        self.since = time - undone
        self.time.stops += 1
