"""JSON values among ranks: one message where they are short, two where one is long.

pytest tests/wire/test_island.py
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from diloco.wire.island import SHORT_BYTES, gather_json


def gathered(values: list) -> tuple[list[list], int]:
    """What each of several ranks, here threads, ends up with, and how many messages that took."""
    rows: dict[tuple[int, int], Tensor] = {}
    barrier = threading.Barrier(len(values))

    def rank(place: int) -> list:
        sent = 0

        def gather(row: Tensor) -> Tensor:
            nonlocal sent
            rows[sent, place] = row
            barrier.wait(timeout=30)
            sent += 1
            return torch.stack([rows[sent - 1, other] for other in range(len(values))])

        return gather_json(gather, values[place])

    with ThreadPoolExecutor(len(values)) as pool:
        found = list(pool.map(rank, range(len(values))))
    return found, 1 + max(number for number, _ in rows)


@pytest.mark.parametrize("length", [0, 1, SHORT_BYTES - 2, SHORT_BYTES - 1, 100_000])
def test_values_of_any_length_come_whole(length: int) -> None:
    """JSON puts two quotes about a text, and six letters for one that is not ASCII."""
    values = ["x" * length, None, {"a": [1, "ü"]}]
    found, messages = gathered(values)
    assert found == [values] * 3 and messages == (1 if length + 2 <= SHORT_BYTES else 2)
    assert gathered(["ü" * length]) == ([["ü" * length]], 1 if 6 * length + 2 <= SHORT_BYTES else 2)
