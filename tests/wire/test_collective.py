"""Real gloo processes against replicas in one process: the same losses, the same bits; refusals, faults, and silence
between syncs.

pytest tests/wire/test_collective.py
"""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
from support.processes import run_ranks
from support.replicas import Fleet, inner_step, small_model, weights_of
from torch import nn

import diloco
from diloco.selftest.worker import Messages
from diloco.wire.collective import Collective


def _train(rank: int, steps: int, options: dict) -> tuple[list[float], list[str], dict]:
    torch.manual_seed(rank)
    model = small_model(rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    sync = diloco.DiLoCo(model, optimizer, sync_every=4, **options)
    losses = [inner_step(model, optimizer, rank, t) for t in range(steps)]
    sync.finish()
    return losses, [r.checksum for r in sync.rounds], sync.receipt()


@pytest.mark.parametrize("replicas", [2, 3, 4])
@pytest.mark.parametrize(
    "options", [{}, {"outer": diloco.Adam()}, {"outer": diloco.HeavyBall(clip=0.1)}, {"bucket_bytes": 100}], ids=str
)
def test_processes_equal_one_process_to_the_bit_report_101(replicas: int, options: dict) -> None:
    """Losses of every step, and the global checksum of every round, for two ranks (all-reduce) and more (sum in rank
    order)."""
    fleet = Fleet(replicas, **options)
    losses = fleet.run(14)
    fleet.finish()
    found = run_ranks(replicas, _train, 14, options)
    for m, (own, checksums, _) in enumerate(found):
        assert own == [row[m] for row in losses]
        assert checksums == [r.checksum for r in fleet.syncs[0].rounds]


def test_spread_norms_and_bytes_agree_with_one_process() -> None:
    fleet = Fleet(3)
    fleet.run(8)
    (_, _, receipt), *_ = run_ranks(3, _train, 8, {})
    for ours, theirs in zip(fleet.syncs[0].receipt()["rounds"], receipt["rounds"], strict=True):
        same = [k for k in ours if not k.endswith("_s")]
        assert {k: ours[k] for k in same} == {k: theirs[k] for k in same}


def _sum(rank: int) -> dict:
    exchange = Collective()
    big = torch.full((10_007,), float(rank + 1))
    return {
        "sum": exchange.sum(big).unique().tolist(),
        "shape": list(exchange.gather(torch.zeros(3, 2)).shape),
        "int": exchange.gather(torch.tensor([rank * 2**40], dtype=torch.int64)).flatten().tolist(),
        "json": exchange.gather_json({"rank": rank, "text": "ü" * rank}),
    }


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_sums_are_sums_report_13_and_14(replicas: int) -> None:
    """Never divided by the number of elements, never twice by the number of ranks; 64-bit integers arrive whole."""
    for found in run_ranks(replicas, _sum):
        assert found["sum"] == [replicas * (replicas + 1) / 2]
        assert found["shape"] == [replicas, 3, 2]
        assert found["int"] == [r * 2**40 for r in range(replicas)]
        assert found["json"] == [{"rank": r, "text": "ü" * r} for r in range(replicas)]


def _dtype(rank: int, dtype: torch.dtype) -> bool:
    model = nn.Linear(4, 3).to(dtype)
    sync = diloco.DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.1), sync_every=1, hook=False)
    with torch.no_grad():
        model.weight.add_(rank)
    sync.step()
    return sync.rounds[0].committed


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_dtype_travels_report_82(dtype: torch.dtype) -> None:
    assert run_ranks(2, _dtype, dtype) == [True, True]


def _differ(rank: int, what: str) -> None:
    model = nn.Linear(4, 3 + (what == "shape") * rank)
    options = {
        "sync_every": 4 + (what == "sync_every") * rank,
        "facts": {"tokenizer": f"t{rank}" if what == "tokenizer" else "t"},
    }
    diloco.DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)


@pytest.mark.parametrize(
    "what, words", [("sync_every", "sync_every differs: 4 on"), ("shape", "(3, 4)"), ("tokenizer", "tokenizer differs")]
)
def test_differences_are_refused_on_all_ranks_alike_report_103(what: str, words: str) -> None:
    found = run_ranks(3, _differ, what)
    assert len(set(found)) == 1
    assert found[0].startswith("BadInput: ") and (words in found[0] or "trained" in found[0])


