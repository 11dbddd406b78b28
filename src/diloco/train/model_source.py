"""The model a configuration names: one of our sizes, or a Hugging Face model."""

from __future__ import annotations

from torch import nn

from diloco.errors import BadInput
from diloco.train.config import TrainConfig
from diloco.train.data import Data
from diloco.train.data.tokenizer import Tokenizer
from diloco.train.model import build_model
from diloco.train.sizes import get_size


def model_for(config: TrainConfig, data: Data | Tokenizer, device: object) -> nn.Module:
    """Raises BadInput where a Hugging Face model has too small a vocabulary for the tokenizer."""
    if not config.hf:
        return build_model(get_size(config.size), data.vocab_size, config.data.seq_len, config.seed, device=device)
    from diloco.train.hf import load_hf

    model = load_hf(config.hf).to(device)
    if model.vocab_size < data.vocab_size:
        raise BadInput(
            f"hf model {config.hf} knows {model.vocab_size} tokens but the tokenizer makes {data.vocab_size}: "
            "give its own with --data.tokenizer"
        )
    return model
