"""What the virtual clock says a cell's step takes: both replicas in this one process, no network.

python virtual.py '{"model": "1m", "method": "diloco", "link": "20mbit", "path": "virtual"}' OUT.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import diloco
from diloco.train.sizes import count, get_size
from diloco.wire.exchange import sum_bytes
from diloco.wire.link import Link, VirtualClock
from slow_link.cells import REPLICAS, SYNC_EVERY, VOCAB, WARMUP_STEPS, Cell
from slow_link.loop import Loop
from slow_link.methods import wrap

# An all-reduce is a reduce-scatter and an all-gather.
SUM_HOPS = 2
DP_STEPS = 20
# Every so many inner steps one is really taken; those between are held to last as long.
COMPUTED_EVERY = 5


def predict(cell: Cell) -> float:
    """Seconds a step."""
    loops = [Loop(cell.model, seed) for seed in range(REPLICAS)]
    for loop in loops:
        loop.seconds(WARMUP_STEPS)
    return _data_parallel_s(cell, loops) if cell.method == "dp" else _diloco_s(cell, loops)


def _diloco_s(cell: Cell, loops: list[Loop]) -> float:
    exchange = diloco.Local(REPLICAS, link=Link.parse(cell.link))
    methods = [wrap(cell, loop, exchange) for loop in loops]
    for method in methods:
        method.begin()
    before, took_s = exchange.clock.elapsed_s, [0.0] * REPLICAS
    for step in range(SYNC_EVERY):
        for rank, (loop, method) in enumerate(zip(loops, methods, strict=True)):
            if step % COMPUTED_EVERY == 0:
                (took_s[rank],) = loop.seconds(1)
            else:
                exchange.clock.compute(rank, took_s[rank])
            method.sync()
    return (exchange.clock.elapsed_s - before) / SYNC_EVERY


def _data_parallel_s(cell: Cell, loops: list[Loop]) -> float:
    clock = VirtualClock(REPLICAS, Link.parse(cell.link))
    payload = sum_bytes(4 * count(get_size(cell.model), VOCAB).params, REPLICAS)
    for _ in range(DP_STEPS):
        for rank, loop in enumerate(loops):
            clock.compute(rank, sum(loop.seconds(1)))
        arrival = max(clock.send(rank, payload, SUM_HOPS, clock.now(rank)) for rank in range(REPLICAS))
        for rank in range(REPLICAS):
            clock.wait(rank, arrival)
    return clock.elapsed_s / DP_STEPS


def main() -> None:
    torch.set_num_threads(1)
    cell = Cell(**json.loads(sys.argv[1]))
    Path(sys.argv[2]).write_text(json.dumps({"step_s": predict(cell)}))


if __name__ == "__main__":
    main()
