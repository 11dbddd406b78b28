"""Fragments and overlap between real gloo processes: bit for bit what a plain loop in one process gives.

pytest tests/wire/test_streaming.py
"""

from __future__ import annotations

import warnings

import pytest
import torch
from support.processes import run_ranks
from support.replicas import small_model
from support.streaming import GROUPS, Case, history_of, inner_optimizer, plain_history

import diloco

CASES = [
    Case(1, 4),
    Case(2, 5, overlap=1, mixing=0.5),
    Case(3, 7, overlap=5, mixing=0.0),
    Case(3, 6, overlap=5, mixing=1.0),
    Case(7, 6, overlap=5, mixing=0.5),
    Case(7, 3, overlap=1, mixing=0.5),
    Case(3, 7, overlap=4, mixing="rebase"),
    Case(2, 6, offsets=(0, 0)),
]


def _histories(rank: int) -> list[bytes]:
    warnings.simplefilter("error")
    found = []
    for case in CASES:
        model = small_model(rank)
        optimizer = inner_optimizer(model)
        sync = diloco.DiLoCo(
            model, optimizer, sync_every=case.every, outer=diloco.Nesterov(case.lr, case.momentum),
            fragments=GROUPS[case.fragments], offsets=case.offsets, overlap=case.overlap, mixing=case.mixing,
        )  # fmt: skip
        history = history_of([model], [optimizer], range(rank, rank + 1), case, sync.finish)
        found.append(history[:, 0].contiguous().numpy().tobytes())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [2, 3])
def test_processes_equal_the_plain_loop_to_the_bit_report_101(replicas: int) -> None:
    """Replicas that start from different weights, too: replica 0's are taken."""
    found = run_ranks(replicas, _histories)
    assert not [f for f in found if isinstance(f, str)]
    for index, case in enumerate(CASES):
        plain = plain_history(replicas, case)
        for rank in range(replicas):
            ours = torch.frombuffer(bytearray(found[rank][index]), dtype=torch.float32).view_as(plain[:, rank])
            assert torch.equal(ours, plain[:, rank]), (case, rank)
