"""One round of one replica: everything a sync computes, with the travelling left out.

An exchange (see `wire/`) drives it:

    headers  = gather(round.header())       one small fp64 vector per replica
    round.open(rank, headers)               all replicas decide alike who takes part and with what weight
    for b in round.open_buckets:            SUM over the replicas, in replica order
        round.absorb(b, reduce(round.contribute(b, out)))
    round.close(gather(round.trailer()))    one small int64 vector per replica

Nothing here depends on whether the other replicas are in this process or an ocean away.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from diloco.outer.fragment import SLICE_ELEMENTS, Fragment, slices
from diloco.outer.merge import Weights
from diloco.outer.tensors import Roster

# Norms, cosine and spread are measured on at most this many slices, evenly spread over the fragment, and scaled up:
# exact up to 1M parameters, an estimate beyond, as good as the layers are alike. Measuring all of a large model would
# cost as much as the outer step itself.
MEASURED_SLICES = 8


@dataclass
class RoundReport:
    """What one outer step did; the same on every replica but for the seconds."""

    round: int
    """Rounds planned so far, this one included; counted from 1."""
    step: int
    """Inner steps taken when the window closed."""
    steps: int
    """Inner steps in the window."""
    partial: bool
    """A last window shorter than sync_every."""
    committed: bool = False
    """False when no replica had a finite outer gradient, so that the anchor stayed."""
    left_out: list[int] = field(default_factory=list)
    """Replicas whose outer gradient was not finite; they were reset from the anchor."""
    tokens: list[int] = field(default_factory=list)
    """Tokens each replica trained on in the window, as counted by `count_tokens`."""
    outer_lr: float = 0.0
    outer_gradient_norm: float = 0.0
    """Norm of the merged outer gradient."""
    outer_update_norm: float = 0.0
    """Norm of what the anchor moved by, after clipping."""
    spread_median: float = 0.0
    """Median over replicas of the distance between the replica's weights and the merged weights, just before the
    sync."""
    spread_max: float = 0.0
    cosine_median: float = 0.0
    """Median over replicas of the cosine between its outer gradient and the merged one."""
    checksum: str = ""
    """64-bit checksum of the anchor after the round, in hex."""
    bytes_sent: int = 0
    """Bytes this replica handed to the wire in the round."""
    wire_s: float = 0.0
    """Seconds sending, receiving and merging."""
    wait_s: float = 0.0
    """Seconds waiting for the slowest replica to arrive."""


class Mismatch(RuntimeError):
    """The replicas of a run have ceased to agree, which no sync can repair."""


class Round:
    """The state of one sync on one replica. `closed(report)` is called when it is over.

    `buffers`: the float buffers as the last sync left them, which this one updates.
    """

    def __init__(
        self,
        fragment: Fragment,
        tensors: Roster,
        buffers: list[Tensor],
        merge: Weights,
        max_counters: bool,
        outer_steps: int,
        report: RoundReport,
        tokens: int,
        closed: Callable[[RoundReport], None],
    ) -> None:
        self.fragment, self.tensors, self.merge, self.max_counters = fragment, tensors, merge, max_counters
        self.synced_buffers = buffers
        self.number = outer_steps + 1
        self.report, self.own_tokens, self.closed = report, tokens, closed
        self.buckets = list(fragment.flat.buckets())
        self.device = fragment.anchor.device
        # Squared norms of: merged outer gradient, own, own minus merged, update of the anchor.
        self.squares = torch.zeros(4, dtype=torch.float64, device=self.device)
        self.stride = -(-fragment.flat.numel // (SLICE_ELEMENTS * MEASURED_SLICES))
        self.whole: Tensor | None = None
        self.scratch = fragment.scratch
        self.rank, self.weights = 0, [1.0]

    # -- opening: who takes part

    def header(self) -> Tensor:
        """[finite, steps in the window, inner step, tokens, float buffers..., counters...] as fp64 on the CPU."""
        buffers = [t.detach().flatten().to("cpu", torch.float64) for t in self._buffers()]
        finite = self._finite() and self._buffers_sound()
        head = torch.tensor([finite, self.report.steps, self.report.step, self.own_tokens], dtype=torch.float64)
        return torch.cat([head, *buffers])

    def open(self, rank: int, headers: Tensor) -> None:
        """`headers`: one row per replica. Raises Mismatch when the replicas are not at the same inner step."""
        self.rank = rank
        alive, steps, step, tokens = headers[:, :4].T.tolist()
        if len(set(step)) > 1 or len(set(steps)) > 1:
            raise Mismatch(
                f"replicas came to a sync after different numbers of inner steps, {[int(s) for s in step]}: every "
                "replica must take as many optimizer steps as the others (with a grad scaler that skips, build DiLoCo "
                "with hook=False and call sync.step())"
            )
        self.report.left_out = [m for m, ok in enumerate(alive) if not ok]
        self.report.committed = any(alive)
        self.report.tokens = [int(n) for n in tokens]
        self.weights = self.merge(tokens, [bool(a) for a in alive])
        self.report.outer_lr = self.fragment.state.lr(self.number)
        if not self.report.committed:
            self.restart()
            for buffer, synced in zip(self.tensors.averaged.values(), self.synced_buffers, strict=True):
                buffer.copy_(synced)
            return
        self._merge_buffers(headers[:, 4:])
        if self.fragment.state.whole:
            self.whole = torch.empty_like(self.fragment.anchor)

    def _finite(self) -> bool:
        # A norm takes one pass over memory and is infinite or NaN when any element is. In fp32 it overflows only past
        # 1e19, which no healthy weight reaches; in fp16 it would at 65504.
        norms = [
            torch.linalg.vector_norm(p.detach(), dtype=torch.promote_types(p.dtype, torch.float32))
            for p in self.tensors.trained.values()
        ]
        return bool(torch.stack([n.to(self.device, torch.float64) for n in norms]).isfinite().all())

    def _buffers_sound(self) -> bool:
        """Whether every float buffer is finite, or as it was after the last sync: a mask of -inf is a constant."""
        pairs = zip(self.tensors.averaged.values(), self.synced_buffers, strict=True)
        return all(bool((b.isfinite() | (b == s) | (b.isnan() & s.isnan())).all()) for b, s in pairs)

    def _buffers(self) -> list[Tensor]:
        return [*self.tensors.averaged.values(), *(self.tensors.counters.values() if self.max_counters else ())]

    def _merge_buffers(self, rows: Tensor) -> None:
        # In fp64 the mean of equal fp32 values is that value, so constants in buffers stay as they are to the bit.
        weights = torch.tensor(self.weights, dtype=torch.float64)
        live, at = weights > 0, 0
        for buffer in self._buffers():
            part = rows[live, at : at + buffer.numel()]
            at += buffer.numel()
            value = (part * weights[live, None]).sum(0) / live.sum() if buffer.is_floating_point() else part.amax(0)
            buffer.copy_(value.view(buffer.shape))
        for buffer, synced in zip(self.tensors.averaged.values(), self.synced_buffers, strict=True):
            synced.copy_(buffer)

    # -- bucket by bucket

    @property
    def open_buckets(self) -> range:
        """The buckets that have to travel: none when no replica takes part."""
        return range(len(self.buckets) if self.report.committed else 0)

    @property
    def alive(self) -> bool:
        return self.weights[self.rank] > 0

    def contribute(self, bucket: int, out: Tensor) -> Tensor:
        """Writes this replica's weighted outer gradient for the bucket into `out` and returns the part written."""
        lo, hi = self.buckets[bucket]
        out = out[: hi - lo]
        if not self.alive:
            return out.zero_()
        self.fragment.flat.drift(self.fragment.anchor, lo, hi, out)
        weight = self.weights[self.rank]
        return out if weight == 1.0 else out.mul_(weight)

    def absorb(self, bucket: int, total: Tensor) -> None:
        """Takes the SUM over the replicas for the bucket: merges, steps the anchor, and restarts the replica from
        it."""
        first, last = self.buckets[bucket]
        total, count = total.to(self.device), sum(w > 0 for w in self.weights)
        for lo, hi in slices(first, last):
            merged = _divide(total[lo - first : hi - first], count)
            if self.whole is not None:
                self.whole[lo:hi].copy_(merged)
            else:
                self._absorb(merged, lo, hi)

    def restart(self) -> None:
        """Restarts the replica from the anchor as it is."""
        self.fragment.flat.write(self.fragment.anchor, 0, self.fragment.flat.numel)

    def _absorb(self, merged: Tensor, lo: int, hi: int) -> None:
        anchor, measured = self.fragment.anchor[lo:hi], lo // SLICE_ELEMENTS % self.stride == 0
        if measured:
            self._measure(merged, lo, hi)
            before = self.scratch[1, : hi - lo].copy_(anchor)
        self.fragment.state.advance(merged, lo, hi, self.number)
        if measured:
            self._add_square(3, before.sub_(anchor))
        self.fragment.flat.write(self.fragment.anchor, lo, hi)

    def _measure(self, merged: Tensor, lo: int, hi: int) -> None:
        self._add_square(0, merged)
        if self.alive:
            own = self.scratch[0, : hi - lo]
            self.fragment.flat.drift(self.fragment.anchor, lo, hi, own)
            self._add_square(1, own)
            self._add_square(2, own.sub_(merged))

    def _add_square(self, index: int, vector: Tensor) -> None:
        self.squares[index] += torch.dot(vector, vector)

    # -- closing: do all agree

    def trailer(self) -> Tensor:
        """[checksum of the anchor, then own and (own - merged) squared norms as the bits of fp64], int64 on the CPU."""
        if self.whole is not None:
            self._absorb_whole(self.whole)
            self.whole = None
        self.squares = self.squares.cpu() * self.stride
        return torch.cat([torch.tensor([self.fragment.checksum()]), self.squares[1:3].view(torch.int64)])

    def _absorb_whole(self, merged: Tensor) -> None:
        """For outer optimizers that need the complete gradient at once."""
        for lo, hi in slices(0, len(merged)):
            if lo // SLICE_ELEMENTS % self.stride == 0:
                self._measure(merged[lo:hi], lo, hi)
        before = self.fragment.anchor.clone()
        self.fragment.state.advance(merged, 0, len(merged), self.number)
        self._add_square(3, before.sub_(self.fragment.anchor).div_(self.stride**0.5))
        self.restart()

    def close(self, trailers: Tensor) -> None:
        """`trailers`: one row per replica. Raises Mismatch when the anchors are no longer bit-identical."""
        checksums = trailers[:, 0].tolist()
        if len(set(checksums)) > 1:
            raise Mismatch(
                f"anchors differ between replicas after round {self.report.round}: checksums "
                f"{[f'{c % 2**64:016x}' for c in checksums]}; the replicas do not run the same arithmetic (compare "
                "versions and hardware) or a message was damaged"
            )
        squares = trailers[:, 1:].contiguous().view(torch.float64)
        merged_square = self.squares[0].item()
        live = [m for m, w in enumerate(self.weights) if w > 0]
        if live:
            own = [max(squares[m, 0].item(), 0.0) ** 0.5 for m in live]
            distance = [max(squares[m, 1].item(), 0.0) ** 0.5 for m in live]
            self.report.spread_median, self.report.spread_max = statistics.median(distance), max(distance)
            self.report.cosine_median = statistics.median(
                _cosine(o, d, merged_square**0.5) for o, d in zip(own, distance, strict=True)
            )
        self.report.outer_gradient_norm = merged_square**0.5
        self.report.outer_update_norm = self.squares[3].item() ** 0.5
        self.report.checksum = f"{checksums[0] % 2**64:016x}"
        self.closed(self.report)


def _divide(total: Tensor, count: int) -> Tensor:
    """In place. Multiplying by the inverse of a power of two is exact too, and several times faster than dividing."""
    if count & (count - 1) == 0:
        return total.mul_(1.0 / count) if count > 1 else total
    return total.div_(count)


def _cosine(own: float, distance: float, merged: float) -> float:
    """Cosine of the angle between two vectors from their norms and the norm of their difference (law of cosines)."""
    if own == 0 or merged == 0:
        return 0.0
    return min(1.0, max(-1.0, (own**2 + merged**2 - distance**2) / (2 * own * merged)))
