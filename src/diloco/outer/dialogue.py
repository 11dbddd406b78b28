"""What a replica asks of the network, as values.

A round is written as a dialogue: a generator that yields one of these requests and is sent the reply. It is the same
generator whether an exchange drives M of them in one process or one in each of M processes (see `wire/`), so the two
give the same bits by construction.

`members` are the replicas a request is among: all of them, those of one site, or the sites' leaders.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable
from dataclasses import dataclass

from torch import Tensor

Members = tuple[int, ...]


@dataclass(frozen=True)
class Sum:
    """Elementwise sum over the members in rank order; the number of members divides the length of `values`.

    Each sends 1/M of it to every other, which adds up what it was sent, and its own summed share to every other: the
    least possible. Reply: the sum, in the memory of `values`.
    """

    values: Tensor
    members: Members

    def bytes_sent(self, rank: int) -> int:
        count = len(self.members)
        return 2 * (count - 1) * self.values.nbytes // count

    @property
    def hops(self) -> int:
        """One-way delays before the reply can be there, one after the other."""
        return len(self.members) - 1 + min(len(self.members) - 1, 1)


@dataclass(frozen=True)
class Swap:
    """Part j of `values`, `sizes[j]` elements of it, goes to the j-th member.

    Reply: what each member had for this one, [members, own size].
    """

    values: Tensor
    sizes: tuple[int, ...]
    members: Members

    def bytes_sent(self, rank: int) -> int:
        own = self.sizes[self.members.index(rank)]
        return (self.values.numel() - own) * self.values.element_size()

    @property
    def hops(self) -> int:
        return min(len(self.members) - 1, 1)


@dataclass(frozen=True)
class Gather:
    """Every member's `values`, of the same shape everywhere. Reply: [members, ...] in rank order."""

    values: Tensor
    members: Members

    def bytes_sent(self, rank: int) -> int:
        return (len(self.members) - 1) * self.values.nbytes

    @property
    def hops(self) -> int:
        return len(self.members) - 1


@dataclass(frozen=True)
class Collect:
    """Every member's `values` to the first member. Reply: [members, ...] there, None elsewhere."""

    values: Tensor
    members: Members

    def bytes_sent(self, rank: int) -> int:
        return 0 if rank == self.members[0] else self.values.nbytes

    @property
    def hops(self) -> int:
        return min(len(self.members) - 1, 1)


@dataclass(frozen=True)
class Spread:
    """The first member's `values` to all. Reply: they, in the memory of `values`."""

    values: Tensor
    members: Members

    def bytes_sent(self, rank: int) -> int:
        return (len(self.members) - 1) * self.values.nbytes if rank == self.members[0] else 0

    @property
    def hops(self) -> int:
        return min(len(self.members) - 1, 1)


Request = Sum | Swap | Gather | Collect | Spread


@dataclass(frozen=True)
class Pipeline:
    """Dialogues that may run side by side, begun in order, a few at a time. Reply: None when all have ended."""

    talks: Iterable[Dialogue]


Dialogue = Generator["Request | Pipeline", "Tensor | None", None]


@dataclass(frozen=True)
class Topology:
    """Who is where: the replicas of each site, in rank order. One site is the plain, flat case."""

    sites: tuple[Members, ...]

    @property
    def everyone(self) -> Members:
        return tuple(sorted(rank for site in self.sites for rank in site))

    @property
    def leaders(self) -> Members:
        return tuple(site[0] for site in self.sites)

    @property
    def unit(self) -> int:
        """Sums are padded to a multiple of this, so that every member has an equal share."""
        return math.lcm(len(self.everyone), len(self.leaders))

    def site_of(self, rank: int) -> Members:
        return next(site for site in self.sites if rank in site)

    def is_inside(self, members: Members) -> bool:
        """Whether all members are of one site, so that their messages do not leave it."""
        return len(self.sites) > 1 and any(set(members) <= set(site) for site in self.sites)
