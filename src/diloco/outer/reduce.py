"""How the replicas' contributions to one bucket become their merge, as a dialogue with the network.

Three ways, by what the codec and the merge allow:

    sum       linear merge, exact codec: the network sums fp32 in rank order
    gather    two members, or a sparse codec: every member gets every payload, decodes and merges alike
    owners    more members: each owns a part of the fragment, gets the others' payloads for it, merges in fp32, encodes
              the merge and sends it to all; as few bytes as a ring, two roundings instead of one

Every replica decodes the same payloads in the same order, so all end with the same bits. With error feedback what a
replica's rounding lost stays in its residual and joins its next contribution; what an owner's second rounding lost
joins the owner's (for linear merges: a trimmed mean would take it for an outlier).

Over two levels the members of a site first sum in fp32 at their leader; the leaders then do one of the above.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import torch
from torch import Tensor

from diloco.outer.codec import Codec, Key
from diloco.outer.dialogue import Collect, Gather, Members, Request, Spread, Sum, Swap, Topology
from diloco.outer.merge import Merge
from diloco.outer.step import divide

Part = tuple[int, int]

# The longest part that a member owns by itself, in elements. Shorter ones would balance the owners better (a bucket has
# sixteen of these), but a codec takes 0.1 to 0.2 ms a call, whatever the length.
PART_ELEMENTS = 1 << 17


Talk = Generator[Request, "Tensor | None", Tensor]


@dataclass
class Reduction:
    """One round's way of reducing: the same on all replicas but for rank and residual.

    `weights`: one per replica, 0 for those left out. `residual`: as long as the fragment, or None without feedback.
    `seed`: differs by round and fragment, the same on all replicas.
    """

    codec: Codec
    merge: Merge
    topology: Topology
    rank: int
    weights: list[float]
    seed: int
    numel: int
    residual: Tensor | None

    @property
    def count(self) -> int:
        """Replicas that take part."""
        return sum(w > 0 for w in self.weights)

    def bucket(self, lo: int, hi: int, values: Tensor) -> Talk:
        """`values`: this replica's weighted outer gradient of [lo, hi), padded to a multiple of `topology.unit`; it is
        written over. Returns the merge, [hi - lo]."""
        if len(self.topology.sites) == 1:
            return (yield from self._among(self.topology.everyone, lo, hi, values))
        site = self.topology.site_of(self.rank)
        rows = yield Collect(values, site)
        if rows is not None:
            values.copy_(_sum(rows))
            merged = yield from self._among(self.topology.leaders, lo, hi, values)
            values[: hi - lo].copy_(merged)
        values = yield Spread(values, site)
        return values[: hi - lo]

    def _among(self, members: Members, lo: int, hi: int, values: Tensor) -> Talk:
        if len(members) == 1 or (self.codec.exact and self.merge.linear):
            total = yield Sum(values, members)
            return divide(total[: hi - lo], self.count)
        values = values[: hi - lo]
        if self.residual is not None and self._contributes:
            values += self.residual[lo:hi]
        if self.codec.gathers or len(members) == 2:
            return (yield from self._gathered(members, lo, hi, values))
        return (yield from self._owned(members, lo, hi, values))

    # -- every member gets every payload

    def _gathered(self, members: Members, lo: int, hi: int, values: Tensor) -> Talk:
        payload = self._encode(values, lo)
        self._remember(values, payload, lo)
        rows = yield Gather(payload, members)
        return self._merge(rows, lo, values)

    # -- every member owns a part

    def _owned(self, members: Members, lo: int, hi: int, values: Tensor) -> Talk:
        parts = [owned_parts(self.numel, len(members), self.codec.block, j, lo, hi) for j in range(len(members))]
        sizes = tuple(sum(self.codec.nbytes(b - a) for a, b in own) for own in parts)
        payload = values.new_empty(sum(sizes), dtype=torch.uint8)
        at = 0
        for a, b in (part for own in parts for part in own):
            piece = payload[at : (at := at + self.codec.nbytes(b - a))]
            self.codec.encode(values[a - lo : b - lo], piece, Key(self.seed, a))
            self._remember(values[a - lo : b - lo], piece, a)
        own = members.index(self.rank)
        rows = yield Swap(payload, sizes, members)
        share = payload.new_zeros(max(sizes))
        at = 0
        for a, b in parts[own]:
            piece = slice(at, at := at + self.codec.nbytes(b - a))
            merged = self._merge(rows[:, piece], a, values[a - lo : b - lo])
            self.codec.encode(merged, share[piece], Key(self.seed, a))
            self._remember_merge(merged, share[piece], a)
        shares = yield Gather(share, members)
        for row, part in zip(shares, parts, strict=True):
            at = 0
            for a, b in part:
                self.codec.decode(
                    row[at : (at := at + self.codec.nbytes(b - a))], values[a - lo : b - lo], Key(self.seed, a)
                )
        return values

    # -- arithmetic

    @property
    def _contributes(self) -> bool:
        """Whether what this member sends holds anybody's outer gradient."""
        members = (self.rank,) if len(self.topology.sites) == 1 else self.topology.site_of(self.rank)
        return any(self.weights[m] > 0 for m in members)

    def _encode(self, values: Tensor, first: int) -> Tensor:
        payload = values.new_empty(self.codec.nbytes(len(values)), dtype=torch.uint8)
        self.codec.encode(values, payload, Key(self.seed, first))
        return payload

    def _merge(self, rows: Tensor, first: int, out: Tensor) -> Tensor:
        """The merge of the members' payloads, written to `out`, which may hold anything."""
        key = Key(self.seed, first)
        if self.merge.linear:
            for index, row in enumerate(rows):
                self.codec.decode(row, out, key, add=index > 0)
            return divide(out, self.count)
        live = [row for row, weight in zip(rows, self.weights, strict=True) if weight > 0]
        decoded = out.new_empty(len(live), len(out))
        for row, values in zip(live, decoded, strict=True):
            self.codec.decode(row, values, key)
        return out.copy_(self.merge.combine(list(decoded)))

    def _remember(self, values: Tensor, payload: Tensor, first: int) -> None:
        """residual = what was to be said minus what was said."""
        if self.residual is None or not self._contributes:
            return
        said = self.residual[first : first + len(values)]
        self.codec.decode(payload, said, Key(self.seed, first))
        torch.sub(values, said, out=said)

    def _remember_merge(self, merged: Tensor, payload: Tensor, first: int) -> None:
        """What the owner's encoding of the merge lost is missing from the sum `count` times over, whether or not the
        owner itself took part."""
        if self.residual is None or not self.merge.linear:
            return
        said = torch.empty_like(merged)
        self.codec.decode(payload, said, Key(self.seed, first))
        self.residual[first : first + len(merged)].add_(merged - said, alpha=self.count)


def owned_parts(numel: int, members: int, block: int, owner: int, lo: int, hi: int) -> list[Part]:
    """The parts of [lo, hi) that the owner-th member of `members` owns.

    Parts lie at fixed places of the fragment, so that the bucket's size changes no bit. `block` divides `lo`, and `hi`
    unless the fragment ends there.
    """
    # As many parts for each owner, or one of few would own twice what another does, and all wait for the longest.
    each = -(-numel // (members * PART_ELEMENTS))
    length = -(-numel // (members * each * block)) * block
    first = lo // length
    first += (owner - first) % members
    cuts = ((max(p * length, lo), min((p + 1) * length, hi)) for p in range(first, -(-hi // length), members))
    return list(cuts)


def _sum(rows: Tensor) -> Tensor:
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total
