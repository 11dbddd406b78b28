"""M replicas in one process, in lock step: the same rounds and the same bits as over a network, without one.

With a link the time such a network would take is added up on a virtual clock, so that a laptop shows how long a run
would last over a wide-area link.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from diloco.errors import BadInput
from diloco.outer.dialogue import Collect, Dialogue, Gather, Members, Pipeline, Request, Spread, Sum, Swap, Topology
from diloco.outer.island import Alone
from diloco.outer.report import Mismatch
from diloco.wire.exchange import Facts, Job, Message, check_equal
from diloco.wire.link import Link, VirtualClock, as_link
from diloco.wire.meter import Meter


class Local:
    """Give the same object to the `DiLoCo` of every replica. A round runs when the last replica has reached it.

    The replicas must take their inner steps in turn: each its step t before any takes step t + 1. `link` is what would
    join them; `on_message` is told of every message.
    """

    def __init__(
        self, replicas: int = 1, link: Link | str | None = None, on_message: Callable[[Message], None] | None = None
    ) -> None:
        if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
            raise BadInput(f"replicas is {replicas!r}: give a whole number, 1 or more")
        self.replicas, self.on_message = replicas, on_message
        self.topology = Topology((tuple(range(replicas)),))
        self.device: torch.device | None = None
        self.island = Alone()
        self.site_every = 0
        self.clock = VirtualClock(replicas, as_link(link)) if link else None
        self.arithmetic_s: list[float] | None = None
        """What codecs cost on this machine, once measured (see `choose.py`)."""
        self._facts: list[Facts] = []
        self._source: list[Tensor] = []
        self._waiting: dict[tuple[int, ...], list[deque[_Flight]]] = {}
        self._last_arrival_s = 0.0
        """Of the replicas' rounds, which follow one another as over a network, on the virtual clock."""
        self._left_at = time.perf_counter()

    def arrange(self, topology: Topology, site_every: int) -> None:
        """Divides the replicas into sites; see `Hierarchical`."""
        self.topology, self.site_every = topology, site_every

    def agree(self, facts: Facts) -> None:
        """Nothing hangs upon it in one process; `join` compares them."""

    def refuse(self, sentence: str) -> None:
        """The other replicas hear of it from the same stack."""

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

    # -- the clock

    def step_begins(self) -> None:
        self._left_at = time.perf_counter()

    def step_ends(self, *ranks: int) -> float:
        seconds = (time.perf_counter() - self._left_at) / len(ranks)
        for rank in ranks if self.clock else ():
            self.clock.compute(rank, seconds)
        return seconds

    def pass_time(self, sent_bytes: int) -> None:
        """Puts a sum of all replicas on the virtual clock, which a caller has computed by itself."""
        if not self.clock:
            return
        ready_s = self.clock.elapsed_s
        hops = min(self.replicas - 1, 1) + self.replicas - 1
        arrival_s = max(self.clock.send(rank, sent_bytes, hops, ready_s) for rank in range(self.replicas))
        for rank in range(self.replicas):
            self.clock.wait(rank, arrival_s)

    # -- a round

    def run(self, rank: int, job: Job) -> None:
        self._arrive(rank, job, lands=True)

    def start(self, rank: int, job: Job) -> _Flight:
        return self._arrive(rank, job, lands=False)

    def arrived(self, rank: int, job: Job, arrival_s: float) -> _Flight:
        flight = _Flight(self, rank, job, lands=False)
        flight.ended, flight.arrival_s = True, arrival_s
        self._last_arrival_s = max(self._last_arrival_s, arrival_s)
        return flight

    def _arrive(self, rank: int, job: Job, lands: bool) -> _Flight:
        if len(self._facts) < self.replicas:
            raise Mismatch(
                f"a sync is due but only {len(self._facts)} of {self.replicas} replicas were built: "
                "build a DiLoCo for every replica before the first step"
            )
        queues = self._waiting.setdefault(job.members, [deque() for _ in job.members])
        mine = queues[job.members.index(rank)]
        if any(other.job.report.step < job.report.step for other in mine):
            behind = sorted(m for m, queue in zip(job.members, queues, strict=True) if not queue)
            raise Mismatch(
                f"replica {rank} reached its next sync while replicas {behind} have not reached the last one: in one "
                "process all replicas must step in turn"
            )
        flight = _Flight(self, rank, job, lands)
        mine.append(flight)
        if all(queues):
            self._run([queue.popleft() for queue in queues])
        return flight

    def _run(self, flights: list[_Flight]) -> None:
        apart, began = flights[0].job.apart, time.perf_counter()
        lockstep = _Lockstep(self, flights, not_before_s=0.0 if apart else self._last_arrival_s)
        lockstep.drive([f.job.talk() for f in flights])
        if not apart:
            self._last_arrival_s = lockstep.ready_s
        for meter in lockstep.meters:
            meter.settle()
        for flight in flights:
            flight.ended, flight.arrival_s = True, lockstep.ready_s
            if flight.lands:
                flight.job.report.stall_s = (time.perf_counter() - began) / len(flights)
                flight.wait()
            if self.clock:
                # Arithmetic runs on the cores the inner steps run on, while a message is under way or after it.
                self.clock.compute(flight.rank, flight.job.report.encode_s)
        for flight in flights:
            if flight.lands:
                flight.job.land()


class _Flight:
    def __init__(self, local: Local, rank: int, job: Job, lands: bool) -> None:
        self._local, self.rank, self.job, self.lands = local, rank, job, lands
        self.ended, self.arrival_s, self._stall_s = False, 0.0, 0.0

    def wait(self) -> None:
        self.settle()
        if clock := self._local.clock:
            self._stall_s += clock.wait(self.rank, self.arrival_s)
            self.job.report.stall_s = self._stall_s

    def settle(self) -> None:
        if not self.ended:
            raise Mismatch(
                f"replica {self.rank} waits for a round that not all replicas have reached: in one process all "
                "replicas must step in turn"
            )


class _Lockstep:
    """Drives the same dialogue on all its members, request by request."""

    def __init__(self, local: Local, flights: Sequence[_Flight], not_before_s: float) -> None:
        self.clock, self.topology, self.ranks = local.clock, local.topology, [f.rank for f in flights]
        self.meters = [Meter(f.job.report, f.rank, local.topology, local.on_message) for f in flights]
        self.ready_s = max(not_before_s, *(self.clock.now(r) for r in self.ranks)) if self.clock else 0.0
        """When the last reply was there, on the virtual clock."""

    def drive(self, talks: Sequence[Dialogue]) -> None:
        asked: dict[int, Request | Pipeline] = {}
        replies: dict[int, Tensor | None] = dict.fromkeys(range(len(talks)))
        while replies:
            for index, reply in replies.items():
                self.meters[index].resume()
                with contextlib.suppress(StopIteration):
                    asked[index] = talks[index].send(reply)
                self.meters[index].computed()
            replies = self._answer(asked)
            asked = {index: request for index, request in asked.items() if index not in replies}
        if asked:
            raise RuntimeError(f"replicas {[self.ranks[i] for i in asked]} wait for messages that nobody sends")

    def _answer(self, asked: dict[int, Request | Pipeline]) -> dict[int, Tensor | None]:
        """Replies to all whose members have all asked."""
        if asked and all(isinstance(request, Pipeline) for request in asked.values()):
            began = ended = self.ready_s
            for talks in zip(*(request.talks for request in asked.values()), strict=True):
                # Buckets travel side by side, so each is ready when the round is; the line keeps them apart.
                self.ready_s = began
                self.drive(talks)
                ended = max(ended, self.ready_s)
            self.ready_s = ended
            return dict.fromkeys(asked)
        replies: dict[int, Tensor | None] = {}
        for index, request in asked.items():
            # In rank order: one that waits already was asked for first.
            peers = sorted(i for i, r in asked.items() if _among(r, request.members))
            if index == peers[0] and len(peers) == len(request.members):
                replies |= zip(peers, self._exchange(peers, [asked[i] for i in peers]), strict=True)
        return replies

    def _exchange(self, peers: list[int], requests: list[Request]) -> list[Tensor | None]:
        waited_s = None
        if self.clock and not self.topology.is_inside(requests[0].members):
            arrivals = [
                self.clock.send(self.ranks[i], r.bytes_sent(self.ranks[i]), r.hops, self.ready_s)
                for i, r in zip(peers, requests, strict=True)
            ]
            waited_s, self.ready_s = max(arrivals) - self.ready_s, max(arrivals)
        for index in peers:
            self.meters[index].resume()
        replies = reply(requests)
        for index, request in zip(peers, requests, strict=True):
            self.meters[index].blocked(request, waited_s)
        return replies


def _among(request: Request | Pipeline, members: Members) -> bool:
    return not isinstance(request, Pipeline) and request.members == members


def reply(requests: Sequence[Request]) -> list[Tensor | None]:
    """The replies to one request from each of its members, in rank order."""
    values = [r.values for r in requests]
    match requests[0]:
        case Sum():
            total = values[0]
            for other in values[1:]:
                total += other
            return [total, *(other.copy_(total) for other in values[1:])]
        case Swap(sizes=sizes):
            parts = [v.split(sizes) for v in values]
            return [torch.stack([p[j] for p in parts]) for j in range(len(values))]
        case Gather():
            return [torch.stack(values)] * len(values)
        case Collect():
            return [torch.stack(values), *([None] * (len(values) - 1))]
        case Spread():
            return [values[0], *(other.copy_(values[0]) for other in values[1:])]
