"""Lossy differences: errors are bounded, do not add up over a chain, and no second moment loses its sign.

pytest tests/checkpoint/test_delta_lossy.py
"""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

from diloco.checkpoint import delta, delta_lossy
from diloco.checkpoint.delta_lossy import BLOCK, LEVELS, LINEAR, RELATIVE

NUMEL = 20 * BLOCK + 37


def randn(seed: int, numel: int = NUMEL) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def positive(seed: int) -> Tensor:
    """Second moments: sizes over ten orders of magnitude."""
    return torch.exp(3 * randn(seed) - 20)


def link(new: Tensor, base: Tensor | None) -> tuple[Tensor, dict]:
    payload, recipe = delta_lossy.encode(new, base)
    recipe = json.loads(json.dumps(recipe))
    assert recipe["bytes_after"] == payload.numel() and recipe["bytes_before"] == new.nbytes
    back = delta_lossy.decode(payload, recipe, base)
    assert (back.dtype, back.shape) == (new.dtype, new.shape)
    return back, recipe


def half_steps(difference: Tensor) -> Tensor:
    """Half of each element's step, by a loop over blocks written out here."""
    bound = torch.empty_like(difference)
    for lo in range(0, len(difference), BLOCK):
        bound[lo : lo + BLOCK] = difference[lo : lo + BLOCK].abs().max() / LEVELS / 2
    return bound


def test_error_is_at_most_half_a_step_of_the_block() -> None:
    base = randn(0)
    new = base + 1e-3 * randn(1)
    back, recipe = link(new, base)
    assert recipe["kind"] == LINEAR and recipe["uses_base"]
    assert ((back - new).abs() <= half_steps(new - base) * 1.001 + new.abs() * 2**-23).all()
    assert recipe["bytes_after"] < 0.26 * recipe["bytes_before"]


@pytest.mark.parametrize("make", [randn, positive])
def test_errors_do_not_add_up_over_a_chain(make) -> None:
    """After many links the error is that of the last one: the base is what the reader has, not what was meant."""
    state = make(0)
    have, first_error = link(state, None)[0], None
    for seed in range(1, 40):
        state = state * (1 + 1e-3 * randn(seed)) if make is positive else state + 1e-3 * randn(seed)
        have, _ = link(state, have)
        error = ((have - state) / state.abs().clamp_min(1e-30)).abs().median()
        first_error = first_error or error
    assert error < 2 * first_error


def test_positive_stays_positive_and_zero_stays_zero() -> None:
    new, base = positive(0), positive(1)
    new[::7], base[::5], new[3] = 0.0, 0.0, 1e-42
    for before in (None, base, torch.zeros(NUMEL), -base - 1):
        back, recipe = link(new, before)
        assert recipe["kind"] == RELATIVE
        assert torch.equal(back > 0, new > 0) and (back >= 0).all() and torch.isfinite(back).all()


def test_second_moments_keep_their_relative_precision() -> None:
    """The smallest in a block as well as the largest, which a step in proportion to the largest would wipe out."""
    base = positive(0)
    new = base * (1 + 0.1 * randn(1).abs())
    back, _ = link(new, base)
    assert ((back - new) / new).abs().max() < 0.01


def test_what_has_turned_over_does_without_its_base() -> None:
    assert not link(randn(0), randn(1))[1]["uses_base"]
    assert link(randn(0) * 1e-3 + randn(1), randn(1))[1]["uses_base"]


@pytest.mark.parametrize(
    "new",
    [
        torch.arange(5000),
        torch.arange(5000) % 2 == 0,
        randn(0, delta_lossy.LEAST_NUMEL - 1),
        randn(0).double(),
        randn(0).bfloat16(),
        torch.cat([randn(0), torch.tensor([torch.nan])]),
        torch.cat([randn(0), torch.tensor([-torch.inf])]),
        randn(0) * 1e38,
        torch.empty(0),
        torch.tensor(3.0),
    ],
    ids=str,
)
def test_all_else_is_lossless(new: Tensor) -> None:
    for base in (None, new.clone()):
        back, recipe = link(new, base)
        assert recipe["kind"] in (delta.SELF, delta.DIFFERENCE, delta.SAME, delta.STORED)
        assert torch.equal(back.reshape(-1).view(torch.uint8), new.reshape(-1).view(torch.uint8))


def test_shapes_strides_and_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, base = randn(0, 4096).view(32, 128).T, randn(0, 4096).view(32, 128).T + 1e-3
    whole, _ = link(matrix, base)
    monkeypatch.setattr(delta_lossy, "SLICE", 3 * BLOCK + 5)
    assert torch.equal(link(matrix, base)[0], whole)


def test_unchanged_and_constant_tensors() -> None:
    for new, base in ((randn(0), randn(0)), (torch.zeros(NUMEL), None), (torch.full((NUMEL,), -2.0), None)):
        assert torch.equal(link(new, base)[0], new)


def test_a_base_that_is_missing_or_another_is_refused() -> None:
    new = randn(0)
    payload, recipe = delta_lossy.encode(new + 1e-3, new)
    with pytest.raises(ValueError, match="cannot be read without"):
        delta_lossy.decode(payload, recipe)
    with pytest.raises(ValueError, match="base is"):
        delta_lossy.decode(payload, recipe, new[1:])
    with pytest.raises(ValueError, match="base is"):
        delta_lossy.encode(new, new[1:])
    with pytest.raises(ValueError, match="payload has"):
        delta_lossy.decode(payload[1:], recipe, new)
