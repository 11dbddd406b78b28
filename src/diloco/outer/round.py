"""One round of one fragment on one replica: everything a sync computes, with the travelling left out.

    prepare()     on the way out: what is sent is fixed here, the replica may go on
    talk()        the dialogue with the other replicas (see `dialogue.py`), which ends with the anchor moved
    land()        on the way in: the replica takes over the new anchor

In the dialogue all replicas first gather their headers and decide alike who takes part and with what weight; then each
bucket is reduced and put through the outer optimizer; last they compare checksums. Nothing here depends on whether the
other replicas are in this process or an ocean away, or on what the replica does meanwhile.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from diloco.outer.codec import Codec
from diloco.outer.dialogue import Dialogue, Gather, Pipeline, Topology
from diloco.outer.fragment import SLICE_ELEMENTS, Fragment, slices, weighted
from diloco.outer.island import Alone, Island, agree, length
from diloco.outer.merge import Merge
from diloco.outer.pool import Pool
from diloco.outer.reduce import Reduction
from diloco.outer.report import Mismatch, RoundReport
from diloco.outer.schedule import noise_ratio
from diloco.outer.step import norm_of
from diloco.shards import local

# Norms, cosine and spread are measured on at most this many slices, evenly spread over the fragment, and scaled up:
# exact up to 1M parameters, an estimate beyond, as good as the layers are alike. Measuring all of a large model would
# cost as much as the outer step itself.
MEASURED_SLICES = 8

REBASE = "rebase"

HEADER = 5
"""Numbers at the head of a header: finite, steps in the window, inner step, tokens, norm (0 where nobody asks)."""


@dataclass(frozen=True)
class Means:
    """What the rounds of one replica have in common."""

    codec: Codec
    merge: Merge
    topology: Topology
    rank: int
    device: torch.device
    """Where the network takes its messages from."""
    mixing: float | str = 0.0
    """Weight of the local values when an overlapped round lands, or REBASE."""
    max_counters: bool = False
    fragments: int = 1
    island: Island = Alone()
    """The ranks that hold this replica together."""
    pool: Pool = field(default_factory=Pool)


class Round:
    """`flying`: the replica takes inner steps while the round is on its way. `closed(report)` is called at its end."""

    apart = False
    """It keeps its place among the replica's rounds."""

    def __init__(
        self,
        fragment: Fragment,
        means: Means,
        report: RoundReport,
        tokens: int,
        closed: Callable[[RoundReport], None],
        flying: bool = False,
    ) -> None:
        self.fragment, self.means, self.report, self.own_tokens = fragment, means, report, tokens
        self.closed, self.flying = closed, flying
        self.members = means.topology.everyone
        self.number = fragment.outer_steps + 1
        self.buckets = list(fragment.flat.buckets())
        self.device = fragment.anchor.device
        # Squared norms of: merged outer gradient, own, own minus merged, update of the anchor.
        self.squares = torch.zeros(4, dtype=torch.float64, device=self.device)
        self.stride = max(-(-fragment.flat.numel // (SLICE_ELEMENTS * MEASURED_SLICES)), 1)
        self.whole: Tensor | None = None
        self.taken: Tensor | None = None
        self.merged_buffers: list[Tensor] = []
        self.weights = self.embedding_weights = [1.0] * len(self.members)

    # -- on the way out

    def prepare(self) -> None:
        """Fixes what is sent: a header, and a copy of the outer gradient where the replica goes on meanwhile."""
        if self.flying or self.means.merge.needs_norms:
            self.taken = self.fragment.take(weights_too=self.flying and self.means.mixing == REBASE)
        buffers = [t.detach().flatten().to("cpu", torch.float64) for t in self._buffers()]
        steps = (self.report.steps, self.report.step, self.own_tokens)
        norms = []
        if self.means.merge.needs_norms:
            body = self.fragment.owned(self.taken[self.fragment.body :], self.fragment.body, self.fragment.flat.numel)
            norms = [torch.linalg.vector_norm(part).item() for part in body]
        finite = self._finite() and self._buffers_sound()
        self.finite, norm = agree(self.means.island, finite, steps, norms, apart=True)
        head = [self.finite, *steps, norm if self.finite else 0.0]
        self.header = torch.cat([torch.tensor(head, dtype=torch.float64), *buffers])

    def _finite(self) -> bool:
        # A norm takes one pass over memory and is infinite or NaN when any element is. In fp32 it overflows only past
        # 1e19, which no healthy weight reaches; in fp16 it would at 65504.
        norms = [
            torch.linalg.vector_norm(local(p), dtype=torch.promote_types(p.dtype, torch.float32))
            for p in self.fragment.flat.tensors.values()
        ]
        return not norms or bool(torch.stack([n.to(self.device, torch.float64) for n in norms]).isfinite().all())

    def _buffers_sound(self) -> bool:
        """Whether every float buffer is finite, or as it was after the last sync: a mask of -inf is a constant."""
        pairs = zip(self.fragment.averaged.values(), self.fragment.synced_buffers, strict=True)
        return all(bool((b.isfinite() | (b == s) | (b.isnan() & s.isnan())).all()) for b, s in pairs)

    def _buffers(self) -> list[Tensor]:
        counters = self.fragment.counters.values() if self.means.max_counters else ()
        return [*self.fragment.averaged.values(), *counters]

    # -- on its way

    def talk(self) -> Dialogue:
        """Raises Mismatch when the replicas are not at the same inner step, or their anchors differ afterwards."""
        self._open((yield Gather(self.header, self.members)))
        if self.report.committed:
            yield Pipeline(self._bucket(index) for index in range(len(self.buckets)))
        self._close((yield Gather(self._trailer(), self.members)))

    def _open(self, headers: Tensor) -> None:
        """`headers`: one row per replica."""
        alive, steps, step, tokens, norms = headers[:, :HEADER].T.tolist()
        if len(set(step)) > 1 or len(set(steps)) > 1:
            raise Mismatch(
                f"replicas came to a sync after different numbers of inner steps, {[int(s) for s in step]}: every "
                "replica must take as many optimizer steps as the others (with a grad scaler that skips, build DiLoCo "
                "with hook=False and call sync.step())"
            )
        live = [bool(a) for a in alive]
        self.report.left_out = [m for m, ok in enumerate(live) if not ok]
        self.report.committed = any(live)
        self.report.tokens = [int(n) for n in tokens]
        self.report.outer_lr = self.fragment.state.lr(self.number)
        if not self.report.committed:
            return
        merge = self.means.merge
        self.weights = merge.weights(tokens, norms, live)
        self.embedding_weights = merge.weights(tokens, norms, live, embedding=True)
        self._finish = lambda merged, norm: merge.finish(merged, norm, tokens, norms, live)
        self.merged_buffers = self._merge_buffers(headers[:, HEADER:])
        if self.fragment.state.whole or merge.whole:
            self.whole = torch.empty_like(self.fragment.anchor)

    def _merge_buffers(self, rows: Tensor) -> list[Tensor]:
        # In fp64 the mean of equal fp32 values is that value, so constants in buffers stay as they are to the bit.
        weights = torch.tensor(self.embedding_weights, dtype=torch.float64)
        live, at, merged = weights > 0, 0, []
        for buffer in self._buffers():
            part = rows[live, at : at + buffer.numel()]
            at += buffer.numel()
            mean = (part * weights[live, None]).sum(0) / weights.sum()
            merged.append((mean if buffer.is_floating_point() else part.amax(0)).view(buffer.shape))
        return merged

    def _bucket(self, index: int) -> Dialogue:
        lo, hi = self.buckets[index]
        means, dtype = self.means, self._wire_dtype
        buffer = means.pool.take(-(-(hi - lo) // means.topology.unit) * means.topology.unit, dtype, means.device)
        self._contribute(lo, hi, buffer)
        merged = yield from self._reduction.bucket(lo, hi, buffer)
        self._absorb_bucket(lo, hi, merged.to(self.device, self.fragment.anchor.dtype))
        means.pool.give(buffer)

    @property
    def _wire_dtype(self) -> torch.dtype:
        plain = self.means.codec.exact and self.means.merge.linear
        return self.fragment.anchor.dtype if plain else torch.float32

    @property
    def _reduction(self) -> Reduction:
        means, fragment = self.means, self.fragment
        feedback = means.codec.feedback and len(self.members) > 1
        if feedback and fragment.residual is None:
            fragment.residual = torch.zeros(fragment.flat.numel, device=means.device)
        seed = self.number * means.fragments + fragment.index
        return Reduction(
            means.codec, means.merge, means.topology, means.rank, self.weights, seed, fragment.flat.numel,
            fragment.residual if feedback else None,
        )  # fmt: skip

    @property
    def alive(self) -> bool:
        return self.weights[self.means.rank] > 0

    def _contribute(self, lo: int, hi: int, out: Tensor) -> None:
        """Writes this replica's weighted outer gradient of [lo, hi) to the head of `out`, zeros behind it."""
        if not self.alive:
            out.zero_()
            return
        out[hi - lo :].zero_()
        out = out[: hi - lo]
        self._own(lo, hi, out)
        for weights, part in self._weighted_ranges(lo, hi):
            if (weight := weights[self.means.rank]) != 1.0:
                out[part].mul_(weight)

    def _weighted_ranges(self, lo: int, hi: int) -> Iterator[tuple[list[float], slice]]:
        """The embeddings' part of [lo, hi) and the rest, which a merge may weigh differently."""
        body = min(max(self.fragment.body, lo), hi) - lo
        yield self.embedding_weights, slice(0, body)
        yield self.weights, slice(body, hi - lo)

    def _own(self, lo: int, hi: int, out: Tensor) -> None:
        if self.taken is None:
            self.fragment.drift(lo, hi, out)
        else:
            out.copy_(self.taken[lo:hi])

    def _absorb_bucket(self, first: int, last: int, merged: Tensor) -> None:
        for lo, hi in slices(first, last):
            part = merged[lo - first : hi - first]
            if self.whole is not None:
                self.whole[lo:hi].copy_(part)
            else:
                self._absorb(part, lo, hi)

    def _absorb(self, merged: Tensor, lo: int, hi: int) -> None:
        anchor, measured = self.fragment.anchor[lo:hi], lo // SLICE_ELEMENTS % self.stride == 0
        if measured:
            self._measure(merged, lo, hi)
            before = self.fragment.scratch[1, : hi - lo].copy_(anchor)
        self.fragment.state.advance(merged, lo, hi, self.number)
        if measured:
            self._add_square(3, before.sub_(anchor), lo)
        if not self.flying:
            self.fragment.flat.write(self.fragment.anchor, lo, hi)

    def _measure(self, merged: Tensor, lo: int, hi: int) -> None:
        self._add_square(0, merged, lo)
        if self.alive:
            own = self.fragment.scratch[0, : hi - lo]
            self._own(lo, hi, own)
            self._add_square(1, own, lo)
            self._add_square(2, own.sub_(merged), lo)

    def _add_square(self, index: int, vector: Tensor, lo: int) -> None:
        for part in self.fragment.owned(vector, lo, lo + len(vector)):
            self.squares[index] += torch.dot(part, part)

    def _trailer(self) -> Tensor:
        """[checksum of the anchor, then squared norms of merged, own, own - merged as the bits of fp64], int64, CPU."""
        if self.whole is not None:
            self._absorb_whole(self.whole)
            self.whole = None
        if self.report.committed and not self.means.codec.exact:
            self.fragment.reconcile(self.means.island)
            if not self.flying and self.fragment.apart:
                self.fragment.flat.write(self.fragment.anchor, 0, self.fragment.flat.numel)
        self.squares = self.squares.cpu() * self.stride
        return torch.cat([torch.tensor([self.fragment.checksum()]), self.squares[:3].view(torch.int64)])

    def _absorb_whole(self, merged: Tensor) -> None:
        """For outer optimizers and merges that need the complete gradient at once."""
        if self.means.merge.whole:
            body = self.fragment.body
            self._finish(merged[body:], self._length(merged[body:], body))
        for lo, hi in slices(0, len(merged)):
            if lo // SLICE_ELEMENTS % self.stride == 0:
                self._measure(merged[lo:hi], lo, hi)
        before = self.fragment.anchor.clone()
        self.fragment.state.advance(merged, 0, len(merged), self.number, norm=self._length)
        self._add_square(3, before.sub_(self.fragment.anchor).div_(self.stride**0.5), 0)
        if not self.flying:
            self.fragment.restart()

    def _length(self, vector: Tensor, lo: int = 0) -> float:
        """The norm of the whole replica's vector, of which this rank has the part that begins at `lo`."""
        norms = [norm_of(part) for part in self.fragment.owned(vector, lo, lo + len(vector))]
        return length(self.means.island, norms, apart=False)

    def _close(self, trailers: Tensor) -> None:
        """`trailers`: one row per replica, of this rank's counterparts there."""
        # Every rank of the island gets every other's trailers, so that all raise alike.
        own_update = self.squares[3:].view(torch.int64).expand(len(trailers), 1)
        islands = self.means.island.gather(torch.cat([trailers, own_update], dim=1), apart=False)
        for checksums in islands[:, :, 0].tolist():
            if len(set(checksums)) > 1:
                raise Mismatch(
                    f"anchors differ between replicas after round {self.report.round}: checksums "
                    f"{[f'{c % 2**64:016x}' for c in checksums]}; the replicas do not run the same arithmetic (compare "
                    "versions and hardware) or a message was damaged"
                )
        squares = islands[:, :, 1:].contiguous().view(torch.float64).sum(0)
        # Replica 0's, so that all decide from the same bits even where machines round a norm differently.
        merged_square = squares[0, 0].item()
        live = [m for m, w in enumerate(self.weights) if w > 0] if self.report.committed else []
        if live:
            own = [max(squares[m, 1].item(), 0.0) ** 0.5 for m in live]
            distance_squares = [max(squares[m, 2].item(), 0.0) for m in live]
            distance = [d**0.5 for d in distance_squares]
            self.report.spread_median, self.report.spread_max = statistics.median(distance), max(distance)
            self.report.cosine_median = statistics.median(
                _cosine(o, d, merged_square**0.5) for o, d in zip(own, distance, strict=True)
            )
            self.report.noise = noise_ratio(distance_squares, merged_square)
        self.report.outer_gradient_norm = merged_square**0.5
        self.report.outer_update_norm = squares[0, 3].item() ** 0.5
        self.report.checksum = f"{weighted(islands[:, 0, 0].tolist()) % 2**64:016x}"
        self.fragment.outer_steps += self.report.committed

    # -- on the way in

    def land(self, step: int | None = None) -> None:
        """The replica takes over the new anchor at inner step `step`, that of the sending by default.

        With outer gradients that are applied a round late (`late.py`) that is left to the next boundary.
        """
        self.report.landed_step = self.report.step if step is None else step
        if not self.report.committed:
            self.fragment.restart()
            for buffer, synced in zip(self.fragment.averaged.values(), self.fragment.synced_buffers, strict=True):
                buffer.copy_(synced)
        else:
            self._land_buffers()
            if self.flying and self.fragment.start is None:
                self.fragment.rebase() if self.means.mixing == REBASE else self.fragment.mix(self.means.mixing)
        self.closed(self.report)

    def _land_buffers(self) -> None:
        """Float buffers are mixed like the weights; a counter that has gone on meanwhile does not go back."""
        mixing = self.means.mixing if self.flying and self.means.mixing != REBASE else 0.0
        averaged = list(self.fragment.averaged.values())
        for buffer, synced, merged in zip(averaged, self.fragment.synced_buffers, self.merged_buffers, strict=False):
            synced.copy_(merged)
            buffer.copy_(buffer * mixing + synced * (1 - mixing) if mixing else synced)
        for counter, merged in zip(self._buffers()[len(averaged) :], self.merged_buffers[len(averaged) :], strict=True):
            counter.copy_(torch.maximum(counter, merged.to(counter)))


def _cosine(own: float, distance: float, merged: float) -> float:
    """Cosine of the angle between two vectors from their norms and the norm of their difference (law of cosines)."""
    if own == 0 or merged == 0:
        return 0.0
    return min(1.0, max(-1.0, (own**2 + merged**2 - distance**2) / (2 * own * merged)))
