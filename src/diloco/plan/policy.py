"""How chips are coupled, and what is done about a failure: data parallel, elastic, DiLoCo, decoupled learners."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from diloco.errors import BadInput
from diloco.plan.fleet import Fleet, number, whole
from diloco.plan.merges import MergeRules
from diloco.plan.outages import Rules


@dataclass(frozen=True)
class Policy:
    """M learners of equal size, what each does about failures, and how they merge.

    Start from `static`, `elastic_data_parallel`, `synchronous` or `decoupled` and change what you know better.

    Raises:
        BadInput: an option out of its range, with the nearest that is in it.
    """

    learners: int = 1
    elastic: bool = False
    """A learner drops failed slices and goes on; else it stops until it is whole again."""
    step_s: float = 1.0
    """Mean time of one slice's inner step; what a failure interrupts in an elastic learner."""
    detect_s: float = 10.0
    """From a failure until it is known."""
    restart_s: float = 300.0
    """To load the last checkpoint and start."""
    downscale_s: float = 60.0
    """To go on with a slice less, or with a spare in its place."""
    upscale_s: float = 60.0
    """To take a slice in again."""
    checkpoint_every_s: float | None = None
    """Work between checkpoints; None: a copy in other chips' memory after every step, which costs no time."""
    checkpoint_s: float = 0.0
    """In which the learner stands still for one checkpoint."""
    sync_every: int = 100
    """H: inner steps between two merges of a learner."""
    quorum: int = 1
    """K: learners that a merge waits for."""
    grace: float = 0.0
    """Share of the slack that is waited for more learners; below 1."""
    overlap: int = 0
    """tau: inner steps that a learner goes on before it needs a merge's result."""
    sync_s: float = 0.0
    """From closing a merge to its result at the learners."""
    timeout_s: float | None = None
    """After the first learner's arrival a merge goes on without those missing; None: it waits for the quorum."""
    drop_late: bool = False
    """Work that misses its merge is thrown away; else it counts, by its tokens, in the next one."""
    shared_clock: bool = False
    """A learner that stood still takes on the step count of the furthest when it goes on; else it does all H steps."""

    def __post_init__(self) -> None:
        whole(self, "learners", 1, 10_000)
        number(self, "step_s", 1e-6, 1e6)
        for name in ("detect_s", "restart_s", "downscale_s", "upscale_s", "checkpoint_s", "sync_s"):
            number(self, name, 0, 1e9)
        for name in ("checkpoint_every_s", "timeout_s"):
            if getattr(self, name) is not None:
                number(self, name, 1e-6, 1e9)
        whole(self, "sync_every", 1, 10**9)
        whole(self, "quorum", 1, self.learners)
        number(self, "grace", 0, 0.999)
        whole(self, "overlap", 0, self.sync_every)

    @property
    def couples(self) -> bool:
        """Whether learners can wait for each other or miss a merge."""
        return self.quorum > 1 or self.drop_late or self.sync_s > self.overlap * self.step_s

    def rules(self, fleet: Fleet) -> Rules:
        """What a learner does about a failure."""
        own = ("elastic", "step_s", "detect_s", "restart_s", "downscale_s", "upscale_s", "checkpoint_s")
        every = self.step_s if self.checkpoint_every_s is None else self.checkpoint_every_s
        shared = {"return_s": fleet.return_s, "idle_failures": fleet.idle_failures, "checkpoint_every_s": every}
        return Rules(**{name: getattr(self, name) for name in own}, **shared)

    def merge_rules(self) -> MergeRules:
        """When a merge closes."""
        timeout_s = math.inf if self.timeout_s is None else self.timeout_s
        overlap_s = self.overlap * self.step_s
        return MergeRules(self.quorum, self.grace, overlap_s, self.sync_s, timeout_s, self.drop_late, self.shared_clock)

    def window_s(self, slowest_mean: float) -> float:
        """A window's mean time without failures: H steps of the slowest slice, and its checkpoints."""
        every = self.checkpoint_every_s or self.step_s
        return self.sync_every * self.step_s * slowest_mean * (1 + self.checkpoint_s / every)


def static(**options: Any) -> Policy:
    """Data parallel over all chips: any failure stops all of them."""
    return Policy(**options)


def elastic_data_parallel(**options: Any) -> Policy:
    """Data parallel that goes on with the slices that are left."""
    return Policy(**{"elastic": True} | options)


