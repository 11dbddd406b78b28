"""Draw text from a model, one token at a time.

Shapes: B sequences, T positions, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from diloco.errors import BadInput


@torch.no_grad()
def generate(
    model: nn.Module,
    prompt_tokens: Tensor,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Continue `prompt_tokens` (B, T) by `max_new_tokens`: (B, T + max_new_tokens).

    The model sees at most its last `seq_len` tokens (all of them where it has no such attribute). No key-value cache:
    each token costs a whole forward pass.

    Args:
        temperature: 0 always takes the likeliest token; otherwise logits are divided by it.
        top_k: draw among the k likeliest tokens only.
        generator: source of chance, on the model's device.

    Raises:
        BadInput: empty prompt, negative temperature or length, or top_k below 1.
    """
    if prompt_tokens.dim() != 2 or prompt_tokens.shape[1] == 0:
        raise BadInput(f"prompt has shape {tuple(prompt_tokens.shape)}: give at least one token a sequence")
    if not 0 <= temperature < float("inf"):
        raise BadInput(f"temperature is {temperature}: it must be a finite number from 0 (the likeliest token) up")
    if max_new_tokens < 0:
        raise BadInput(f"max_new_tokens is {max_new_tokens}: it must be 0 or more")
    if top_k is not None and top_k < 1:
        raise BadInput(f"top_k is {top_k}: it must be at least 1, or left out")
    window = getattr(model, "seq_len", None)
    was_training = model.training
    model.eval()
    tokens_BT = prompt_tokens
    for _ in range(max_new_tokens):
        seen_BT = tokens_BT if window is None else tokens_BT[:, -window:]
        next_B1 = _draw(model(seen_BT)[:, -1], temperature, top_k, generator)
        tokens_BT = torch.cat((tokens_BT, next_B1), dim=1)
    model.train(was_training)
    return tokens_BT


def _draw(logits_BV: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> Tensor:
    if temperature == 0:
        return logits_BV.argmax(dim=-1, keepdim=True)
    if top_k is not None:
        # topk and not a threshold: equal logits at the edge must not let in more than k.
        kept_Bk, index_Bk = logits_BV.topk(min(top_k, logits_BV.shape[-1]), dim=-1)
        logits_BV = torch.full_like(logits_BV, float("-inf")).scatter(-1, index_Bk, kept_Bk)
    # The maximum goes first, so that a tiny temperature cannot overflow.
    scaled_BV = (logits_BV - logits_BV.amax(dim=-1, keepdim=True)) / temperature
    return torch.multinomial(scaled_BV.softmax(dim=-1), 1, generator=generator)
