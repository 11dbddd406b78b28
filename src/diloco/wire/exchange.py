"""What every exchange offers, and what they share: agreeing before the start, and counting bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from diloco.errors import BadInput
from diloco.outer.dialogue import Dialogue, Members, Topology
from diloco.outer.island import Island
from diloco.outer.report import RoundReport

Facts = dict[str, object]


class Job(Protocol):
    """What an exchange drives for one replica: a `Round`, or a `SiteAverage`."""

    members: Members
    """The replicas that take part, in rank order."""
    report: RoundReport
    apart: bool
    """Whether it may overtake jobs that are on their way. Its messages are then among the caller's own."""

    def talk(self) -> Dialogue: ...

    def land(self, step: int | None = None) -> None: ...


class Flight(Protocol):
    """A job on its way."""

    arrival_s: float
    """When it ends on a virtual clock; 0 without one."""

    def wait(self) -> None:
        """The inner steps stand still until its dialogue has ended. Raises what it raised."""
        ...

    def settle(self) -> None:
        """The same for somebody who looks at its result between two inner steps, which is no training time."""
        ...


class Exchange(Protocol):
    """Joins M replicas."""

    replicas: int
    topology: Topology
    device: torch.device | None
    """Where messages are taken from; None for wherever the model is."""
    site_every: int
    """Inner steps between two averages inside a site; 0 for none."""
    island: Island
    """The ranks that hold this replica together; `Alone` for one."""

    def agree(self, facts: Facts) -> None:
        """Checks that all replicas state the same facts, ahead of messages that hang upon them. Raises BadInput."""
        ...

    def refuse(self, sentence: str) -> None:
        """Instead of `agree`: tells the others why this replica will not join, so that they refuse too."""
        ...

    def join(self, facts: Facts, tensors: list[Tensor]) -> int:
        """Checks that all replicas state the same facts, copies replica 0's tensors into everybody's, returns this
        replica's rank.

        Raises BadInput naming the first fact that differs, on all replicas alike and before a tensor travels.
        """
        ...

    def run(self, rank: int, job: Job) -> None:
        """Drives a job to its end, `land` included. In one process that comes when the last replica has called."""
        ...

    def start(self, rank: int, job: Job) -> Flight:
        """Begins to drive a job while the replica goes on. The caller waits for it and lands it."""
        ...

    def arrived(self, rank: int, job: Job, arrival_s: float) -> Flight:
        """The flight of a job whose dialogue had ended when it was saved."""
        ...

    def step_begins(self) -> None:
        """The caller is about to compute: what went before (an evaluation, a save) is no training time."""
        ...

    def step_ends(self, *ranks: int) -> float:
        """The inner steps of these replicas are over. Returns the seconds that each took."""
        ...


@dataclass(frozen=True)
class Message:
    """One message, as told to an exchange's `on_message`."""

    kind: str
    """Sum, Swap, Gather, Collect or Spread (see `outer/dialogue.py`)."""
    members: Members
    bytes_sent: int
    """By this replica."""
    wait_s: float
    """Seconds its caller stood still for it. Virtual ones where a link is simulated in one process."""
    round: int
    fragment: int


REFUSED = "refused"


OF_A_PART = ("tensors", "frozen weights")
"""Facts about the part of a replica that one rank holds: its counterparts in the other replicas share them, the other
ranks of its island do not."""


def check_equal(facts: list[Facts], who: str = "replica") -> None:
    """`facts`: one entry per replica. Raises BadInput naming the first key, or line of a list, in which a replica
    differs from replica 0."""
    # Through JSON first, so that facts that travelled and facts that did not compare alike.
    first, *others = facts = [json.loads(json.dumps(f)) for f in facts]
    for rank, stated in enumerate(facts):
        if REFUSED in stated:
            raise BadInput(f"{stated[REFUSED]} ({who} {rank})")
    for rank, other in enumerate(others, start=1):
        for key in [*first, *(k for k in other if k not in first)]:
            mine, theirs = first.get(key), other.get(key)
            if mine != theirs:
                raise BadInput(
                    f"{_difference(key, mine, theirs, rank, who)}: start all replicas with the same settings and model"
                )


def _difference(key: str, mine: object, theirs: object, rank: int, who: str) -> str:
    if isinstance(mine, list) and isinstance(theirs, list):
        missing, extra = [x for x in mine if x not in theirs], [x for x in theirs if x not in mine]
        here, there = (missing or ["nothing"])[0], (extra or ["nothing"])[0]
        return f"{key} differ: {who} 0 has {here} where {who} {rank} has {there}"
    return f"{key} differs: {mine!r} on {who} 0, {theirs!r} on {who} {rank}"


def sum_bytes(payload_bytes: int, replicas: int) -> int:
    """Bytes one replica sends to sum a payload over M replicas and get the result: 2 (M-1)/M of it, the least possible.

    Each sends 1/M of the payload to every other replica, and its own summed share to every other.
    """
    return 2 * (replicas - 1) * payload_bytes // replicas
