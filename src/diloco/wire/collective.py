"""One replica per rank of a torch.distributed group: gloo on CPUs, NCCL on GPUs.

The sum runs in replica order on every backend, so M processes and M replicas in one process give the same bits: each
replica sends a share of its bucket to every other, each adds up the share it was given in rank order, and the summed
shares are gathered. That is as many bytes as a ring all-reduce. For two replicas a plain all-reduce does the same (a +
b = b + a).
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from diloco.errors import BadInput
from diloco.outer.dialogue import Collect, Dialogue, Gather, Members, Pipeline, Request, Spread, Sum, Swap, Topology
from diloco.outer.fragment import bit_sum
from diloco.outer.report import Mismatch
from diloco.wire.background import Background, Pending
from diloco.wire.exchange import OF_A_PART, REFUSED, Facts, Flight, Job, Message, check_equal
from diloco.wire.island import all_gather, gather_json, make_island, split_mesh
from diloco.wire.link import Link, Throttle, as_link
from diloco.wire.local import reply as alone
from diloco.wire.meter import Meter

# Buckets on their way at once: the next is computed, and the last applied, while one travels.
IN_FLIGHT = 3

# Gathers between two are sent as messages of their own from this size on; see `_send_to_peer`.
LONG_BYTES = 1 << 16

# A group's use: rounds may be under way while the caller's own thread sends something.
ROUNDS, OWN = "rounds", "own"


Finish = Callable[[], "Tensor | None"]


class Collective:
    """`group`: the ranks that are replicas of one another; all ranks by default. Groups of its own are made from them.
    Or a DeviceMesh, of which `dim` is the dimension of the replicas; the others span each replica's island.

    `timeout_s` bounds one wait for the slowest replica, not the silence between syncs. `link` makes the messages as
    slow as that link, without root. `on_message` is told of every message of a round, in the thread that carried it.
    Raises BadInput where torch.distributed is not initialised.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | DeviceMesh | None = None,
        timeout_s: float = 1800.0,
        link: Link | str | None = None,
        on_message: Callable[[Message], None] | None = None,
        dim: str = "replica",
    ) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise BadInput(
                "Collective needs torch.distributed: call torch.distributed.init_process_group() first, or use Local() "
                "for one process"
            )
        if isinstance(group, DeviceMesh):
            self._ranks, island = split_mesh(group, dim)
        else:
            self._ranks = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
            island = [dist.get_rank()]
        self._timeout, self.on_message = timedelta(seconds=timeout_s), on_message
        self.replicas = len(self._ranks)
        everyone = tuple(range(self.replicas))
        self.topology, self.site_every = Topology((everyone,)), 0
        self._groups = {(use, everyone): self._new_group(everyone) for use in (ROUNDS, OWN)}
        # Gloo aborts the process when a group lives until the interpreter is torn down, so they are let go just before.
        weakref.finalize(self, self._groups.clear)
        self.rank = dist.get_rank(self.group)
        on_gpu = "nccl" in dist.get_backend(self.group)
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        self.island = make_island(island, self.device, self._group_of)
        self._throttle = Throttle(as_link(link)) if link else None
        self._background: Background | None = None
        self._left_at = time.perf_counter()

    def _new_group(self, members: Members) -> dist.ProcessGroup:
        """All replicas call it, those outside the group too: torch names a group by how many there are already, and
        members for whom that differs would wait for one another for ever."""
        return self._group_of([self._ranks[m] for m in members])

    def _group_of(self, ranks: list[int]) -> dist.ProcessGroup:
        some = self.replicas < dist.get_world_size()
        return dist.new_group(ranks, timeout=self._timeout, use_local_synchronization=some)

    @property
    def group(self) -> dist.ProcessGroup:
        """All replicas, for what the caller's own thread sends."""
        return self._groups[OWN, tuple(range(self.replicas))]

    def arrange(self, topology: Topology, site_every: int) -> None:
        """Divides the replicas into sites; see `Hierarchical`."""
        self.agree({"sites": [list(site) for site in topology.sites], "site_every": site_every})
        self.topology, self.site_every = topology, site_every
        for members in (*topology.sites, topology.leaders):
            for use in (ROUNDS, OWN):
                if (use, members) not in self._groups:
                    self._groups[use, members] = self._new_group(members)

    # -- before the first step

    def agree(self, facts: Facts) -> None:
        verdict = None
        try:
            check_equal(self.gather_json(facts))
        except BadInput as error:
            verdict = str(error)
        # What one row of counterparts refuses reaches, through the islands, all of them.
        shared = {key: value for key, value in facts.items() if key not in OF_A_PART}
        verdicts, stated = zip(*self.island.gather_json([verdict, shared]), strict=True)
        if refusal := verdict or next(filter(None, verdicts), None):
            raise BadInput(refusal)
        check_equal(list(stated), who="rank within replicas")

    def refuse(self, sentence: str) -> None:
        """The two messages of `agree`."""
        self.gather_json({REFUSED: sentence})
        self.island.gather_json([f"{sentence} (replica {self.rank})", {}])

    def join(self, facts: Facts, tensors: list[Tensor]) -> int:
        self._check_sum()
        self.agree(facts)
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
        if (self.sum(mine) != expected).any():
            raise Mismatch(
                f"the {dist.get_backend(self.group)} backend sums wrongly on this machine: try another backend or "
                "another torch version"
            )

    # -- the clock

    def step_begins(self) -> None:
        self._left_at = time.perf_counter()

    def step_ends(self, *ranks: int) -> float:
        return time.perf_counter() - self._left_at

    # -- a round

    def run(self, rank: int, job: Job) -> None:
        began = time.perf_counter()
        if self._background and not job.apart:
            self._background.drain()  # all replicas' rounds must keep one order
        self._drive(job)
        job.report.stall_s = time.perf_counter() - began
        job.land()

    def start(self, rank: int, job: Job) -> Flight:
        self._background = self._background or Background(self.device)
        return _Flight(job, self._background.start(lambda: self._drive(job)))

    def arrived(self, rank: int, job: Job, arrival_s: float) -> _Flight:
        return _Flight(job, None)

    def _drive(self, job: Job) -> None:
        try:
            self._converse(job)
        except ConnectionError as error:
            raise ConnectionError(f"round {job.report.round} at inner step {job.report.step} {error}") from error

    def _converse(self, job: Job) -> None:
        meter = Meter(job.report, self.rank, self.topology, self.on_message, self.device)
        talk, reply, use = job.talk(), None, OWN if job.apart else ROUNDS
        while (request := _next(talk, reply, meter)) is not None:
            if isinstance(request, Pipeline):
                reply = self._pipeline(request, meter, use)
            else:
                reply = self._start(request, use)()
                meter.blocked(request)
        meter.settle()

    def _pipeline(self, pipeline: Pipeline, meter: Meter, use: str) -> None:
        """Which message comes next never depends on which arrived first, so it is the same on all replicas."""
        flying: deque[tuple[Dialogue, Request, Finish]] = deque()

        def go_on(talk: Dialogue, reply: Tensor | None) -> None:
            if (request := _next(talk, reply, meter)) is not None:
                flying.append((talk, request, self._start(request, use)))

        def land_first() -> None:
            talk, request, finish = flying.popleft()
            reply = finish()
            meter.blocked(request)
            go_on(talk, reply)

        for talk in pipeline.talks:
            go_on(talk, None)
            while len(flying) >= IN_FLIGHT:
                land_first()
        while flying:
            land_first()

    # -- a message

    def _start(self, request: Request, use: str) -> Finish:
        """Starts it; the returned function waits for the reply."""
        if len(request.members) == 1:
            return lambda: alone([request])[0]
        slow = self._throttle is not None and not self.topology.is_inside(request.members)
        until = self._throttle.send(request.bytes_sent(self.rank), request.hops) if slow else None
        finish = self._send(request, self._groups[use, request.members])

        def wait() -> Tensor | None:
            reply = finish()
            if until is not None:
                self._throttle.wait(until)
            return reply

        return wait

    def _send(self, request: Request, group: dist.ProcessGroup) -> Finish:
        values, count = request.values, len(request.members)
        match request:
            case Sum():
                return _start_sum(values, group, count)
            case Swap(sizes=sizes):
                own = sizes[request.members.index(self.rank)]
                received = values.new_empty(count, own)
                work = _reached(
                    dist.all_to_all_single, received.view(-1), values, [own] * count, list(sizes), group=group,
                    async_op=True,
                )  # fmt: skip
            case Gather() if count == 2 and self.device.type == "cpu" and values.nbytes >= LONG_BYTES:
                return self._send_to_peer(values, group)
            case Gather():
                # Headers and trailers are on the CPU, which NCCL does not carry.
                received = torch.empty((count, *values.shape), dtype=values.dtype, device=self.device)
                sent = values.to(self.device).view(-1)
                work = _reached(all_gather, received.view(-1), sent, group=group, async_op=True)
            case Collect():
                leads = self.rank == request.members[0]
                received = values.new_empty(count, *values.shape) if leads else None
                rows = list(received) if leads else None
                work = _reached(dist.gather, values, rows, group=group, group_dst=0, async_op=True)
            case Spread():
                received = values
                work = _reached(dist.broadcast, values, group=group, group_src=0, async_op=True)

        def finish() -> Tensor | None:
            _reached(work.wait)
            return received if received is None else received.to(values.device)

        return finish

    def _send_to_peer(self, values: Tensor, group: dist.ProcessGroup) -> Finish:
        """A gather between two over gloo, whose own makes a message wait for the other direction's to end: up to 1.8
        times as long on a slow line. It is as fast as the line when the receive is posted first."""
        own = dist.get_rank(group)
        received = values.new_empty(2, *values.shape)
        received[own].copy_(values)
        receive = _reached(dist.irecv, received[1 - own], group=group, group_src=1 - own)
        send = _reached(dist.isend, values.contiguous(), group=group, group_dst=1 - own)

        def finish() -> Tensor:
            _reached(receive.wait)
            _reached(send.wait)
            return received

        return finish

    # -- for callers with something of their own to say

    def gather(self, row: Tensor) -> Tensor:
        """A tensor of the same shape on each replica -> all of them, [M, *shape], on the CPU of all."""
        everyone = tuple(range(self.replicas))
        return self._start(Gather(row.reshape(-1), everyone), OWN)().view(self.replicas, *row.shape).cpu()

    def gather_json(self, value: object) -> list:
        """Every replica's JSON value on all replicas, in rank order."""
        return gather_json(self.gather, value)

    def sum(self, values: Tensor) -> Tensor:
        """Sum over the replicas of a flat tensor, in replica order."""
        length = -(-values.numel() // self.replicas) * self.replicas
        padded = torch.zeros(length, dtype=values.dtype, device=self.device)
        padded[: values.numel()] = values
        total = self._start(Sum(padded, tuple(range(self.replicas))), OWN)()
        return total[: values.numel()].to(values.device)


class _Flight:
    arrival_s = 0.0

    def __init__(self, job: Job, pending: Pending | None) -> None:
        self.job, self._pending = job, pending

    def wait(self) -> None:
        began = time.perf_counter()
        self.settle()
        self.job.report.stall_s += time.perf_counter() - began

    def settle(self) -> None:
        if self._pending:
            self._pending.wait()


def _next(talk: Dialogue, reply: Tensor | None, meter: Meter) -> Request | Pipeline | None:
    """The dialogue's next request, None at its end; what lies between is arithmetic."""
    meter.resume()
    try:
        request = talk.send(reply)
    except StopIteration:
        request = None
    meter.computed()
    return request


def _start_sum(buffer: Tensor, group: dist.ProcessGroup, count: int) -> Finish:
    """The sum over the members of a buffer whose length their number divides, in rank order."""
    if count == 2:
        work = _reached(dist.all_reduce, buffer, group=group, async_op=True)

        def finish() -> Tensor:
            _reached(work.wait)
            return buffer

        return finish
    received = torch.empty_like(buffer)
    work = _reached(dist.all_to_all_single, received, buffer, group=group, async_op=True)

    def finish_in_order() -> Tensor:
        _reached(work.wait)
        first, *others = received.view(count, -1)
        for other in others:
            first += other
        _reached(all_gather, buffer, first, group=group)
        return buffer

    return finish_in_order


def _reached(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The call's result. Backends report a dead or silent peer as a bare RuntimeError; here it is a ConnectionError."""
    try:
        return call(*arguments, **options)
    except RuntimeError as error:
        raise ConnectionError(
            f"lost contact with another replica ({error}): see the other replicas' logs, then resume all of them from "
            "the last checkpoint"
        ) from error
