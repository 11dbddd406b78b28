"""Averages of the weights inside a site, between the rounds that join the sites: local SGD on the near level."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from diloco.outer.dialogue import Dialogue, Gather, Members, Pipeline, Sum
from diloco.outer.flat import Flat
from diloco.outer.island import Island, agree
from diloco.outer.pool import Pool
from diloco.outer.report import Mismatch, RoundReport
from diloco.outer.step import divide
from diloco.shards import local


class SiteAverage:
    """Sets the weights of a site's replicas to their mean; one that is not finite is left out and takes the others'.

    No anchor, outer optimizer or codec has a part in it: the next round measures what the site has moved together.
    """

    apart = True
    """It must not wait for a round that is on its way between the sites."""

    def __init__(
        self,
        flats: list[Flat],
        members: Members,
        pool: Pool,
        report: RoundReport,
        closed: Callable[[RoundReport], None],
        island: Island,
    ) -> None:
        self.island = island
        self.flats, self.members, self.pool, self.report, self.closed = flats, members, pool, report, closed

    def talk(self) -> Dialogue:
        tensors = [local(t) for flat in self.flats for t in flat.tensors.values()]
        norms = [torch.linalg.vector_norm(t, dtype=torch.promote_types(t.dtype, torch.float32)) for t in tensors]
        finite, _ = agree(self.island, all(bool(n.isfinite()) for n in norms), (self.report.step,), [], apart=True)
        rows = yield Gather(torch.tensor([float(finite), self.report.step], dtype=torch.float64), self.members)
        if len(set(rows[:, 1].tolist())) > 1:
            raise Mismatch(
                f"replicas came to a site average at different inner steps, {[int(s) for s in rows[:, 1]]}: every "
                "replica must take as many optimizer steps as the others"
            )
        self.report.left_out = [m for m, ok in zip(self.members, rows[:, 0].tolist(), strict=True) if not ok]
        live = len(self.members) - len(self.report.left_out)
        if live:
            talks = (self._bucket(flat, lo, hi, finite, live) for flat in self.flats for lo, hi in flat.buckets())
            yield Pipeline(talks)

    def _bucket(self, flat: Flat, lo: int, hi: int, finite: bool, live: int) -> Dialogue:
        buffer = self._read(flat, lo, hi) if finite else self._take(flat, lo, hi).zero_()
        total = yield Sum(buffer, self.members)
        mean = divide(total[: hi - lo], live)
        for start, stop, weights in flat.pieces(lo, hi):
            weights.copy_(mean[start - lo : stop - lo])
        self.pool.give(buffer)

    def _take(self, flat: Flat, lo: int, hi: int) -> Tensor:
        first = next(iter(flat.tensors.values()))
        padded = -(-(hi - lo) // len(self.members)) * len(self.members)
        return self.pool.take(padded, torch.promote_types(first.dtype, torch.float32), first.device)

    def _read(self, flat: Flat, lo: int, hi: int) -> Tensor:
        buffer = self._take(flat, lo, hi)
        buffer[hi - lo :].zero_()
        for start, stop, weights in flat.pieces(lo, hi):
            buffer[start - lo : stop - lo].copy_(weights)
        return buffer

    def land(self, step: int | None = None) -> None:
        """The weights are in place already."""
        self.closed(self.report)
