"""Held-out loss of a set of weights, leaving training as it was."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diloco.train.data import Data
from diloco.train.parallel.engine import Engine, OneDevice

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
    return evaluate_over(OneDevice(model, device, precision), weights, data, sequences, device, progress)


def evaluate_over(
    engine: Engine,
    weights: dict[str, Tensor],
    data: Data,
    sequences: int,
    device: torch.device,
    progress: Callable[[float], None] | None = None,
) -> Evaluation:
    """The same on whatever devices a replica has; all of them must call it, and get the same result."""
    model, losses = engine.model, []
    training = model.training
    model.eval()
    batches = data.heldout_batches(max(EVAL_BATCH_TOKENS // data.config.seq_len, 1), sequences)
    for found in engine.sequence_losses(weights, (batch_BT.to(device) for batch_BT in batches)):
        losses += found
        if progress:
            progress(len(losses) / sequences)
    model.train(training)
    mean = sum(losses) / len(losses)
    variance = sum((x - mean) ** 2 for x in losses) / max(len(losses) - 1, 1)
    return Evaluation(mean, math.sqrt(variance / len(losses)), mean / math.log(2) / data.bytes_per_token, len(losses))
