"""Merging against numpy: sums, weights, replicas left out.

pytest tests/outer/test_merge.py
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from diloco.errors import BadInput
from diloco.outer.merge import by_tokens, get_merge, mean
from diloco.outer.step import merged


@pytest.mark.parametrize("alive", [[True], [True, True, True], [True, False, True, True]])
@pytest.mark.parametrize("rule", ["mean", "tokens"])
def test_merge_equals_numpy_report_6(rule: str, alive: list[bool]) -> None:
    """The divisor is the number of replicas, never the number of elements (report 13) and never applied twice."""
    torch.manual_seed(0)
    parts, tokens = [torch.randn(7, dtype=torch.float64) for _ in alive], [100.0 * (m + 1) for m in range(len(alive))]
    weights = get_merge(rule)(tokens, alive)
    raw = np.array([a * (t if rule == "tokens" else 1) for a, t in zip(alive, tokens, strict=True)], dtype=float)
    expected = (np.stack([p.numpy() for p in parts]) * raw[:, None]).sum(0) / raw.sum()
    np.testing.assert_allclose(merged(parts, weights).numpy(), expected, rtol=1e-12)


def test_equal_tokens_are_the_mean_to_the_bit() -> None:
    assert by_tokens([333.0] * 7, [True] * 7) == mean([0.0] * 7, [True] * 7)


def test_weights_have_mean_one_over_those_that_take_part() -> None:
    weights = by_tokens([1, 5, 100, 7], [True, True, False, True])
    assert sum(weights) == pytest.approx(3) and weights[2] == 0


def test_tokens_need_tokens() -> None:
    with pytest.raises(BadInput, match="count_tokens"):
        by_tokens([0, 0], [True, True])
    with pytest.raises(BadInput, match="merge is 'median'"):
        get_merge("median")
