"""M replicas in one process, in lock step: the same rounds and the same bits as over a network, without one."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from diloco.errors import BadInput
from diloco.outer.round import Mismatch, Round
from diloco.wire.exchange import Facts, check_equal, gather_bytes, sum_bytes


class Local:
    """Give the same object to the `DiLoCo` of every replica. A round runs when the last replica has reached it.

    The replicas must take their inner steps in turn: each its step t before any takes step t + 1.
    """

    def __init__(self, replicas: int = 1) -> None:
        if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
            raise BadInput(f"replicas is {replicas!r}: give a whole number, 1 or more")
        self.replicas = replicas
        self._facts: list[Facts] = []
        self._source: list[Tensor] = []
        self._waiting: dict[int, Round] = {}
        self._buffers = torch.empty(0)

    def join(self, facts: Facts, tensors: list[Tensor]) -> int:
        if len(self._facts) == self.replicas:
            raise BadInput(
                f"Local(replicas={self.replicas}) has all its replicas already: make a new one for another run"
            )
        check_equal([*self._facts[:1], facts])
        self._facts.append(facts)
        self._source = self._source or tensors
        for mine, source in zip(tensors, self._source, strict=True):
            mine.copy_(source)
        return len(self._facts) - 1

    def run(self, rank: int, round: Round) -> None:
        if len(self._facts) < self.replicas:
            raise Mismatch(
                f"a sync is due but only {len(self._facts)} of {self.replicas} replicas were built: "
                "build a DiLoCo for every replica before the first step"
            )
        if rank in self._waiting:
            behind = sorted(set(range(self.replicas)) - set(self._waiting))
            raise Mismatch(
                f"replica {rank} reached its next sync while replicas {behind} have not reached the last one: in one "
                "process all replicas must step in turn"
            )
        self._waiting[rank] = round
        if len(self._waiting) == self.replicas:
            rounds = [self._waiting[m] for m in range(self.replicas)]
            self._waiting = {}
            self._run(rounds)

    def _run(self, rounds: list[Round]) -> None:
        start, replicas = time.perf_counter(), len(rounds)
        headers = torch.stack([r.header() for r in rounds])
        for rank, r in enumerate(rounds):
            r.open(rank, headers)
        anchor, flat = rounds[0].fragment.anchor, rounds[0].fragment.flat
        total, part = self._two_buffers(anchor, min(flat.bucket_elements, flat.numel))
        for bucket in rounds[0].open_buckets:
            summed = rounds[0].contribute(bucket, total)
            for r in rounds[1:]:
                summed += r.contribute(bucket, part)
            for r in rounds:
                r.absorb(bucket, part[: len(summed)].copy_(summed))
        trailers = torch.stack([r.trailer() for r in rounds])
        payload = anchor.numel() * anchor.element_size() if rounds[0].report.committed else 0
        for r in rounds:
            r.report.wire_s = (time.perf_counter() - start) / replicas
            r.report.bytes_sent = sum_bytes(payload, replicas) + gather_bytes(
                headers[0].nbytes + trailers[0].nbytes, replicas
            )
        for r in rounds:
            r.close(trailers)

    def _two_buffers(self, like: Tensor, length: int) -> Tensor:
        """Kept between rounds: memory fresh from the system costs a page fault every 4 KiB."""
        if self._buffers.shape != (2, length) or self._buffers.dtype != like.dtype:
            self._buffers = torch.empty(2, length, dtype=like.dtype, device=like.device)
        return self._buffers
