"""A decoder-only transformer in the shape of the scaling-law paper (arXiv:2503.09799): only depth and width vary.

Pre-norm blocks, LayerNorm of query and key, rotary positions, feed-forward of 4 x width with GELU, no biases, tied
embedding.

Shapes: B sequences, T positions, D model width, N heads, H channels a head, F feed-forward width, V vocabulary.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diloco.errors import BadInput
from diloco.train.sizes import Size

ROPE_BASE = 10_000.0
EMBED_SCALE = 2.0  # of the embedding's rows at the start, L2 norm: smaller ones learn slower
INITIAL_LOGIT_STD = 0.3  # a random model's loss is ln(V) + std^2 / 2: within 1% of ln(V) for V >= 256


def rope_table(seq_len: int, head_dim: int, device: torch.device | str | None = None) -> Tensor:
    """Cosine and sine of every position and frequency, (T, 1, H/2, 2) fp32 (RoFormer, arXiv:2104.09864 eq. 15)."""
    freq_H2 = ROPE_BASE ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angle_TH2 = torch.outer(torch.arange(seq_len, device=device, dtype=torch.float32), freq_H2)
    return torch.stack((angle_TH2.cos(), angle_TH2.sin()), dim=-1).unsqueeze(1)


def rotate(x_BTNH: Tensor, table_T1H2: Tensor) -> Tensor:
    """Turn each pair of neighbouring channels by its position's angle; the result is fp32."""
    # As complex numbers it is one multiplication: 2 to 4 times faster on CPU than halves that are swapped and added.
    pairs_BTNH2 = torch.view_as_complex(x_BTNH.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs_BTNH2 * torch.view_as_complex(table_T1H2.float())).flatten(-2)


class Norm(nn.Module):
    """LayerNorm without bias, fp32 inside. (On CPU torch's LayerNorm is one kernel and its RMSNorm is not.)"""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        # Where sharding gathers gains in bf16, they are widened to what they multiply.
        gain = self.weight.to(torch.promote_types(x.dtype, self.weight.dtype))
        return F.layer_norm(x, gain.shape, gain)


class Attention(nn.Module):
    """Causal self-attention with normalised queries and keys (QK-norm, arXiv:2309.14322 section 3.1.1)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.qkv = nn.Linear(size.dim, 3 * size.dim, bias=False)
        self.q_norm = Norm(size.head_dim)
        self.k_norm = Norm(size.head_dim)
        self.out = nn.Linear(size.dim, size.dim, bias=False)

    def forward(self, x_BTD: Tensor, table_T1H2: Tensor) -> Tensor:
        q_BTNH, k_BTNH, v_BTNH = self.qkv(x_BTD).unflatten(-1, (3, self.heads, -1)).unbind(2)
        q_BNTH = rotate(self.q_norm(q_BTNH), table_T1H2).to(v_BTNH.dtype).transpose(1, 2)
        k_BNTH = rotate(self.k_norm(k_BTNH), table_T1H2).to(v_BTNH.dtype).transpose(1, 2)
        y_BNTH = F.scaled_dot_product_attention(q_BNTH, k_BNTH, v_BTNH.transpose(1, 2), is_causal=True)
        return self.out(y_BNTH.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two matrices with the exact GELU between (the tanh form is twice as slow on CPU)."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.up = nn.Linear(size.dim, size.ffn, bias=False)
        self.down = nn.Linear(size.ffn, size.dim, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x_BTD)))


class Block(nn.Module):
    """One pre-norm layer: attention, then feed-forward, each added to the residual stream."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention_norm = Norm(size.dim)
        self.attention = Attention(size)
        self.ffn_norm = Norm(size.dim)
        self.ffn = FeedForward(size)

    def forward(self, x_BTD: Tensor, table_T1H2: Tensor) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), table_T1H2)
        return x_BTD + self.ffn(self.ffn_norm(x_BTD))


class Transformer(nn.Module):
    """Language model: tokens (B, T) in, fp32 logits (B, T, V) out.

    Args:
        size: depth and width.
        vocab_size: V.
        seq_len: the longest T that `forward` takes.
        tied: the embedding is the output head too. It is then one parameter under one name, so it cannot come apart.

    Raises:
        BadInput: vocabulary or length below 1, or a width that does not split into heads of whole pairs.
    """

    def __init__(self, size: Size, vocab_size: int, seq_len: int, tied: bool = True) -> None:
        super().__init__()
        for option, value in (("vocab_size", vocab_size), ("seq_len", seq_len)):
            if value < 1:
                raise BadInput(f"{option} is {value}: it must be at least 1")
        if size.dim % (2 * size.heads):
            shape = f"width {size.dim} and {size.heads} heads"
            raise BadInput(f"size {size.name!r} has {shape}: the width must be a multiple of twice the heads")
        self.size, self.vocab_size, self.seq_len, self.tied = size, vocab_size, seq_len, tied
        self.embed = nn.Embedding(vocab_size, size.dim)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = Norm(size.dim)
        self.head = None if tied else nn.Linear(size.dim, vocab_size, bias=False)
        self.register_buffer("rope", rope_table(seq_len, size.head_dim), persistent=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        T = tokens_BT.shape[1]
        if T > self.seq_len:
            raise ValueError(f"{T} tokens are longer than the model's seq_len of {self.seq_len}: cut or raise it")
        x_BTD = self.embed(tokens_BT)
        for block in self.blocks:
            x_BTD = block(x_BTD, self.rope[:T])
        x_BTD = self.norm(x_BTD)
        logits_BTV = F.linear(x_BTD, self.embed.weight) if self.head is None else self.head(x_BTD)
        return logits_BTV.float()

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator) -> None:
        """Draw every weight anew, in the order of `named_parameters`, and fill the rotary table.

        Matrices have std 1/sqrt(fan_in), an untied head too; the two that write to the residual stream have 1/sqrt(2 L)
        of that, so that the stream's scale does not grow with depth. The last norm's gain starts small, which makes the
        first prediction nearly uniform without shrinking the embedding.
        """
        embed_std = EMBED_SCALE / math.sqrt(self.size.dim)
        for name, weight in self.named_parameters():
            if weight.dim() == 1:
                weight.fill_(1.0)
            elif name == "embed.weight":
                weight.normal_(0.0, embed_std, generator=generator)
            else:
                writes_residual = name.endswith(("attention.out.weight", "ffn.down.weight"))
                scale = 1 / math.sqrt(2 * self.size.layers) if writes_residual else 1.0
                weight.normal_(0.0, scale / math.sqrt(weight.shape[1]), generator=generator)
        self.norm.weight.fill_(INITIAL_LOGIT_STD / (EMBED_SCALE if self.tied else 1.0))
        self.rope.copy_(rope_table(self.seq_len, self.size.head_dim, self.rope.device))


def build_model(
    size: Size, vocab_size: int, seq_len: int, seed: int, *, tied: bool = True, device: torch.device | str = "cpu"
) -> Transformer:
    """A model whose weights depend on `seed` and shape alone: the same on every device. Torch's own seed is untouched.

    On `device="meta"` it has shapes and counts but no values.
    """
    with torch.device("meta"):
        model = Transformer(size, vocab_size, seq_len, tied)
    if torch.device(device).type == "meta":
        return model
    model.to_empty(device="cpu")
    model.init_weights(torch.Generator().manual_seed(seed))
    return model.to(device)
