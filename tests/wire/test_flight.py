"""Transfers between real processes while inner steps go on: nothing waits, nothing hangs.

pytest tests/wire/test_flight.py
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from support.processes import _rank, run_ranks
from support.replicas import Fleet, inner_step, small_model
from support.streaming import GROUPS

import diloco

WAYS = [
    {"overlap": 2, "mixing": 0.5},
    {"overlap": 3, "fragments": GROUPS[3], "codec": "e3m0"},
    {"overlap": "delayed"},
    {"overlap": "eager", "fragments": GROUPS[2]},
]


class Gate:
    """In place of a throttle's waiting: a transfer goes on once the test lets it."""

    def __init__(self, exchange: diloco.Collective) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self.let_through: list[bool] = []
        exchange._throttle.wait = self.wait

    def wait(self, until: float) -> None:
        self.reached.set()
        self.let_through.append(self.opened.wait(20))


def _gated(rank: int, options: dict, steps_held: int) -> tuple[list[bool], list[str]]:
    exchange = diloco.Collective()
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    sync = diloco.DiLoCo(model, optimizer, sync_every=4, exchange=exchange, **options)
    exchange._throttle = diloco.wire.link.Throttle(diloco.Link.parse("1gbit"))
    gate = Gate(exchange)
    for t in range(4 + steps_held):
        inner_step(model, optimizer, rank, t)
    # The transfer is under way, has reached the gate, and the inner steps since did not wait for it.
    assert gate.reached.wait(20) and not sync.rounds and sync.airborne
    gate.opened.set()
    for t in range(4 + steps_held, 13):
        inner_step(model, optimizer, rank, t)
    sync.finish()
    return gate.let_through, [r.checksum for r in sync.rounds]


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_inner_steps_do_not_wait_for_a_transfer_report_107(options: dict) -> None:
    """A transfer that cannot end before the test allows it: if `step` waited for it, the gate would time out."""
    fleet = Fleet(2, **options)
    fleet.run(13)
    fleet.finish()
    held = 3 if isinstance(options["overlap"], str) else options["overlap"] - 1
    for let_through, checksums in run_ranks(2, _gated, options, held):
        assert let_through and all(let_through)
        assert checksums == [r.checksum for r in fleet.syncs[0].rounds]


def test_local_flights_stall_only_for_what_inner_steps_did_not_hide() -> None:
    """On the virtual clock: the longer the overlap, the shorter the stall."""
    stalls = []
    for overlap in (0, 1, 3):
        exchange = diloco.Local(2, link=diloco.Link(1e9, delay_s=1.0))
        models = [small_model() for _ in range(2)]
        syncs = [
            diloco.DiLoCo(
                m, torch.optim.SGD(m.parameters(), lr=0.1), sync_every=4, overlap=overlap, exchange=exchange, hook=False
            )
            for m in models
        ]
        for _ in range(8):
            for rank, sync in enumerate(syncs):
                exchange.clock.compute(rank, 2.0)
                sync.step()
        stalls.append(exchange.clock.stalled_s[0])
    # Header and trailer take a delay each and a sum two; there were two rounds, and with overlap only the first
    # has landed.
    assert stalls == pytest.approx([8.0, 2.0, 0.0], abs=0.5)


# -- faults


def start(replicas: int, folder: Path, work: Any) -> tuple[Any, list]:
    """As `run_ranks` does, for ranks of which not all live to return anything."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [
        context.Process(target=_rank, args=(r, results, replicas, str(folder), work, ()), daemon=True)
        for r in range(replicas)
    ]
    for process in processes:
        process.start()
    return results, processes


def _killed_in_flight(rank: int) -> None:
    exchange = diloco.Collective(timeout_s=30)
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    diloco.DiLoCo(model, optimizer, sync_every=4, overlap=2, exchange=exchange)
    exchange._throttle = diloco.wire.link.Throttle(diloco.Link.parse("1gbit"))
    if rank == 1:
        gate = Gate(exchange)
    for t in range(12):
        inner_step(model, optimizer, rank, t)
        if rank == 1 and t == 4:
            gate.reached.wait(20)
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_rank_killed_while_a_fragment_is_in_flight_ends_the_others_in_a_sentence(
    replicas: int, tmp_path: Path
) -> None:
    results, processes = start(replicas, tmp_path, _killed_in_flight)
    try:
        for _ in range(replicas - 1):
            rank, message = results.get(timeout=60)
            assert rank != 1
            assert message.startswith("ConnectionError: round 1 at inner step 4 lost contact with another replica")
            assert "resume all of them from the last checkpoint" in message
    finally:
        for process in processes:
            process.join(timeout=5)
            process.kill()


def _stopped(rank: int) -> list[str]:
    exchange = diloco.Collective()
    pids = exchange.gather(torch.tensor([os.getpid()])).flatten().tolist()
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    sync = diloco.DiLoCo(model, optimizer, sync_every=4, overlap=2, mixing=0.5, exchange=exchange)
    for t in range(13):
        if rank == 0 and t == 4:
            os.kill(pids[1], signal.SIGSTOP)
            threading.Timer(1.0, os.kill, (pids[1], signal.SIGCONT)).start()
        inner_step(model, optimizer, rank, t)
    sync.finish()
    return [r.checksum for r in sync.rounds]


@pytest.mark.slow
def test_a_rank_that_stands_still_for_a_second_is_waited_for() -> None:
    fleet = Fleet(2, overlap=2, mixing=0.5)
    fleet.run(13)
    fleet.finish()
    checksums = [r.checksum for r in fleet.syncs[0].rounds]
    assert run_ranks(2, _stopped) == [checksums, checksums]
