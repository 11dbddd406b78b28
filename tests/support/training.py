"""Tiny training runs for tests: 30k parameters on a few thousand made-up words, in this process or over gloo ranks."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from support.processes import fork_ranks

from diloco import checkpoint
from diloco.train.config import TrainConfig
from diloco.train.data.config import DataConfig
from diloco.train.loop import Job, train
from diloco.train.progress import Progress
from diloco.train.run import run_path
from diloco.train.world import enter_world
from diloco.watch import runfolder
from diloco.watch.events import read_events

SEQ_LEN = 32


def tiny(folder: Path, **changes: Any) -> TrainConfig:
    """17 steps of 8 sequences on 2 replicas, H = 4: four rounds and a last window of one step."""
    options = {
        "size": "30k",
        "replicas": 2,
        "steps": 17,
        "batch_tokens": 8 * SEQ_LEN,
        "sync_every": 4,
        "eval_every": 6,
        "eval_sequences": 8,
        "threads": 1,
        "runs": str(folder / "runs"),
        "data": DataConfig(sources=(str(_text(folder)),), seq_len=SEQ_LEN, cache_dir=str(folder / "cache")),
    }
    return TrainConfig(**{**options, **changes})


def _text(folder: Path) -> Path:
    path = folder / "text.txt"
    if not path.exists():
        rng = random.Random(0)
        words = ["".join(rng.choices("abcdefgh", k=rng.randint(2, 6))) for _ in range(200)]
        path.write_text(" ".join(rng.choices(words, k=20_000)))
    return path


@contextlib.contextmanager
def open_job(config: TrainConfig) -> Iterator[Job]:
    """A run before its first step, to be looked into."""
    with enter_world(config) as world, Progress(config, show=False) as progress:
        with contextlib.closing(Job(config, world, progress)) as job:
            job.start()
            yield job


def quiet_train(config: TrainConfig, **changes: Any) -> dict:
    return train(dataclasses.replace(config, **changes), quiet=True)


def train_over_ranks(config: TrainConfig, ranks: int) -> list[Any]:
    """`train(config)` in `ranks` forked processes, as torchrun would start them; receipts in rank order, an exception
    as the string "Type: message"."""
    return fork_ranks(ranks, _rank, ranks, free_port(), lambda: train(config, quiet=True))


def job_over_ranks(config: TrainConfig, ranks: int, work: Callable[[Job], Any]) -> list[Any]:
    """`work(job)` in `ranks` forked processes, each with its part of the run; what it returns, in rank order."""

    def of_rank() -> Any:
        with open_job(config) as job:
            return work(job)

    return fork_ranks(ranks, _rank, ranks, free_port(), of_rank)


def _rank(rank: int, results: Any, ranks: int, port: int, work: Callable[[], Any]) -> None:
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(ranks),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    try:
        value = work()
    except Exception as error:
        value = f"{type(error).__name__}: {error}"
    results.put((rank, value))
    results.close()
    results.join_thread()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# -- what a run left


def events(config: TrainConfig, *kinds: str) -> list[dict]:
    return list(read_events(run_path(config) / runfolder.EVENTS, kinds or None))


def curve(config: TrainConfig) -> list[tuple]:
    """What the run logged of every inner step, without the clock."""
    return [
        (e["step"], e["tokens"], e["loss"], e["loss_per_replica"], e["grad_norm"], e["inner_lr"])
        for e in events(config, "train")
    ]


def rounds(config: TrainConfig) -> list[dict]:
    return [without_clock(e) for e in events(config, "round")]


def evals(config: TrainConfig) -> list[dict]:
    return [without_clock(e) for e in events(config, "eval")]


def intervals(config: TrainConfig) -> list[dict]:
    return [without_clock(e) for e in events(config, "interval")]


def without_clock(record: dict) -> dict:
    return {k: v for k, v in record.items() if k not in ("time", "seconds") and not k.endswith("_s")}


def checkpoint_bits(config: TrainConfig) -> dict[str, Any]:
    """Everything in the newest checkpoint by path, tensors as their bytes, without the clock."""
    path, skipped = checkpoint.latest_whole(run_path(config) / runfolder.CHECKPOINTS)
    assert path is not None and not skipped
    trees, meta = checkpoint.load(path)
    return {"step": meta["step"], **_flat(trees, "")}


def assert_same_run(config: TrainConfig, receipt: dict, other: TrainConfig, other_receipt: dict) -> None:
    """Every logged number, every bit of the last checkpoint and the receipt, but for the clock and the name."""
    assert curve(config) == curve(other)
    assert [e["step"] for e in events(config, "train")] == list(range(1, config.steps + 1))
    assert rounds(config) == rounds(other) and evals(config) == evals(other)
    assert intervals(config) == intervals(other)
    assert checkpoint_bits(config) == checkpoint_bits(other)
    receipt, other_receipt = (
        {**without_clock(r), "run": "", "rounds": [without_clock(x) for x in r.get("rounds", [])]}
        for r in (receipt, other_receipt)
    )
    assert receipt == other_receipt and receipt["finished"] and receipt["ok"]


def assert_same_numbers(one: TrainConfig, many: TrainConfig) -> None:
    """Bitwise: losses of every replica and step, gradient norms, rounds with their checksums, evaluations, last
    checkpoint."""
    assert curve(one) == curve(many) and len(curve(one)) == one.steps
    assert all(len(losses) == one.replicas for _, _, _, losses, _, _ in curve(one))
    assert rounds(one) == rounds(many)
    assert evals(one) == evals(many) and intervals(one) == intervals(many)
    assert checkpoint_bits(one) == checkpoint_bits(many)


def _flat(tree: Any, path: str) -> dict[str, Any]:
    if isinstance(tree, torch.Tensor):
        return {path: (tree.dtype, tuple(tree.shape), tree.numpy().tobytes())}
    if isinstance(tree, dict):
        tree = {k: v for k, v in tree.items() if not str(k).endswith("_s")}
    elif isinstance(tree, list | tuple):
        tree = dict(enumerate(tree))
    else:
        return {path: tree}
    return {k: v for key, value in tree.items() for k, v in _flat(value, f"{path}/{key}").items()}
