"""Real processes over gloo for tests: forked, so that they start in milliseconds, and joined with a deadline."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

DEADLINE_S = 120


def run_ranks(world: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`work(rank, *arguments)` in `world` processes of one gloo group on loopback; their return values in rank order.

    An exception comes back as the string "Type: message" in place of the value.
    """
    with tempfile.TemporaryDirectory() as folder:
        return fork_ranks(world, _rank, world, folder, work, arguments)


def fork_ranks(world: int, target: Callable[..., None], *arguments: Any) -> list[Any]:
    """Forks `target(rank, results, *arguments)` for every rank, which puts (rank, value) into `results`; the values in
    rank order. None outlives the deadline."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=target, args=(r, results, *arguments), daemon=True) for r in range(world)]
    for process in processes:
        process.start()
    try:
        found = dict(results.get(timeout=DEADLINE_S) for _ in processes)
    finally:
        for process in processes:
            process.join(timeout=10)
            process.kill()
    return [found[rank] for rank in range(world)]


def _rank(rank: int, results: Any, world: int, folder: str, work: Callable[..., Any], arguments: tuple) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=DEADLINE_S / 2))
    try:
        value = work(rank, *arguments)
    except Exception as error:
        value = f"{type(error).__name__}: {error}"
        if not isinstance(error, ValueError | RuntimeError | OSError):
            traceback.print_exc()
    results.put((rank, value))
    results.close()
    results.join_thread()
    dist.destroy_process_group()
