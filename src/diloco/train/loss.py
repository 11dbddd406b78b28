"""Next-token cross entropy in nats per token, with the z-loss that keeps logits from drifting.

Shapes: B sequences, T positions, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable


class _CrossEntropyZ(torch.autograd.Function):
    """Sum of mean nll and z * mean(logsumexp^2). Keeps logits and one number a row; the gradient is the one new (rows, V) tensor."""

    @staticmethod
    def forward(ctx: FunctionCtx, logits_RV: Tensor, targets_R: Tensor, z_loss: float) -> tuple[Tensor, Tensor]:
        lse_R = logits_RV.logsumexp(dim=-1)
        nll = (lse_R - logits_RV.gather(-1, targets_R[:, None]).squeeze(-1)).mean()
        ctx.save_for_backward(logits_RV, targets_R, lse_R)
        ctx.z_loss = z_loss
        ctx.mark_non_differentiable(nll)
        return nll + z_loss * lse_R.square().mean(), nll

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad_loss: Tensor, _grad_nll: Tensor) -> tuple[Tensor, None, None]:
        logits_RV, targets_R, lse_R = ctx.saved_tensors
        scale = grad_loss / targets_R.numel()
        row_weight_R1 = ((1 + 2 * ctx.z_loss * lse_R) * scale)[:, None]
        grad_RV = (logits_RV - lse_R[:, None]).exp_().mul_(row_weight_R1)
        grad_RV.scatter_add_(-1, targets_R[:, None], (-scale).expand(targets_R.numel(), 1))
        return grad_RV, None, None


def lm_loss(logits_BTV: Tensor, targets_BT: Tensor, z_loss: float = 0.0) -> tuple[Tensor, Tensor]:
    """The loss to train on and the loss to report, both fp32 scalars.

    Returns:
        loss: mean of nll + z_loss * logsumexp(logits)^2 over all B x T tokens (z-loss: PaLM, arXiv:2204.02311 section 5).
        nll: mean cross entropy in nats per token, without gradient. Equal to `loss` where z_loss is 0.
    """
    logits_RV = logits_BTV.flatten(0, -2).float()
    return _CrossEntropyZ.apply(logits_RV, targets_BT.flatten(), z_loss)
