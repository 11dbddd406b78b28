"""Hugging Face causal language models behind this package's forward contract, and parameter counts of any module.

Needs the extra `hf`. Weights are read from safetensors only, and code that comes with a model is never run.

Shapes: B sequences, T positions, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diloco.errors import BadInput
from diloco.train.sizes import Params

_DROPOUT_ENDINGS = ("dropout", "pdrop", "dropout_p", "dropout_rate")


class HFModel(nn.Module):
    """A Hugging Face causal LM that takes tokens (B, T) and gives fp32 logits (B, T, V).

    It shares the wrapped model's own registries, so parameters, buffers and `state_dict` keep their Hugging Face names,
    and `hf.save_pretrained` writes what was trained.
    """

    def __init__(self, hf: Any) -> None:
        super().__init__()
        self._parameters, self._buffers, self._modules = hf._parameters, hf._buffers, hf._modules
        self._non_persistent_buffers_set = hf._non_persistent_buffers_set
        # Past nn.Module's own __setattr__, which would register it as a child and prefix every name.
        object.__setattr__(self, "hf", hf)
        self.vocab_size: int = hf.config.vocab_size
        self.seq_len: int | None = getattr(hf.config, "max_position_embeddings", None)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.hf(input_ids=tokens_BT, use_cache=False).logits.float()

    def train(self, mode: bool = True) -> HFModel:
        self.hf.train(mode)
        return super().train(mode)


def load_hf(name_or_path: str, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> HFModel:
    """The causal LM in a local folder, or under a name on the hub (which is asked only where no such folder exists).

    Dropout is set to 0: with it, a resumed run could not repeat the numbers of an unbroken one.

    Args:
        dtype: of the parameters; fp32 lets small updates count, whatever the file holds.

    Raises:
        BadInput: transformers is missing, nothing usable is there, weights are not safetensors, or own code is needed.
    """
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ModuleNotFoundError as error:
        raise BadInput(f'model {name_or_path!r} needs the transformers library: pip install "diloco[hf]"') from error
    if _is_path(name_or_path) and not Path(name_or_path).is_dir():
        raise BadInput(f"model {name_or_path!r} is not a folder: give one with safetensors files, or a hub name")
    try:
        config = AutoConfig.from_pretrained(name_or_path, trust_remote_code=False)
        _switch_off_dropout(config)
        hf = AutoModelForCausalLM.from_pretrained(
            name_or_path, config=config, trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise BadInput(
            f"model {name_or_path!r} cannot be loaded as a causal LM from safetensors without code of its own: {reason}"
        ) from error
    return HFModel(hf.to(device=device, dtype=dtype)).train()


def _is_path(name_or_path: str) -> bool:
    return name_or_path.startswith((".", "/", "~")) or name_or_path.count("/") > 1 or Path(name_or_path).exists()


def _switch_off_dropout(config: Any) -> None:
    for key, value in config.to_dict().items():
        if key.endswith(_DROPOUT_ENDINGS) and isinstance(value, float):
            setattr(config, key, 0.0)


def count_module(model: nn.Module) -> Params:
    """Parameters of any module, frozen too. A tied tensor counts once, as embedding if an `nn.Embedding` holds it."""
    embedding_ids = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    body = embedding = 0
    for parameter in model.parameters():
        if id(parameter) in embedding_ids:
            embedding += parameter.numel()
        else:
            body += parameter.numel()
    return Params(params=embedding + body, params_embedding=embedding, params_body=body)
