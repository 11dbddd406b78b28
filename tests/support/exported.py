"""An exported folder, as `transformers` has it, beside the model that it came from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

ATOL = 2e-5
"""Of logits with a standard deviation near 1; 6e-6 is the largest seen up to 2048 positions."""


def in_transformers(folder: Path) -> nn.Module:
    """The model, after a look at what its loading had to say."""
    transformers = pytest.importorskip("transformers")
    model, said = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(said.values()), said
    return model.eval()


def tokens(vocab: int, length: int) -> Tensor:
    """Two random sequences."""
    return torch.randint(0, vocab, (2, length), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def logits_apart(theirs: nn.Module, ours: nn.Module, tokens_BT: Tensor) -> float:
    """The largest difference between a model of `transformers` and one of ours."""
    return (theirs(tokens_BT).logits - ours(tokens_BT)).abs().max().item()
