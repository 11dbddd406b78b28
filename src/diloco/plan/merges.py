"""Learners that meet at merges, with a quorum, a grace time and outages: who waits, and whose work comes too late.

Shapes: R windows, M learners.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class MergeRules:
    """When a merge closes and what becomes of who comes too late."""

    quorum: int
    grace: float = 0.0
    """Share, below 1, of the slack that is waited for more learners (gamma of arXiv:2604.21428)."""
    overlap_s: float = 0.0
    """Work a learner does on its old weights before it needs the merge's result."""
    sync_s: float = 0.0
    """From closing a merge to its result at the learners."""
    timeout_s: float = math.inf
    """After the first arrival a merge closes, quorum or not."""
    drop_late: bool = False
    """Late work is thrown away for the merged weights; else it counts in the next merge, and nobody waits for it."""
    shared_clock: bool = False
    """A learner that stood still goes on at the step of the furthest, so it is behind only while it stands still."""


@dataclass
class Merges:
    """Seconds of each learner, all (M,), up to `horizon_s`, and what was merged."""

    waiting_s: list[float]
    dropped_s: list[float]
    on_time: list[int]
    """Merges that a learner was in before they closed."""
    merges: int = 0
    horizon_s: float = 0.0


def meet(
    work_s_RM: Iterable[Sequence[float]], rules: MergeRules, horizon_s: float, outages: Sequence[NDArray] | None = None
) -> Merges:
    """Runs learners from merge to merge until `horizon_s` or until the windows are used up.

    Window r of learner m takes `work_s_RM[r][m]` seconds of work; `outages[m]`, (n, 2), are times in which m does
    none. A merge closes when the K-th learner has arrived, plus grace * slack where slack = overlap - (time from first
    to K-th arrival + sync) is above 0 (arXiv:2604.21428). Time goes with merges and outages, not with steps.
    """
    windows = iter(work_s_RM)
    first = next(windows)
    learners = [_Learner(rows, horizon_s) for rows in (outages if outages is not None else [_NONE] * len(first))]
    for learner, work_s in zip(learners, first, strict=True):
        learner.begin(0.0, work_s)
    merges, now = 0, 0.0
    for work_s_M in windows:
        if rules.shared_clock:
            furthest = min(learner.arrival for learner in learners)
            for learner in learners:
                learner.take_clock(furthest)
        arrivals = sorted(learner.arrival for learner in learners)
        close = _close(arrivals, rules)
        if close + rules.sync_s >= horizon_s:
            now = horizon_s
            break
        merges, now = merges + 1, close + rules.sync_s
        for learner, work_s in zip(learners, work_s_M, strict=True):
            learner.merge(close, now, work_s, rules)
    for learner in learners:
        learner.end(now, rules)
    waiting, dropped, parts = ([getattr(one, name) for one in learners] for name in ("waiting", "dropped", "parts"))
    return Merges(waiting, dropped, parts, merges, now)


def _close(arrivals: list[float], rules: MergeRules) -> float:
    first, quorum = arrivals[0], arrivals[rules.quorum - 1]
    slack = rules.overlap_s - (quorum - first + rules.sync_s)
    return min(quorum + rules.grace * max(0.0, slack), first + rules.timeout_s)


_NONE = np.empty((0, 2))


@dataclass
class _Learner:
    """A walk over one learner's outages; `at` only moves forward."""

    outages_N2: NDArray
    horizon_s: float
    waiting: float = 0.0
    dropped: float = 0.0
    parts: int = 0
    arrival: float = 0.0
    begun: float = 0.0
    passing: float = 0.0
    """Until then the learner is in a window whose merge has closed without it."""
    at: int = 0
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.starts = [*self.outages_N2[:, 0].tolist(), math.inf]
        self.ends = [*self.outages_N2[:, 1].tolist(), math.inf]

    def begin(self, time: float, work_s: float) -> None:
        self.begun, self.arrival = time, self._after(time, work_s)

    def take_clock(self, furthest: float) -> None:
        """After an outage in this window: to arrive with the furthest, or when the outage is over."""
        if self.arrival <= furthest:
            return
        over = self._outage_over(furthest)
        if over > furthest:
            # it is back in step then, out of any window that had missed its merge
            self.arrival, self.begun, self.passing = min(self.arrival, over), min(self.begun, furthest), 0.0
        elif over > self.begun:
            self.arrival = furthest

    def _outage_over(self, time: float) -> float:
        """End of the outage that covers `time`, else of the last before it, else 0."""
        self._skip(time)
        if self.starts[self.at] <= time:
            return self.ends[self.at]
        return self.ends[self.at - 1] if self.at else 0.0

    def merge(self, close: float, done: float, work_s: float, rules: MergeRules) -> None:
        if self.arrival <= close:
            ahead = self._after(self.arrival, rules.overlap_s)
            self.parts += 1
            self.waiting += self._up_s(ahead, done)
            # a window shorter than the overlap cannot run ahead by more than itself
            left = max(0.0, work_s - rules.overlap_s)
            self.begun, self.arrival = self.arrival, self._after(max(ahead, done), left)
        elif rules.drop_late:
            self.dropped += self._up_s(self.begun, done)
            self.begin(done, work_s)
        elif rules.shared_clock and self._outage_over(close) > self.begun:
            self.begin(close, work_s)
        elif close >= self.passing:
            self.passing = self.arrival
            self.begin(self.arrival, work_s)

    def end(self, time: float, rules: MergeRules) -> None:
        """Who stands at the last merge has waited for it."""
        if self.arrival < time:
            self.waiting += self._up_s(self._after(self.arrival, rules.overlap_s), time)

    def _after(self, time: float, work_s: float) -> float:
        """When `work_s` seconds of work from `time` on are done; inf where an outage lasts to the end."""
        if time == math.inf:
            return math.inf
        self._skip(time)
        at, starts, ends = self.at, self.starts, self.ends
        while True:
            time = max(time, ends[at - 1]) if at else time
            if time + work_s <= starts[at]:
                return time + work_s
            work_s -= max(0.0, starts[at] - time)
            if ends[at] >= self.horizon_s:
                return math.inf
            time, at = ends[at], at + 1

    def _up_s(self, start: float, end: float) -> float:
        """Seconds from start to end without the outages between."""
        if end <= start:
            return 0.0
        self._skip(start)
        at, up = self.at, end - start
        while self.starts[at] < end:
            up -= max(0.0, min(self.ends[at], end) - max(self.starts[at], start))
            at += 1
        return up

    def _skip(self, time: float) -> None:
        """Past the outages that are over at `time`; times asked for hardly ever go back, and then by a window."""
        at = self.at
        while self.ends[at] <= time:
            at += 1
        while at and self.ends[at - 1] > time:
            at -= 1
        self.at = at
