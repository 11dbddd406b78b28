"""Replicas in one process: agreement before the start, order of calls, flat memory.

pytest tests/wire/test_local.py
"""

from __future__ import annotations

import resource

import pytest
import torch
from support.replicas import Fleet, small_model
from torch import nn

import diloco
from diloco.outer.dialogue import Gather, Sum
from diloco.wire.exchange import check_equal, sum_bytes


def test_a_full_exchange_takes_no_more_replicas() -> None:
    exchange, model = diloco.Local(1), small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    diloco.DiLoCo(model, optimizer, sync_every=1, exchange=exchange)
    with pytest.raises(diloco.BadInput, match="has all its replicas"):
        diloco.DiLoCo(model, optimizer, sync_every=1, exchange=exchange)
    with pytest.raises(diloco.BadInput, match="replicas is 0"):
        diloco.Local(0)


def test_facts_compare_through_json() -> None:
    check_equal([{"a": (1, 2)}, {"a": [1, 2]}])
    with pytest.raises(diloco.BadInput, match="a differs: 1 on replica 0, None on replica 2"):
        check_equal([{"a": 1}, {"a": 1}, {}])
    with pytest.raises(diloco.BadInput, match="b differs: None on replica 0, 2 on replica 1"):
        check_equal([{}, {"b": 2}])


@pytest.mark.parametrize("replicas, share", [(1, 0.0), (2, 1.0), (4, 1.5)])
def test_bytes_of_a_sum_are_the_least_possible(replicas: int, share: float) -> None:
    assert sum_bytes(4000, replicas) == 4000 * share
    members = tuple(range(replicas))
    assert Gather(torch.zeros(10, dtype=torch.uint8), members).bytes_sent(0) == 10 * (replicas - 1)
    assert Sum(torch.zeros(1000), members).bytes_sent(0) == 4000 * share


def test_500_rounds_leave_memory_flat_report_105() -> None:
    """Resident memory after round 500 is within 1% of what it was after round 50."""
    fleet = Fleet(2, build=lambda m: nn.Linear(5, 3), sync_every=1)
    fleet.run(50)
    after_50 = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fleet.run(450)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss <= 1.01 * after_50
