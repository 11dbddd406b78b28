"""What going on from a lossy checkpoint costs in loss, beside going on from the exact state.

    python studies/checkpoints/lossy.py [--size 300k] [--steps 1500] [--resume-at 1000] [--seeds 3] [--out lossy.csv]

Trains to `--resume-at`; on the way every 100th step's state (anchor, outer momentum, weights and both Adam moments of
all replicas) is a link of lossy chains: ten links by default. Then the run goes on from the exact state, from each
chain's end, and from the exact weights with noise in their last bits, which says what any difference at all does. Same
data for all; the held-out loss is of the global weights at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import csv
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diloco.checkpoint import delta_lossy
from diloco.train.config import TrainConfig
from diloco.train.evaluate import evaluate
from diloco.train.inner import InnerConfig
from diloco.train.loop import Job
from diloco.train.progress import Progress
from diloco.train.world import enter_world

EVERY = 100
FULL_EVERY = 10
NOISE = 2.0**-22
LEVELS = {"int8": 127, "6 bits": 31, "4 bits": 7}
"""Codes up to so much on either side; the package has the first."""


def over_tensors(tree: Any, work: Any, path: str = "") -> Any:
    """The tree with `work(path, tensor)` in the place of every tensor."""
    if isinstance(tree, Tensor):
        return work(path, tree)
    if isinstance(tree, dict):
        return {key: over_tensors(value, work, f"{path}/{key}") for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(over_tensors(value, work, f"{path}/{i}") for i, value in enumerate(tree))
    return tree


class Chain:
    """What a reader of a chain of lossy links has, and how many bytes it took."""

    def __init__(self, levels: int) -> None:
        self.levels, self.links = levels, 0
        self.state: dict[str, Tensor] = {}
        self.full_bytes = self.bytes = 0

    def append(self, trees: list) -> list:
        """Returns the trees as a reader has them after this link."""
        if self.links % FULL_EVERY == 0:
            self.state.clear()
        self.links += 1
        delta_lossy.LEVELS = self.levels
        return over_tensors(trees, self._link)

    def _link(self, path: str, tensor: Tensor) -> Tensor:
        base = self.state.get(path)
        payload, recipe = delta_lossy.encode(tensor, base)
        self.state[path] = delta_lossy.decode(payload, recipe, base)
        self.full_bytes += tensor.nbytes
        self.bytes += payload.numel()
        return self.state[path].clone()


def snapshot(job: Job) -> list[dict]:
    return [
        {
            "model": r.model.state_dict(),
            "optimizers": [o.state_dict() for o in r.optimizers],
            "sync": r.sync.state_dict(),
        }
        for r in job.replicas
    ]


def restore(job: Job, trees: list[dict]) -> None:
    for replica, tree in zip(job.replicas, copy.deepcopy(trees), strict=True):
        replica.model.load_state_dict(tree["model"])
        for optimizer, state in zip(replica.optimizers, tree["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        replica.sync.load_state_dict(tree["sync"])


def jiggled(trees: list[dict], seed: int) -> list[dict]:
    """Weights, alike in all replicas and the anchor, with relative noise in their last bits."""

    def noise(path: str, tensor: Tensor) -> Tensor:
        if "/model/" not in path and "/anchor/" not in path:
            return tensor
        generator = torch.Generator().manual_seed(seed)
        return tensor * (1 + NOISE * torch.randn(tensor.shape, generator=generator))

    return over_tensors(trees, noise)


def one_seed(seed: int, arguments: argparse.Namespace) -> list[dict]:
    with tempfile.TemporaryDirectory() as runs, contextlib.ExitStack() as stack:
        config = TrainConfig(
            replicas=2, sync_every=10, size=arguments.size, steps=arguments.steps, seed=seed, eval_every=-1,
            checkpoint_every=0, runs=runs, name="study", inner=InnerConfig(lr=arguments.lr),
        )  # fmt: skip
        world = stack.enter_context(enter_world(config))
        job = stack.enter_context(
            contextlib.closing(Job(config, world, stack.enter_context(Progress(config, show=False))))
        )
        job.start()
        chains = {name: Chain(levels) for name, levels in LEVELS.items()}
        starts = {}
        for step in range(1, arguments.resume_at + 1):
            job.inner_step(step - 1)
            if step % EVERY == 0:
                exact = copy.deepcopy(snapshot(job))
                starts = {"exact": exact} | {name: chain.append(exact) for name, chain in chains.items()}
        starts["last bits"] = jiggled(starts["exact"], seed)
        rows = []
        for name, trees in starts.items():
            restore(job, trees)
            at_once = loss_of(job)
            for step in range(arguments.resume_at, arguments.steps):
                job.inner_step(step)
            job.finish()
            rows.append({"seed": seed, "from": name, "loss_at_once": at_once, "loss_at_end": loss_of(job)})
            if name in chains:
                rows[-1]["share"] = chains[name].bytes / chains[name].full_bytes
            print(rows[-1], flush=True)
        return rows


def loss_of(job: Job) -> float:
    replica = job.replicas[0]
    result = evaluate(replica.model, replica.global_weights(), job.data, 1024, "fp32", job.world.device)
    return result.loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="300k")
    parser.add_argument("--lr", type=float, default=0.004)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--resume-at", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("lossy.csv"))
    arguments = parser.parse_args()
    rows = [row for seed in range(arguments.seeds) for row in one_seed(seed, arguments)]
    with open(arguments.out, "w", newline="") as file:
        columns = ["seed", "from", "loss_at_once", "loss_at_end", "share"]
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
