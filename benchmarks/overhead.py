"""What the wrapper costs between syncs, and what simulating M replicas in one process costs.

    python benchmarks/overhead.py [--size 1m] [--replicas 4] [--out overhead.json]

Both are ratios to the same loop without DiLoCo, the two loops taking turns block by block in one run; medians over the
blocks. One thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

import diloco
from diloco.train.inner import InnerConfig, build_inner
from diloco.train.loss import lm_loss
from diloco.train.model import build_model
from diloco.train.sizes import get_size

SEQ_LEN, VOCAB = 64, 256


class Loop:
    """Plain inner steps of M replicas in turn, with or without DiLoCo around their optimizers."""

    def __init__(self, size: str, replicas: int, sync_every: int | None) -> None:
        exchange = diloco.Local(replicas)
        self.replicas, self.syncs = [], []
        for _ in range(replicas):
            model = build_model(get_size(size), VOCAB, SEQ_LEN, seed=0)
            optimizers = build_inner(model, InnerConfig(), total_steps=1000)
            self.replicas.append((model, optimizers))
            if sync_every:
                options = {"sync_every": sync_every, "exchange": exchange, "outer": diloco.Nesterov(0.7, 0.6)}
                self.syncs.append(diloco.DiLoCo(model, optimizers, **options))
        generator = torch.Generator().manual_seed(0)
        self.batch_BT = torch.randint(0, VOCAB, (4, SEQ_LEN + 1), generator=generator)

    def steps(self, count: int) -> None:
        for _ in range(count):
            for model, optimizers in self.replicas:
                loss, _ = lm_loss(model(self.batch_BT[:, :-1]), self.batch_BT[:, 1:], 1e-4)
                loss.backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()


def compare(plain: Loop, wrapped: Loop, steps: int, blocks: int) -> dict:
    """Ratio of the wrapped to the plain loop, block by block; the two change places so that drift cancels."""
    ratios = []
    for block in range(blocks + 1):
        order = (plain, wrapped) if block % 2 else (wrapped, plain)
        took = {id(loop): _seconds(lambda loop=loop: loop.steps(steps)) for loop in order}
        ratios.append(took[id(wrapped)] / took[id(plain)])
    ratios = sorted(ratios[1:])
    return {"ratio": statistics.median(ratios), "quartiles": [ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]]}


def _seconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="1m", help="model size by name")
    parser.add_argument("--replicas", type=int, default=4, help="M, for the simulation")
    parser.add_argument("--blocks", type=int, default=20, help="pairs of blocks to time")
    parser.add_argument("--out", default="", help="JSON file for the result")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    between = compare(Loop(arguments.size, 1, None), Loop(arguments.size, 1, 10**9), 20, arguments.blocks)
    one, many = Loop(arguments.size, arguments.replicas, None), Loop(arguments.size, arguments.replicas, 30)
    simulated = compare(one, many, 30, arguments.blocks)
    names = {"between syncs": between, f"{arguments.replicas} replicas in one process, H = 30": simulated}
    for name, result in names.items():
        low, high = result["quartiles"]
        print(f"{name}: {result['ratio']:.4f} of the inner steps without DiLoCo (quartiles {low:.4f} to {high:.4f})")
    if arguments.out:
        with open(arguments.out, "w") as file:
            json.dump({"size": arguments.size, "torch": torch.__version__, **names}, file, indent=1)


if __name__ == "__main__":
    main()