def synchronous(learners: int, go_on_after_s: float | None = None, **options: Any) -> Policy:
    """DiLoCo: every merge waits for all learners, or goes on without them `go_on_after_s` after the first arrival.

    A learner restarts from the last merge, and one that comes too late takes the merged weights and loses its window.
    """
    given = {"learners": learners, "quorum": learners, "timeout_s": go_on_after_s} | options
    policy = Policy(**given | {"drop_late": go_on_after_s is not None})
    if policy.elastic or policy.checkpoint_every_s is not None:
        return policy
    return replace(policy, checkpoint_every_s=policy.sync_every * policy.step_s)


def decoupled(learners: int, quorum: int = 1, **options: Any) -> Policy:
    """Elastic learners on their own clocks, merged from `quorum` on (Decoupled DiLoCo: H=24, tau=2, K=1)."""
    usual = {"elastic": True, "sync_every": 24, "overlap": 2, "grace": 0.5, "shared_clock": True}
    return Policy(**usual | {"learners": learners, "quorum": quorum} | options)


class Share(NamedTuple):
    """What one learner has."""

    chips: float
    slices: int
    spares: int


def split(fleet: Fleet, policy: Policy) -> Share:
    """A learner's chips, slices and spare slices. Raises BadInput where there are more learners than chips."""
    if policy.learners > fleet.chips:
        near = fleet.chips
        raise BadInput(f"learners is {policy.learners}, more than the {fleet.chips} chips: the nearest is {near}")
    chips = fleet.chips / policy.learners
    slices = max(1, round(chips / fleet.slice_chips))
    return Share(chips, slices, int(fleet.spare_chips / policy.learners / (chips / slices)))


def assumed(fleet: Fleet, policy: Policy) -> tuple[str, ...]:
    """What an answer rests on, a sentence each."""
    share = split(fleet, policy)
    law = "without memory" if fleet.weibull_shape == 1 else f"as a Weibull law of shape {fleet.weibull_shape:g}"
    idle = "fail too" if fleet.idle_failures else "do not fail"
    who = "The one learner has" if policy.learners == 1 else f"Each of {policy.learners} learners has"
    lines = [
        f"Each chip fails every {fleet.mtbi_days:g} days on average, {law}, alone; chips that stand still {idle}.",
        f"{who} {share.slices} slices of {share.chips / share.slices:.6g} chips and "
        f"{share.spares} spare slices; a failed slice is whole again after {fleet.return_s:g} s.",
        f"A failure is known after {policy.detect_s:g} s.",
        _on_failure(policy),
    ]
    if fleet.idle_failures:
        lines.append("A failure during a stop or a reconfiguration starts it anew.")
    else:
        lines.append("A slice that returns during a reconfiguration joins in it.")
    if policy.learners > 1:
        lines.append(_on_merge(policy))
    if fleet.step_jitter:
        lines.append(f"A slice's steps vary by {fleet.step_jitter:g} in the log, independently; the slowest decides.")
    if len(set(fleet.speeds)) > 1:
        lines.append("Learners differ in speed; chip-time counts alike on fast and slow chips.")
    return tuple(lines)


def _on_failure(policy: Policy) -> str:
    every, restart = policy.checkpoint_every_s, f"{policy.restart_s:g} s"
    copies = "a copy of the last step in other chips' memory"
    if every is not None:
        copies = f"its checkpoint, each {every:g} s of work at a price of {policy.checkpoint_s:g} s"
    if policy.elastic:
        return (
            f"A learner loses the interrupted step, goes on with fewer slices {policy.downscale_s:g} s later and takes "
            f"a slice in again in {policy.upscale_s:g} s; with no slice left it restarts from {copies} in {restart}."
        )
    return f"A learner stops until it is whole and restarts from {copies} in {restart}."


def _on_merge(policy: Policy) -> str:
    late = "is thrown away" if policy.drop_late else "counts in the next one"
    wait = "" if policy.timeout_s is None else f", at most {policy.timeout_s:g} s after the first"
    behind = "takes on the step count of the furthest" if policy.shared_clock else "does all steps of its window"
    return (
        f"A merge every {policy.sync_every} steps of {policy.step_s:g} s waits for {policy.quorum} of the "
        f"{policy.learners} learners{wait}; work that comes too late {late}; a learner that stood still {behind}; "
        f"results take {policy.sync_s:g} s."
    )
