"""What every exchange offers, and what they share: agreeing before the start, and counting bytes."""

from __future__ import annotations

import json
from typing import Protocol

from torch import Tensor

from diloco.errors import BadInput
from diloco.outer.round import Round

Facts = dict[str, object]


class Exchange(Protocol):
    """Joins M replicas. `run` drives a round (see `outer/round.py`) on behalf of one replica."""

    replicas: int

    def join(self, facts: Facts, tensors: list[Tensor]) -> int:
        """Checks that all replicas state the same facts, copies replica 0's tensors into everybody's, returns this
        replica's rank.

        Raises BadInput naming the first fact that differs, on all replicas alike and before a tensor travels.
        """
        ...

    def run(self, rank: int, round: Round) -> None: ...


def check_equal(facts: list[Facts]) -> None:
    """`facts`: one entry per replica. Raises BadInput naming the first key, or line of a list, in which a replica
    differs from replica 0."""
    # Through JSON first, so that facts that travelled and facts that did not compare alike.
    first, *others = [json.loads(json.dumps(f)) for f in facts]
    for rank, other in enumerate(others, start=1):
        for key in [*first, *(k for k in other if k not in first)]:
            mine, theirs = first.get(key), other.get(key)
            if mine != theirs:
                raise BadInput(
                    f"{_difference(key, mine, theirs, rank)}: start all replicas with the same settings and model"
                )


def _difference(key: str, mine: object, theirs: object, rank: int) -> str:
    if isinstance(mine, list) and isinstance(theirs, list):
        missing, extra = [x for x in mine if x not in theirs], [x for x in theirs if x not in mine]
        here, there = (missing or ["nothing"])[0], (extra or ["nothing"])[0]
        return f"{key} differ: replica 0 has {here} where replica {rank} has {there}"
    return f"{key} differs: {mine!r} on replica 0, {theirs!r} on replica {rank}"


def sum_bytes(payload_bytes: int, replicas: int) -> int:
    """Bytes one replica sends to sum a payload over M replicas and get the result: 2 (M-1)/M of it, the least possible.

    Each sends 1/M of the payload to every other replica, and its own summed share to every other.
    """
    return 2 * (replicas - 1) * payload_bytes // replicas


def gather_bytes(payload_bytes: int, replicas: int) -> int:
    """Bytes one replica sends so that every replica holds every payload."""
    return (replicas - 1) * payload_bytes
