"""What is left of a run in two files: the receipt, which cannot hide a failed run, and the row that laws are fitted
on."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from diloco.train.config import TrainConfig
from diloco.train.sizes import train_flops
from diloco.wire.exchange import sum_bytes

if TYPE_CHECKING:
    from diloco.train.loop import Job


def make_receipt(job: Job, step: int, seconds: float) -> dict[str, Any]:
    """JSON values only. `ok` is False for a run of several replicas that never committed a round."""
    sync = job.replicas[0].sync
    own = _of_the_replica(sync.receipt(), job) if sync is not None else _data_parallel(job, step)
    last = job.evaluations.get(step)
    finished = step == job.total_steps
    return {
        "run": job.config.run_name,
        "method": job.config.method,
        "finished": finished,
        # A run that was stopped while its first round is under way has not failed.
        "ok": sync is None or own["rounds_committed"] > 0 or own["rounds_planned"] == own["rounds_airborne"],
        "steps": step,
        "steps_planned": job.total_steps,
        "tokens": step * job.config.batch_tokens,
        "loss": last.loss if last else None,
        "loss_se": last.loss_se if last else None,
        "bits_per_byte": last.bits_per_byte if last else None,
        "loss_weights": "global",
        "seconds": seconds,
        "link": job.config.link or None,
        "virtual_s": job.world.virtual_s,
        **own,
        "tokens_lost": own["tokens_lost"] + own.get("inner_steps_dropped", 0) * job.config.batch_tokens,
        "bytes_sent_data_parallel": step * _gradient_bytes(job),
    }


def make_row(job: Job, receipt: dict[str, Any]) -> dict[str, Any]:
    """One line with the columns that `watch.runfolder` names."""
    c, params = job.config, job.params
    return {
        "run": c.run_name,
        "method": c.method,
        "model": c.hf or c.size.lower(),
        **dataclasses.asdict(params),
        "tokens": receipt["tokens"],
        "replicas": c.replicas,
        "sync_every": 1 if c.method == "dp" else c.sync_every,
        "fragments": len(job.replicas[0].sync.fragments) if job.replicas[0].sync is not None else 1,
        "codec": job.replicas[0].sync.codec.name if job.replicas[0].sync is not None else "fp32",
        "batch_tokens": c.batch_tokens,
        "inner_lr": c.inner.lr,
        **_outer_columns(c),
        "seed": c.seed,
        "loss": receipt["loss"],
        "loss_se": receipt["loss_se"],
        "flops": train_flops(params.params, receipt["tokens"]),
        "seconds": receipt["seconds"],
        "bytes_sent": receipt["bytes_sent"],
    }


def _of_the_replica(own: dict[str, Any], job: Job) -> dict[str, Any]:
    """With the bytes that all of the replica's devices sent, each its own shards. Every process must call it."""
    island = job.world.exchange.island
    if island.size == 1:
        return own
    sent = {key: own[key] for key in _BYTES} | {"rounds": [[r[key] for key in _BYTES] for r in own["rounds"]]}
    ranks = island.gather_json(sent)
    rounds = [
        {**r, **{key: sum(rank["rounds"][i][k] for rank in ranks) for k, key in enumerate(_BYTES)}}
        for i, r in enumerate(own["rounds"])
    ]
    return {
        **own,
        **{key: sum(rank[key] for rank in ranks) for key in _BYTES},
        "bytes_sent_per_device": [rank["bytes_sent"] for rank in ranks],
        "rounds": rounds,
    }


_BYTES = ("bytes_sent", "site_bytes_sent")


def _outer_columns(config: TrainConfig) -> dict[str, float | None]:
    """None for what the run has not got, so that no law is fitted on a setting without effect."""
    outer = config.outer
    if config.method != "diloco":
        return {"outer_lr": None, "outer_momentum": None}
    return {
        "outer_lr": 1.0 if outer.optimizer == "average" else outer.lr,
        "outer_momentum": outer.momentum if outer.optimizer in ("nesterov", "heavyball") else None,
    }


def _data_parallel(job: Job, step: int) -> dict[str, Any]:
    replicas = job.config.replicas
    return {
        "replica": job.world.mine[0],
        "replicas": replicas,
        "inner_steps": step,
        "tokens_per_replica": [step * job.config.batch_tokens // replicas] * replicas,
        "tokens_lost": 0,
        "bytes_sent": step * _gradient_bytes(job),
    }


def _gradient_bytes(job: Job) -> int:
    """Bytes a replica of the same number sends in one synchronous data-parallel step, with fp32 gradients."""
    return sum_bytes(4 * job.params.params, job.config.replicas)
