"""A made-up run folder that looks like a real one, for tests of everything that reads them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from diloco.watch.events import EventLog
from diloco.watch.runfolder import write_json, write_row

PARAMS, PARAMS_EMBEDDING = 800_000, 33_000
BATCH_TOKENS = 1024


def write_run(
    path: Path,
    *,
    method: str = "diloco",
    replicas: int = 4,
    sync_every: int = 30,
    steps: int = 600,
    seed: int = 0,
    worse: float = 1.0,
    failed_rounds: tuple[int, ...] = (),
    left_out: dict[int, list[int]] | None = None,
    ended: bool = True,
    final_loss: float | None = None,
    fragments: int = 1,
    link: str = "",
    step_s: float = 0.1,
) -> Path:
    """Write a run folder. `worse` scales the loss above its floor; `final_loss` overrides the last evaluation's. Over a
    `link` every step takes `step_s` of virtual time."""
    rng = random.Random(f"{seed} {method} {replicas} {sync_every}")
    offset = rng.gauss(0, 0.006)
    settings = {"method": method, "model": "1m", "replicas": replicas, "sync_every": sync_every, "seed": seed}
    config = {**settings, "link": link, "inner": {"lr": 0.003}, "data": {"sources": ["stdlib"]}}
    write_json(path / "config.json", {"config": config})

    def curve(step: int) -> float:
        return 1.2 + offset + worse * 4.3 / (1 + step / 12) ** 0.75

    rounds = 0
    with EventLog(path / "events.jsonl", clock=lambda: 1.7e9) as log:
        log.write("note", 0, text="started on 2 cores")
        for step in range(steps + 1):
            tokens = step * BATCH_TOKENS
            if step % 50 == 0:
                last = curve(step) if step < steps or final_loss is None else final_loss
                log.write(
                    "eval", step, tokens=tokens, loss=last, loss_se=0.004, bits_per_byte=last / math.log(2),
                    weights="global", **({"virtual_s": step * step_s} if link else {}),
                )  # fmt: skip
            if step == 0:
                continue
            losses = [curve(step) + rng.gauss(0, 0.12) for _ in range(replicas)]
            log.write(
                "train", step, tokens=tokens, loss=sum(losses) / replicas, loss_per_replica=losses, inner_lr=0.003,
                grad_norm=0.5, tokens_per_s=21_000.0,
            )  # fmt: skip
            for fragment in range(fragments if method == "diloco" else 0):
                if step >= sync_every and (step - fragment * sync_every // fragments) % sync_every == 0:
                    rounds += 1
                    out = (left_out or {}).get(rounds, [])
                    _write_round(log, rng, rounds, fragment, step, steps, rounds not in failed_rounds, out)
    if ended:
        loss = curve(steps) if final_loss is None else final_loss
        wire = {"link": link or None, "virtual_s": steps * step_s if link else None, "fragments": fragments}
        _write_end(path, settings, steps, rounds, len(failed_rounds), loss, wire)
    return path


def _write_round(log, rng, number, fragment, step, steps, committed, left_out) -> None:
    drift = (1.5 * math.exp(-step / steps) + 0.2) / (1 + fragment)
    log.write(
        "round", step, round=number, fragment=fragment, sent_step=step, committed=committed, partial=False, steps=30,
        left_out=left_out,
        spread_median=drift * rng.uniform(0.95, 1.05), spread_max=1.3 * drift * rng.uniform(0.95, 1.05),
        cosine_median=rng.uniform(0.6, 0.7), outer_gradient_norm=drift, outer_update_norm=0.8 * drift, outer_lr=0.7,
        checksum="abc", bytes_sent=4 * PARAMS, wire_s=rng.uniform(0.02, 0.03), wait_s=rng.uniform(0, 0.05),
        encode_s=rng.uniform(0.01, 0.02), stall_s=rng.uniform(0.03, 0.1), site_bytes_sent=0,
    )  # fmt: skip


def _write_end(path: Path, settings: dict, steps: int, rounds: int, failed: int, loss: float, wire: dict) -> None:
    is_dp = settings["method"] == "dp"
    bytes_sent = 4 * PARAMS * (steps if is_dp else rounds)
    write_json(
        path / "receipt.json",
        {
            "rounds_planned": rounds, "rounds_committed": rounds - failed, "rounds_failed": failed,
            "inner_steps": steps, "tokens": steps * BATCH_TOKENS, "tokens_lost": 0, "tokens_repeated": 0,
            "bytes_sent_per_replica": bytes_sent, "compute_s": 41.2, "wire_s": 0.6, "wait_s": 0.7,
            "checksum_per_round": ["abc"] * rounds, "link": wire["link"], "virtual_s": wire["virtual_s"],
            "overlap": 0, "mbit_per_s": 94.1, "stall_s": 1.3,
        },
    )  # fmt: skip
    row = {
        "run": path.name, **settings, "params": PARAMS, "params_embedding": PARAMS_EMBEDDING,
        "params_body": PARAMS - PARAMS_EMBEDDING, "tokens": steps * BATCH_TOKENS, "codec": "fp32",
        "fragments": wire["fragments"],
        "batch_tokens": BATCH_TOKENS, "inner_lr": 0.003, "outer_lr": None if is_dp else 0.7,
        "outer_momentum": None if is_dp else 0.9, "loss": loss, "loss_se": 0.004,
        "flops": 6.0 * PARAMS * steps * BATCH_TOKENS, "seconds": 42.5, "bytes_sent": bytes_sent,
    }  # fmt: skip
    write_row(path / "row.csv", row)


@pytest.fixture
def make_run() -> Callable[..., Path]:
    """`write_run`, for tests to call."""
    return write_run
