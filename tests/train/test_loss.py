"""Cross entropy and z-loss against plain formulas.

Run just this: pytest tests/train/test_loss.py
"""

from __future__ import annotations

import math

import pytest
import torch

from diloco.train.loss import lm_loss


def _naive(logits_BTV, targets_BT, z_loss):
    lse_BT = logits_BTV.exp().sum(-1).log()
    nll_BT = lse_BT - logits_BTV.gather(-1, targets_BT[..., None]).squeeze(-1)
    return (nll_BT + z_loss * lse_BT**2).mean(), nll_BT.mean()


@pytest.mark.parametrize("z_loss", [0.0, 1e-4, 0.5])
def test_value_and_gradient_equal_autograd_of_the_naive_formula(z_loss):
    g = torch.Generator().manual_seed(0)
    logits_BTV = (3 * torch.randn(2, 5, 7, generator=g, dtype=torch.float64)).requires_grad_()
    targets_BT = torch.randint(0, 7, (2, 5), generator=g)
    expected, expected_nll = _naive(logits_BTV, targets_BT, z_loss)
    (expected_grad,) = torch.autograd.grad(3 * expected, logits_BTV)
    loss, nll = lm_loss(logits_BTV, targets_BT, z_loss)
    (grad,) = torch.autograd.grad(3 * loss, logits_BTV)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(nll.double(), expected_nll, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(grad, expected_grad, rtol=1e-5, atol=1e-7)


def test_uniform_logits_cost_ln_v_nats():
    loss, nll = lm_loss(torch.zeros(1, 3, 256), torch.zeros(1, 3, dtype=torch.long), 0.0)
    assert nll.item() == pytest.approx(math.log(256), rel=1e-6)
    assert loss.item() == nll.item()


def test_reported_loss_has_no_gradient_and_is_fp32_for_bf16_logits():
    logits_BTV = torch.randn(1, 4, 8, dtype=torch.bfloat16, requires_grad=True)
    loss, nll = lm_loss(logits_BTV, torch.zeros(1, 4, dtype=torch.long), 1e-4)
    assert (loss.dtype, nll.dtype) == (torch.float32, torch.float32)
    assert loss.requires_grad and not nll.requires_grad
    loss.backward()
    assert logits_BTV.grad.dtype == torch.bfloat16


def test_huge_logits_stay_finite():
    logits_BTV = torch.tensor([[[1e4, -1e4, 0.0]]], requires_grad=True)
    loss, nll = lm_loss(logits_BTV, torch.tensor([[1]]), 1e-4)
    loss.backward()
    assert nll.item() == pytest.approx(2e4)
    assert logits_BTV.grad.isfinite().all()
