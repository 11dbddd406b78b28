"""One replica per rank of a torch.distributed group: gloo on CPUs, NCCL on GPUs.

The sum runs in replica order on every backend, so M processes and M replicas in one process give the same bits: each
replica sends a share of its bucket to every other, each adds up the share it was given in rank order, and the summed
shares are gathered. That is as many bytes as a ring all-reduce. For two replicas a plain all-reduce does the same (a +
b = b + a).
"""

from __future__ import annotations

import json
import time
import weakref
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from diloco.errors import BadInput
from diloco.outer.fragment import bit_sum
from diloco.outer.round import Mismatch, Round
from diloco.wire.exchange import Facts, check_equal, gather_bytes, sum_bytes

# Buckets on their way at once: the next is computed, and the last applied, while one travels.
IN_FLIGHT = 3

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before torch 2.13


class Collective:
    """`group`: the ranks that are replicas of one another; all ranks by default. A group of its own is made from them.

    `timeout_s` bounds one wait for the slowest replica, not the silence between syncs.
    Raises BadInput where torch.distributed is not initialised.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, timeout_s: float = 1800.0) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise BadInput(
                "Collective needs torch.distributed: call torch.distributed.init_process_group() first, or use Local() "
                "for one process"
            )
        ranks = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
        everyone = len(ranks) == dist.get_world_size()
        group = dist.new_group(ranks, timeout=timedelta(seconds=timeout_s), use_local_synchronization=not everyone)
        # Gloo aborts the process when a group lives until the interpreter is torn down, so it is let go just before.
        self._held = [group]
        weakref.finalize(self, self._held.clear)
        self.replicas = len(ranks)
        self.rank = dist.get_rank(self.group)
        self._buffers: Tensor | None = None
        on_gpu = "nccl" in dist.get_backend(self.group)
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")

    @property
    def group(self) -> dist.ProcessGroup:
        return self._held[0]

    # -- before the first step

    def join(self, facts: Facts, tensors: list[Tensor]) -> int:
        self._check_sum()
        check_equal(self.gather_json(facts))
        for tensor in tensors:
            travelling = tensor.to(self.device)
            _reached(dist.broadcast, travelling, group_src=0, group=self.group)
            tensor.copy_(travelling)
        sums = self.gather(torch.tensor([int(bit_sum(t.reshape(-1))) for t in tensors]))
        if (sums != sums[0]).any():
            raise Mismatch(
                "initial weights differ between replicas after the broadcast: the network or a device damages what it "
                "carries"
            )
        return self.rank

    def _check_sum(self) -> None:
        """A wrong reduction is silent, so it is tried once with numbers whose sum is known exactly."""
        mine = torch.full((self.replicas,), float(self.rank + 1), device=self.device)
        expected = self.replicas * (self.replicas + 1) / 2
        if (self._start_sum(mine)() != expected).any():
            raise Mismatch(
                f"the {dist.get_backend(self.group)} backend sums wrongly on this machine: try another backend or "
                "another torch version"
            )

    # -- a round

    def run(self, rank: int, round: Round) -> None:
        try:
            self._run(rank, round)
        except ConnectionError as error:
            raise ConnectionError(f"round {round.report.round} at inner step {round.report.step} {error}") from error

    def _run(self, rank: int, round: Round) -> None:
        start = time.perf_counter()
        header = round.header()
        headers = self.gather(header)
        arrived = time.perf_counter()
        round.open(rank, headers)
        flight: deque[tuple[int, int, Callable[[], Tensor]]] = deque()
        for bucket in round.open_buckets:
            buffer = self._buffer(round, bucket)
            part = round.contribute(bucket, buffer)
            buffer[len(part) :].zero_()
            flight.append((bucket, len(part), self._start_sum(buffer)))
            if len(flight) == IN_FLIGHT:
                self._land(round, *flight.popleft())
        while flight:
            self._land(round, *flight.popleft())
        trailer = round.trailer()
        trailers = self.gather(trailer)
        report, anchor = round.report, round.fragment.anchor
        report.wait_s, report.wire_s = arrived - start, time.perf_counter() - arrived
        payload = anchor.numel() * anchor.element_size() if report.committed else 0
        report.bytes_sent = sum_bytes(payload, self.replicas) + gather_bytes(
            header.nbytes + trailer.nbytes, self.replicas
        )
        round.close(trailers)

    def _buffer(self, round: Round, bucket: int) -> Tensor:
        """One of IN_FLIGHT buffers kept between rounds: memory fresh from the system costs a page fault every 4 KiB."""
        flat, dtype = round.fragment.flat, round.fragment.anchor.dtype
        most = _round_up(min(flat.bucket_elements, flat.numel), self.replicas)
        if self._buffers is None or self._buffers.shape[1] < most or self._buffers.dtype != dtype:
            self._buffers = torch.empty(IN_FLIGHT, most, dtype=dtype, device=self.device)
        lo, hi = round.buckets[bucket]
        return self._buffers[bucket % IN_FLIGHT, : _round_up(hi - lo, self.replicas)]

    def _land(self, round: Round, bucket: int, length: int, finish: Callable[[], Tensor]) -> None:
        round.absorb(bucket, finish()[:length])

    def _start_sum(self, buffer: Tensor) -> Callable[[], Tensor]:
        """Starts the sum over the replicas of a buffer whose length M divides; the returned function waits for it."""
        if self.replicas <= 2:
            work = _reached(dist.all_reduce, buffer, group=self.group, async_op=True)

            def finish() -> Tensor:
                _reached(work.wait)
                return buffer

            return finish
        received = torch.empty_like(buffer)
        work = _reached(dist.all_to_all_single, received, buffer, group=self.group, async_op=True)

        def finish_in_order() -> Tensor:
            _reached(work.wait)
            first, *others = received.view(self.replicas, -1)
            for other in others:
                first += other
            _reached(_all_gather, buffer, first, group=self.group)
            return buffer

        return finish_in_order

    # -- for callers with something of their own to say

    def gather(self, row: Tensor) -> Tensor:
        """A tensor of the same shape on each replica -> all of them, [M, *shape], on the CPU of all."""
        line = row.reshape(-1).to(self.device)
        lines = torch.empty(self.replicas * line.numel(), dtype=line.dtype, device=self.device)
        _reached(_all_gather, lines, line, group=self.group)
        return lines.view(self.replicas, *row.shape).cpu()

    def gather_json(self, value: object) -> list:
        """Every replica's JSON value on all replicas, in rank order. (torch's own object collectives unpickle what
        arrives.)"""
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = self.gather(torch.tensor([text.numel()])).flatten().tolist()
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: text.numel()] = text
        return [json.loads(bytes(row[:n].tolist())) for row, n in zip(self.gather(padded), lengths, strict=True)]

    def sum(self, values: Tensor) -> Tensor:
        """Sum over the replicas of a flat tensor, in replica order."""
        padded = torch.zeros(_round_up(values.numel(), self.replicas), dtype=values.dtype, device=self.device)
        padded[: values.numel()] = values
        return self._start_sum(padded)()[: values.numel()].to(values.device)


def _reached(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The call's result. Backends report a dead or silent peer as a bare RuntimeError; here it is a ConnectionError."""
    try:
        return call(*arguments, **options)
    except RuntimeError as error:
        raise ConnectionError(
            f"lost contact with another replica ({error}): see the other replicas' logs, then resume all of them from "
            "the last checkpoint"
        ) from error


def _round_up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple
