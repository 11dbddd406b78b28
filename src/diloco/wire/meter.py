"""Where a round's time goes: counted into its report while an exchange drives it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from diloco.outer.dialogue import Request, Topology
from diloco.outer.report import RoundReport
from diloco.wire.exchange import Message

Mark = Any  # seconds on the CPU's clock, or a CUDA event


class Meter:
    """Books bytes and seconds of one job on one replica, lap by lap; tells `on_message` of every message.

    On a CUDA device the laps are cut by events on the current stream, since the calls themselves return at once; they
    are read in `settle`, when the work has been done.
    """

    def __init__(
        self,
        report: RoundReport,
        rank: int,
        topology: Topology,
        on_message: Callable[[Message], None] | None,
        device: torch.device | None = None,
    ) -> None:
        self.report, self.rank, self.topology, self.on_message = report, rank, topology, on_message
        self._on_gpu = device is not None and device.type == "cuda"
        self._laps: list[tuple[Request | None, float | None, Mark, Mark]] = []
        self.resume()

    def resume(self) -> None:
        """What has passed since the last call was somebody else's."""
        self._mark = self._now()

    def computed(self) -> None:
        """What has passed since the last call was arithmetic."""
        self._lap(None, None)

    def blocked(self, request: Request, seconds: float | None = None) -> None:
        """What has passed since the last call was waiting for the reply; `seconds` instead, on a virtual clock."""
        self._lap(request, seconds)

    def settle(self) -> None:
        """Writes it all into the report."""
        replied = 0
        for request, seconds, begin, end in self._laps:
            seconds = self._between(begin, end) if seconds is None else seconds
            if request is None:
                self.report.encode_s += seconds
            else:
                self._book(request, seconds, first=not replied)
                replied += 1
        self._laps = []

    def _book(self, request: Request, seconds: float, first: bool) -> None:
        report, sent = self.report, request.bytes_sent(self.rank)
        # The first message of a round waits for the slowest replica to arrive; the others only for the network.
        if first:
            report.wait_s += seconds
        else:
            report.wire_s += seconds
        report.bytes_sent += sent
        report.site_bytes_sent += sent if self.topology.is_inside(request.members) else 0
        if self.on_message:
            kind = type(request).__name__
            self.on_message(Message(kind, request.members, sent, seconds, report.round, report.fragment))

    def _lap(self, request: Request | None, seconds: float | None) -> None:
        begin, self._mark = self._mark, self._now()
        self._laps.append((request, seconds, begin, self._mark))

    def _now(self) -> Mark:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, begin: Mark, end: Mark) -> float:
        if not self._on_gpu:
            return end - begin
        end.synchronize()
        return begin.elapsed_time(end) / 1e3
