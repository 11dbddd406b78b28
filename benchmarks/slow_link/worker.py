"""One rank of one cell: what slow_link.py starts inside a namespace. Writes a JSON file of what it measured.

python worker.py '{"model": "1m", "method": "dp", "link": "20mbit", "path": "tbf"}' OUT.json
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from slow_link.cells import BASELINE_STEPS, WARMUP_STEPS, Cell
from slow_link.loop import Loop, Method, Times
from slow_link.methods import build
from slow_link.net import line_bytes, socket_bytes


def measure(cell: Cell) -> dict:
    """Times of `cell.steps` steps, and of steps without a sync before and after them, on this rank."""
    loop = Loop(cell.model, seed=dist.get_rank())
    loop.seconds(WARMUP_STEPS)
    dist.barrier()
    alone_s = loop.seconds(BASELINE_STEPS[cell.model])
    method = build(cell, loop)
    method.begin()
    dist.barrier()
    times, sent_before = Times(), _sent(method)
    start = time.perf_counter()
    for _ in range(cell.steps):
        times.step(loop, method, line_bytes)
    total_s = time.perf_counter() - start
    sent = {name: n - sent_before[name] for name, n in _sent(method).items()}
    rounds = method.rounds()
    method.close()
    dist.barrier()
    alone_s += loop.seconds(BASELINE_STEPS[cell.model])
    return {
        "total_s": total_s,
        "alone_s": alone_s,
        **sent,
        "rounds": rounds,
        "torch": torch.__version__,
        **dataclasses.asdict(times),
    }


def _sent(method: Method) -> dict[str, int]:
    """Bytes this rank has sent so far, as each of those who count them says."""
    counts = {"line_bytes": line_bytes(), "socket_bytes": socket_bytes(dist.get_rank())}
    return counts if method.metered_bytes is None else {**counts, "metered_bytes": method.metered_bytes()}


def main() -> None:
    cell = Cell(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    result = measure(cell)
    Path(sys.argv[2]).write_text(json.dumps(result))
    dist.barrier()
    # torchft leaves threads behind that keep an interpreter from ending.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
