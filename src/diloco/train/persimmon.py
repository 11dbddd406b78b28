"""Our architecture under the name that `transformers` has for it, Persimmon: the same numbers from its own code.

Both are pre-norm with LayerNorm, normalise query and key per head, rotate whole heads and have a 4 x GELU feed-forward.
Three things are written otherwise there. Channels that rotate together lie half a head apart instead of side by side,
so rows of query and key and the gains of their norms change places (scores are sums over channels: the order is free).
The fused matrix goes by head, then by query, key and value. Every matrix and norm has a bias; ours is zero.

Shapes: D model width, N heads, H channels a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diloco.train.model import ROPE_BASE, Transformer

NORM_EPS = 1e-5  # of `torch.nn.functional.layer_norm`, which the model leaves at its default
_WHOLE_HEAD = 1.0  # part of a head's channels that rotate


def persimmon_config(model: Transformer, dtype: str, separator: int | None) -> dict[str, Any]:
    """config.json of `transformers`; rotary settings stand there twice because versions 4 and 5 look in two places.

    Args:
        dtype: as torch names it, "float32".
        separator: id of the token between documents; generation stops there.
    """
    size = model.size
    return {
        "architectures": ["PersimmonForCausalLM"],
        "model_type": "persimmon",
        "vocab_size": model.vocab_size,
        "hidden_size": size.dim,
        "intermediate_size": size.ffn,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "max_position_embeddings": model.seq_len,
        "hidden_act": "gelu",
        "layer_norm_eps": NORM_EPS,
        "qk_layernorm": True,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "rope_theta": ROPE_BASE,
        "partial_rotary_factor": _WHOLE_HEAD,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": ROPE_BASE,
            "partial_rotary_factor": _WHOLE_HEAD,
        },
        "tie_word_embeddings": model.tied,
        "torch_dtype": dtype,
        "bos_token_id": separator,
        "eos_token_id": separator,
        "pad_token_id": None,
        "use_cache": True,
    }


def persimmon_weights(model: Transformer) -> dict[str, Tensor]:
    """The model's weights by the names and in the layout of `transformers`; a tied head is left out there too."""
    weights = {"model.embed_tokens.weight": model.embed.weight.detach()}
    weights |= _norm("model.final_layernorm", model.norm.weight)
    if model.head is not None:
        weights["lm_head.weight"] = model.head.weight.detach()
    for index, block in enumerate(model.blocks):
        name, attention = f"model.layers.{index}", block.attention
        weights |= _norm(f"{name}.input_layernorm", block.attention_norm.weight)
        weights |= _norm(f"{name}.post_attention_layernorm", block.ffn_norm.weight)
        weights |= _norm(f"{name}.self_attn.q_layernorm", halves(attention.q_norm.weight))
        weights |= _norm(f"{name}.self_attn.k_layernorm", halves(attention.k_norm.weight))
        weights |= _matrix(f"{name}.self_attn.query_key_value", by_head(attention.qkv.weight, model.size.heads))
        weights |= _matrix(f"{name}.self_attn.dense", attention.out.weight)
        weights |= _matrix(f"{name}.mlp.dense_h_to_4h", block.ffn.up.weight)
        weights |= _matrix(f"{name}.mlp.dense_4h_to_h", block.ffn.down.weight)
    return weights


def halves(x_H: Tensor) -> Tensor:
    """Channels (0, 1, 2, 3, ...) of the first dimension as (0, 2, ..., 1, 3, ...): pairs now lie half a head apart."""
    return torch.cat((x_H[0::2], x_H[1::2]))


def by_head(qkv_3D_D: Tensor, heads: int) -> Tensor:
    """Rows (q, k, v) x N x H as N x (q, k, v) x H, those of query and key in `halves`."""
    q_NHD, k_NHD, v_NHD = qkv_3D_D.unflatten(0, (3, heads, -1)).unbind(0)
    q_NHD, k_NHD = (torch.cat((x_NHD[:, 0::2], x_NHD[:, 1::2]), dim=1) for x_NHD in (q_NHD, k_NHD))
    return torch.stack((q_NHD, k_NHD, v_NHD), dim=1).flatten(0, 2)


def _norm(name: str, gain: Tensor) -> dict[str, Tensor]:
    return {f"{name}.weight": gain.detach(), f"{name}.bias": torch.zeros_like(gain.detach())}


def _matrix(name: str, weight: Tensor) -> dict[str, Tensor]:
    return {f"{name}.weight": weight.detach(), f"{name}.bias": weight.detach().new_zeros(weight.shape[0])}
