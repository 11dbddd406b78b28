"""What share of all chip-time trains the model, under failures and stragglers.

Goodput = chip-seconds of inner steps whose result stays in the model, over all chip-seconds paid for (spares too).
The rest goes to the other parts of `Goodput.breakdown`; together they are 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from diloco.errors import BadInput
from diloco.plan.fleet import Fleet, failures, number, whole
from diloco.plan.merges import Merges, meet
from diloco.plan.outages import Timeline, live_through
from diloco.plan.policy import Policy, assumed, split
from diloco.plan.stragglers import slowest
from diloco.units import DAY_S

WINDOWS_MOST = 400_000
"""Windows, of all learners together, that are played one by one; what is seen in them stands for the rest.
An eighth of it where nobody waits and only who comes on time is asked."""

PARTS = (
    "useful", "straggling", "waiting", "dropped", "lost", "checkpoint", "stopped", "away", "spare",
)  # fmt: skip
"""useful: goodput. straggling: fast slices wait for the slowest in a step. waiting: learners wait for a merge. dropped:
work that came too late for a merge. lost: undone by a failure. checkpoint: writing them. stopped: detection, restart,
reconfiguration, or too few slices. away: failed slices. spare: idle spares."""

_OF_A_TIMELINE = ("useful", "lost", "checkpoint", "stopped", "away", "spare")


@dataclass(frozen=True)
class Goodput:
    """Means over the repeats; `se` is the standard error of `mean`, `runs` the goodput of each repeat."""

    mean: float
    se: float
    runs: tuple[float, ...]
    breakdown: dict[str, float]
    failures: float
    """That struck a slice in service."""
    stops: float
    """Times that some learner stopped stepping, for a failure or a return."""
    uptime: float
    """Share of the time in which at least a quorum of the learners steps."""
    merges: float
    """Outer steps; 0 where nothing is merged, and an estimate beyond `WINDOWS_MOST`."""
    on_time: float
    """Share of the learners that are in a merge before it closes; the work of the rest is late. 1 for one learner."""
    assumptions: tuple[str, ...]


FAILURES_MOST = 10_000_000
"""In one repeat; some two minutes and a gigabyte."""


@dataclass(frozen=True)
class _Span:
    days: float
    seed: int
    repeats: int

    def __post_init__(self) -> None:
        number(self, "days", 1e-6, 36_525)
        whole(self, "seed", 0, 2**63 - 1)
        whole(self, "repeats", 1, 10_000)

    def affordable(self, fleet: Fleet) -> None:
        most = FAILURES_MOST * fleet.mtbi_days / fleet.chips
        if self.days > most:
            raise BadInput(
                f"days is {self.days:g}, in which {fleet.chips} chips fail some {self.days / most * FAILURES_MOST:.3g} "
                f"times: give at most {most:.3g} days, which stand for more"
            )


def simulate(fleet: Fleet, policy: Policy, days: float = 30.0, seed: int = 0, repeats: int = 1) -> Goodput:
    """Plays `days` of training `repeats` times, failure by failure; the same seed gives the same answer.

    Time goes with n log n in the number of failures, and with the number of merges where learners wait for each other.

    Raises:
        BadInput: numbers that cannot be, more learners than chips, or more failures than can be played.
    """
    span = _Span(days, seed, repeats)
    span.affordable(fleet)
    seeds = np.random.SeedSequence(int(span.seed)).spawn(int(span.repeats))
    runs = [_play(fleet, policy, span.days * DAY_S, one) for one in seeds]
    goodputs = np.array([run["useful"] for run in runs])
    se = float(goodputs.std(ddof=1) / math.sqrt(len(runs))) if len(runs) > 1 else math.nan
    lines = assumed(fleet, policy)
    if (played := min(run["played"] for run in runs)) < 1:
        lines += (f"Merges are played over the first {played:.0%} of the time, which stands for the rest.",)
    mean = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
    return Goodput(
        mean=mean["useful"],
        se=se,
        runs=tuple(goodputs.tolist()),
        breakdown={name: mean[name] for name in PARTS},
        failures=mean["failures"],
        stops=mean["stops"],
        uptime=mean["uptime"],
        merges=mean["merges"],
        on_time=mean["on_time"],
        assumptions=lines,
    )


def _play(fleet: Fleet, policy: Policy, horizon_s: float, seed: np.random.SeedSequence) -> dict[str, float]:
    rules = policy.rules(fleet)
    shares = split(fleet, policy)
    slowest_mean, slowest_sd = slowest(shares.slices, fleet.step_jitter)
    rngs = [np.random.default_rng(one) for one in seed.spawn(policy.learners + 1)]
    lines = []
    for rng in rngs[1:]:
        times, struck = failures(rng, shares.chips, shares.slices, horizon_s, fleet)
        lines.append(live_through(times, struck, shares.slices, shares.spares, horizon_s, rules))
    part = dict.fromkeys(PARTS, 0.0)
    part |= {name: sum(getattr(line, name) for line in lines) for name in _OF_A_TIMELINE}
    seen = {"played": 1.0, "merges": 0.0, "on_time": 1.0}
    if policy.learners > 1:
        windows = _windows(rngs[0], fleet, policy, slowest_mean, slowest_sd)
        met = meet(windows, policy.merge_rules(), horizon_s, [line.outages for line in lines])
        played = met.horizon_s / horizon_s
        seen["merges"] = met.merges / played
        seen["on_time"] = sum(met.on_time) / (policy.learners * max(1, met.merges))
        if policy.couples:
            seen["played"] = played
            _book_meetings(part, lines, met, horizon_s)
    part["straggling"] = part["useful"] * (1 - 1 / slowest_mean)
    part["useful"] /= slowest_mean
    total = policy.learners * (shares.slices + shares.spares) * horizon_s
    seen |= {"failures": sum(line.struck for line in lines), "stops": sum(line.stops for line in lines)}
    seen["uptime"] = _uptime(lines, policy.quorum, horizon_s)
    return seen | {name: value / total for name, value in part.items()}


def _book_meetings(part: dict[str, float], lines: list[Timeline], met: Merges, horizon_s: float) -> None:
    """Seconds that learners waited or worked in vain, as slice-seconds of those that would have stepped.

    What was seen in a part of the time stands for all, but never for more than a learner stepped.
    """
    for line, waiting_s, dropped_s in zip(lines, met.waiting_s, met.dropped_s, strict=True):
        stepping_s = horizon_s - float(np.sum(line.outages[:, 1] - line.outages[:, 0]))
        most = stepping_s / max(waiting_s + dropped_s, 1e-9)
        for name, seconds in (("waiting", waiting_s), ("dropped", dropped_s)):
            if stepping_s > 0:
                booked = seconds * min(horizon_s / met.horizon_s, most) * line.useful / stepping_s
                part[name] += booked
                part["useful"] -= booked


def _windows(
    rng: np.random.Generator, fleet: Fleet, policy: Policy, slowest_mean: float, slowest_sd: float
) -> Iterator[list[float]]:
    """Seconds of work of each learner's next window, (M,); the sum of a window's many steps is drawn as normal."""
    speeds = np.resize(fleet.speeds, policy.learners)
    mean = policy.window_s(slowest_mean) / speeds
    sd = policy.step_s * slowest_sd * math.sqrt(policy.sync_every) / speeds
    most = max(2, WINDOWS_MOST // (1 if policy.couples else 8) // policy.learners)
    rows = min(1000, most)
    for _ in range(most // rows):
        yield from np.maximum(rng.normal(mean, sd, (rows, policy.learners)), 0.1 * mean).tolist()


def _uptime(lines: list[Timeline], quorum: int, horizon_s: float) -> float:
    """Share of the time in which at least `quorum` of the learners are outside their outages."""
    spans = np.concatenate([line.outages for line in lines])
    times: NDArray = np.concatenate([[0.0], spans[:, 0], spans[:, 1], [horizon_s]])
    change = np.concatenate([[0], -np.ones(len(spans)), np.ones(len(spans)), [0]])
    order = np.argsort(times, kind="stable")
    up = len(lines) + np.cumsum(change[order])[:-1]
    return float(np.sum(np.diff(times[order])[up >= quorum]) / horizon_s)
