"""Held-out loss of a set of weights, leaving training as it was."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from diloco.train.data import Data
from diloco.train.loss import lm_loss
from diloco.train.replica import forward_precision

EVAL_BATCH_TOKENS = 8192
"""Tokens in one forward pass: bounds the memory for logits."""


@dataclass(frozen=True)
class Evaluation:
    loss: float
    """Mean cross entropy, nats per token."""
    loss_se: float
    """Its standard error over held-out sequences; the spread over seeds is another matter, and larger."""
    bits_per_byte: float
    sequences: int


@torch.no_grad()
def evaluate(
    model: nn.Module,
    weights: dict[str, Tensor],
    data: Data,
    sequences: int,
    precision: str,
    device: torch.device,
    progress: Callable[[float], None] | None = None,
) -> Evaluation:
    """Loss of `model` with `weights` in place of its own parameters, on the first `sequences` held-out sequences.

    `progress` is called with the fraction done. Neither the model's weights and mode nor any random state are changed.
    """
    training, losses = model.training, []
    model.eval()
    for batch_BT in data.heldout_batches(max(EVAL_BATCH_TOKENS // data.config.seq_len, 1), sequences):
        batch_BT = batch_BT.to(device)
        with forward_precision(precision, device):
            logits_BTV = functional_call(model, weights, (batch_BT[:, :-1],))
        losses += [lm_loss(logits_BTV[b : b + 1], batch_BT[b : b + 1, 1:])[1].item() for b in range(len(batch_BT))]
        if progress:
            progress(len(losses) / sequences)
    model.train(training)
    mean = sum(losses) / len(losses)
    variance = sum((x - mean) ** 2 for x in losses) / max(len(losses) - 1, 1)
    return Evaluation(mean, math.sqrt(variance / len(losses)), mean / math.log(2) / data.bytes_per_token, len(losses))
