"""The ranks that together hold one replica, as the algorithm sees them: they have to decide alike.

Whether a replica is finite, how long its outer gradient is and whether its anchors agree with the others' are questions
about the whole replica, of which each rank knows its own part. What is held by several ranks (norm gains under tensor
parallelism, an embedding tied over two pipeline stages) is counted on one of them, its owner.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from diloco.outer.report import Mismatch


@dataclass(frozen=True)
class Shared:
    """A part that several ranks of an island hold alike, as each of the island's ranks sees it."""

    name: str | None
    """None on a rank that does not hold it."""
    numel: int
    owner: bool
    """Whether this rank's values are the ones that count."""
    apart: bool
    """Whether those who hold it hold different things beside it, so that a codec may round it differently."""


class Island(Protocol):
    size: int
    rank: int

    def gather(self, row: Tensor, apart: bool = True) -> Tensor:
        """A CPU tensor of the same shape on each rank -> all of them, [size, *row.shape], the same on all.

        `apart` from the rounds that may be on their way in another thread.
        """
        ...

    def gather_json(self, value: object) -> list:
        """The same for a JSON value."""
        ...

    def sum(self, values: Tensor) -> Tensor:
        """The sum over the ranks of a flat tensor, in its memory; as part of a round."""
        ...


class Alone:
    """A replica on one device."""

    size, rank = 1, 0

    def gather(self, row: Tensor, apart: bool = True) -> Tensor:
        return row[None]

    def gather_json(self, value: object) -> list:
        return [value]

    def sum(self, values: Tensor) -> Tensor:
        return values


def any_of(island: Island, flag: bool) -> bool:
    """Whether it holds on any rank."""
    return bool(island.gather(torch.tensor([float(flag)])).any())


def length(island: Island, norms: list[float], apart: bool = True) -> float:
    """The norm of a vector of which each rank gives the norms of the parts it owns."""
    own = torch.tensor([math.hypot(*norms)], dtype=torch.float64)
    return math.hypot(*island.gather(own, apart).flatten().tolist())


def agree(island: Island, finite: bool, steps: tuple[int, ...], norms: list[float], apart: bool) -> tuple[bool, float]:
    """Whether all ranks are finite, and the replica's norm. Raises Mismatch where they do not stand at the same
    `steps` (numbers that they have to have in common)."""
    own = torch.tensor([finite, math.hypot(*norms), *steps], dtype=torch.float64)
    rows = island.gather(own, apart)
    if (rows[:, 2:] != rows[0, 2:]).any():
        raise Mismatch(
            "the ranks of one replica came to a sync with different (steps in the window, inner step, tokens): "
            f"{[[int(n) for n in row] for row in rows[:, 2:].tolist()]}; each must take the same steps, and count the "
            "tokens of the whole replica"
        )
    return bool(rows[:, 0].all()), math.hypot(*rows[:, 1].tolist())