def _nan(rank: int, replicas: int) -> tuple[list[int], list[float]]:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    sync = diloco.DiLoCo(model, optimizer, sync_every=4)
    for t in range(8):
        if rank == 1 and t == 3:
            with torch.no_grad():
                model.scale.fill_(float("nan"))
        inner_step(model, optimizer, rank, t)
    return sync.rounds[0].left_out, sync.rounds[1].left_out, weights_of(model).tolist()


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_nan_replica_is_left_out_on_all_ranks_report_85(replicas: int) -> None:
    found = run_ranks(replicas, _nan, replicas)
    assert all(first == [1] and second == [] and weights == found[0][2] for first, second, weights in found)


def _scaler(rank: int) -> tuple[list[int], int, int]:
    """A grad scaler that meets an overflow on rank 0 at the very step a sync is due."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    sync = diloco.DiLoCo(model, optimizer, sync_every=3, hook=False)
    for t in range(6):
        loss = (model(torch.ones(2, 5)) * model.scale).square().mean()
        scaler.scale(loss * (float("inf") if (rank, t) == (0, 2) else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        sync.step()
    return [r.step for r in sync.rounds], sync.inner_step, len(sync.rounds[0].left_out)


def test_a_skipped_step_at_a_sync_keeps_counters_equal_report_87() -> None:
    assert run_ranks(2, _scaler) == [([3, 6], 6, 0)] * 2


def _uneven(rank: int) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sync = diloco.DiLoCo(model, optimizer, sync_every=4)
    for t in range(5 + rank):
        inner_step(model, optimizer, rank, t)
    sync.finish()


def test_unequal_step_counts_end_in_a_sentence() -> None:
    found = run_ranks(2, _uneven)
    assert found[0] == found[1] and found[0].startswith(
        "Mismatch: replicas came to a sync after different numbers of inner steps, [5, 6]"
    )


def _messages(rank: int) -> list[int]:
    """Collectives by inner step, counted where torch dispatches them, whoever calls them."""
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    diloco.DiLoCo(model, optimizer, sync_every=5)
    counts = []
    for t in range(10):
        with Messages() as sent:
            inner_step(model, optimizer, rank, t)
        counts.append(sent.count)
    return counts


def test_no_message_between_syncs_report_130() -> None:
    for counts in run_ranks(2, _messages):
        assert [c > 0 for c in counts] == [False, False, False, False, True] * 2
        # header, one bucket, trailer
        assert counts[4] == 3


def _long_window(rank: int) -> list[bool]:
    model = small_model()
    sync = diloco.DiLoCo(
        model, torch.optim.SGD(model.parameters(), lr=0.1), sync_every=1, hook=False, exchange=Collective(timeout_s=1.0)
    )
    time.sleep(2.5)
    sync.step()
    return [r.committed for r in sync.rounds]


@pytest.mark.slow
def test_a_window_longer_than_the_timeout_is_no_failure_report_58() -> None:
    """The time-out bounds a wait for the slowest replica, not the silence between syncs."""
    assert run_ranks(2, _long_window) == [[True], [True]]


def _killed(rank: int) -> None:
    model = small_model()
    sync = diloco.DiLoCo(
        model, torch.optim.SGD(model.parameters(), lr=0.1), sync_every=1, hook=False, exchange=Collective(timeout_s=5)
    )
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    sync.step()


def test_a_killed_replica_ends_the_others_with_a_sentence(tmp_path) -> None:
    """Without membership the run cannot go on, but it does not hang and says what to do."""
    import multiprocessing

    context = multiprocessing.get_context("fork")
    results = context.Queue()
    from support.processes import _rank

    processes = [
        context.Process(target=_rank, args=(r, results, 2, str(tmp_path), _killed, ()), daemon=True) for r in range(2)
    ]
    for p in processes:
        p.start()
    rank, message = results.get(timeout=60)
    assert rank == 0 and message.startswith(
        "ConnectionError: round 1 at inner step 1 lost contact with another replica"
    )
    for p in processes:
        p.join(timeout=5)
        p.kill()


def test_needs_a_process_group() -> None:
    with pytest.raises(diloco.BadInput, match="init_process_group"):
        Collective()
