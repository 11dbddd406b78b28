"""Every outer optimizer against a loop of plain torch written here, over 10 rounds, and what all of them share.

pytest tests/outer/test_optimizers.py
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import diloco
from diloco.outer.fragment import ALIGNMENT
from diloco.outer.optimizers import as_outer
from diloco.outer.step import OuterState, outer_step

ROUNDS = 10


def reference(outer: object, anchor: Tensor, gradients: list[Tensor]) -> Tensor:
    """The textbook update, with torch.optim where torch has it."""
    if isinstance(outer, diloco.SGD | diloco.Average) or getattr(outer, "momentum", 1) == 0:
        for g in gradients:
            anchor = anchor - outer.lr * g
        return anchor
    parameter = torch.nn.Parameter(anchor.clone())
    if isinstance(outer, diloco.Nesterov) and outer.momentum:
        optimizer = torch.optim.SGD([parameter], lr=outer.lr, momentum=outer.momentum, nesterov=True)
    elif isinstance(outer, diloco.HeavyBall):
        optimizer = torch.optim.SGD([parameter], lr=outer.lr, momentum=outer.momentum)
    else:
        optimizer = torch.optim.Adam([parameter], lr=outer.lr, betas=(outer.beta1, outer.beta2), eps=outer.eps)
    for g in gradients:
        parameter.grad = g.clone()
        optimizer.step()
    return parameter.detach()


OUTERS = [
    diloco.SGD(lr=0.5),
    diloco.Average(),
    diloco.HeavyBall(lr=1.0, momentum=0.9),
    diloco.Nesterov(lr=0.7, momentum=0.9),
    diloco.Nesterov(lr=0.4, momentum=0.0),
    diloco.Adam(lr=0.3),
]


@pytest.mark.parametrize("outer", OUTERS, ids=repr)
def test_equals_plain_torch(outer) -> None:
    torch.manual_seed(0)
    start, gradients = torch.randn(1003), [torch.randn(1003) for _ in range(ROUNDS)]
    anchor, state = start, outer.init(start)
    for number, g in enumerate(gradients, start=1):
        anchor, state = outer_step(outer, anchor, state, [g, g], [1.0, 1.0], number)
    # (g + g) / 2 is g exactly; momentum optimizers then do what torch does, operation by operation.
    expected = reference(outer, start, gradients)
    if isinstance(outer, diloco.HeavyBall | diloco.Nesterov) and outer.momentum:
        assert torch.equal(anchor, expected)
    torch.testing.assert_close(anchor, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("outer", OUTERS, ids=repr)
def test_in_slices_equals_at_once(outer) -> None:
    """However the anchor is cut (at multiples of ALIGNMENT), every element gets the same bits."""
    torch.manual_seed(1)
    anchor = torch.randn(1000)
    whole, sliced = OuterState(outer, anchor.clone()), OuterState(outer, anchor.clone())
    for number in (1, 2, 3):
        g = torch.randn(1000)
        whole.advance(g.clone(), 0, 1000, number)
        for lo in range(0, 1000, 3 * ALIGNMENT):
            hi = min(lo + 3 * ALIGNMENT, 1000)
            sliced.advance(g[lo:hi].clone(), lo, hi, number)
    assert torch.equal(whole.anchor, sliced.anchor)


@pytest.mark.parametrize("outer", OUTERS, ids=repr)
def test_in_place_equals_the_pure_function(outer) -> None:
    """What syncs run is the equation in `update`, up to the rounding of a fused multiply-add in a last few elements."""
    torch.manual_seed(2)
    anchor = torch.randn(1003)
    in_place, pure, state = OuterState(outer, anchor.clone()), anchor, outer.init(anchor)
    for number in (1, 2, 3):
        g = torch.randn(1003)
        in_place.advance(g.clone(), 0, 1003, number)
        pure, state = outer_step(outer, pure, state, [g], [1.0], number)
    assert torch.equal(in_place.anchor[:960], pure[:960])
    torch.testing.assert_close(in_place.anchor, pure, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("outer", OUTERS, ids=repr)
def test_zero_gradient_leaves_every_bit_report_18(outer) -> None:
    anchor = torch.randn(100)
    after, _ = outer_step(outer, anchor, outer.init(anchor), [torch.zeros(100)], [1.0], 1)
    assert torch.equal(after, anchor)


@pytest.mark.parametrize("outer", OUTERS, ids=repr)
def test_positive_lr_moves_towards_the_replica(outer) -> None:
    anchor, replica = torch.zeros(10), torch.ones(10)
    after, _ = outer_step(outer, anchor, outer.init(anchor), [anchor - replica], [1.0], 1)
    assert (after > 0).all()


@pytest.mark.parametrize("outer", OUTERS, ids=repr)
def test_outer_step_changes_none_of_its_arguments(outer) -> None:
    anchor, state = torch.randn(50), {k: torch.rand(50) for k in outer.init(torch.zeros(50))}
    gradient = torch.randn(50)
    before = [t.clone() for t in (anchor, gradient, *state.values())]
    outer_step(outer, anchor, state, [gradient], [1.0], 3)
    assert all(torch.equal(a, b) for a, b in zip(before, (anchor, gradient, *state.values()), strict=True))


def test_one_nesterov_step_golden() -> None:
    """Hand arithmetic: m = 0.9 * 0 + 1; the anchor moves by 0.7 * (1 + 0.9). May change only with the equation."""
    after, state = outer_step(
        diloco.Nesterov(0.7, 0.9), torch.zeros(1), {"momentum": torch.zeros(1)}, [torch.ones(1)], [1.0], 1
    )
    assert after.item() == pytest.approx(-1.33, abs=1e-7) and state["momentum"].item() == 1.0


def test_nesterov_four_equal_gradients_closed_form() -> None:
    """Async Local-SGD (arXiv 2401.09135) eq. 5: four equal gradients one after another."""
    b, lr, g, m = 0.9, 0.7, 0.3, 0.2
    outer = diloco.Nesterov(lr, b)
    anchor, state = torch.zeros(1, dtype=torch.float64), {"momentum": torch.full((1,), m, dtype=torch.float64)}
    for number in range(1, 5):
        anchor, state = outer_step(outer, anchor, state, [torch.full((1,), g, dtype=torch.float64)], [1.0], number)
    assert state["momentum"].item() == pytest.approx(b**4 * m + (1 + b + b**2 + b**3) * g)
    moved = lr * ((4 + 4 * b + 3 * b**2 + 2 * b**3 + b**4) * g + b**2 * (1 + b + b**2 + b**3) * m)
    assert anchor.item() == pytest.approx(-moved)


def test_clip_bounds_the_update() -> None:
    anchor, gradient = torch.zeros(100), torch.full((100,), 3.0)
    after, _ = outer_step(diloco.SGD(lr=1.0, clip=0.5), anchor, {}, [gradient], [1.0], 1)
    assert torch.linalg.vector_norm(after).item() == pytest.approx(0.5, rel=1e-6)
    unclipped, _ = outer_step(diloco.SGD(lr=1.0, clip=100.0), anchor, {}, [gradient], [1.0], 1)
    assert torch.equal(unclipped, -gradient)


@pytest.mark.parametrize("rate", [diloco.Cosine(0.8, 11, 0.1), diloco.Linear(0.8, 11, 0.1)])
def test_lr_schedules_start_at_the_peak_and_end_at_the_floor(rate) -> None:
    values = [rate(n) for n in range(1, 15)]
    assert values[0] == pytest.approx(0.8) and values[10] == pytest.approx(0.08) and values[13] == pytest.approx(0.08)
    assert rate(6) == pytest.approx((0.8 + 0.08) / 2)
    assert all(a >= b for a, b in zip(values, values[1:], strict=False))
    after, _ = outer_step(diloco.SGD(lr=rate), torch.zeros(1), {}, [torch.ones(1)], [1.0], 6)
    assert after.item() == pytest.approx(-0.44)


def test_accepts_a_users_own_pair_and_any_torch_class() -> None:
    pair = as_outer((lambda anchor: {}, lambda g, state, round: (g.sign(), state)))
    after, _ = outer_step(pair, torch.zeros(2), {}, [torch.tensor([3.0, -0.1])], [1.0], 1)
    assert after.tolist() == [-1.0, 1.0]
    assert isinstance(as_outer(torch.optim.SGD), diloco.Torch)
    with pytest.raises(diloco.BadInput, match="outer is 3"):
        as_outer(3)
    with pytest.raises(diloco.BadInput, match="refuses"):
        diloco.Torch(torch.optim.SGD, lr=-1.0).build([torch.nn.Parameter(torch.zeros(1))])


@pytest.mark.parametrize(
    "make",
    [
        lambda: diloco.Nesterov(lr=math.nan),
        lambda: diloco.Nesterov(lr=-0.1),
        lambda: diloco.Nesterov(momentum=1.0),
        lambda: diloco.HeavyBall(momentum=-0.1),
        lambda: diloco.SGD(clip=0.0),
        lambda: diloco.Adam(eps=0.0),
        lambda: diloco.Average(lr=0.5),
    ],
)
def test_refuses_settings_that_cannot_work(make) -> None:
    with pytest.raises(diloco.BadInput):
        make()
