"""Model sizes by name, and how many parameters each one has. Pure arithmetic: no torch here.

One name fixes depth, width, heads and feed-forward width; vocabulary and sequence length come from the data.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from diloco.errors import BadInput

FFN_PER_DIM = 4


@dataclass(frozen=True)
class Size:
    """Shape of a decoder-only transformer."""

    name: str
    layers: int
    heads: int
    dim: int
    ffn: int

    @property
    def head_dim(self) -> int:
        """Channels of one attention head."""
        return self.dim // self.heads


@dataclass(frozen=True)
class Params:
    """Trainable and frozen parameters, tied tensors once: `params = params_embedding + params_body`."""

    params: int
    params_embedding: int
    """Token embedding. Tied, it is the output head too."""
    params_body: int
    """All the rest, an untied output head included."""


# name: (layers, heads, dim)
_CPU_LADDER = {  # named for their parameters at the byte vocabulary of 256
    "30k": (2, 2, 32),
    "100k": (3, 3, 48),
    "300k": (4, 5, 80),
    "1m": (5, 4, 128),
    "3m": (5, 7, 224),
    "10m": (8, 10, 320),
}
_SCALING_LAWS_PAPER = {  # arXiv:2503.09799 Table 3, vocabulary 32768
    "35m": (6, 8, 512),
    "90m": (9, 12, 768),
    "180m": (12, 16, 1024),
    "335m": (15, 20, 1280),
    "550m": (18, 24, 1536),
    "1.3b": (24, 32, 2048),
    "2.4b": (30, 40, 2560),
    "4b": (36, 48, 3072),
    "10b": (48, 64, 4096),
}
_ARTICLE = {  # the first three are GPT-3's (arXiv:2005.14165 Table 2.1); 40b and 100b keep its head of 128 channels
    "125m": (12, 12, 768),
    "350m": (24, 16, 1024),
    "6.7b": (32, 32, 4096),
    "40b": (64, 56, 7168),
    "100b": (80, 80, 10240),
}

SIZES: dict[str, Size] = {
    name: Size(name, layers, heads, dim, FFN_PER_DIM * dim)
    for name, (layers, heads, dim) in {**_CPU_LADDER, **_SCALING_LAWS_PAPER, **_ARTICLE}.items()
}


def get_size(name: str) -> Size:
    """The size called `name`, in any case.

    Raises:
        BadInput: no size has that name.
    """
    size = SIZES.get(name.strip().lower())
    if size is None:
        near = difflib.get_close_matches(name.strip().lower(), SIZES, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}? " if near else ""
        raise BadInput(f"size {name!r} is unknown: {hint}choose one of {', '.join(SIZES)}")
    return size


def count(size: Size, vocab: int, tied: bool = True) -> Params:
    """Parameters of `diloco.train.model.Transformer`, in closed form.

    A block has qkv (3 d^2), attention output (d^2), two feed-forward matrices (2 d f), two norms (2 d) and the norms of
    query and key (2 d/h). The paper's N = 12 d^2 L + V d is the same with f = 4 d and without the norms.
    """
    block = 4 * size.dim**2 + 2 * size.dim * size.ffn + 2 * size.dim + 2 * size.head_dim
    embedding = vocab * size.dim
    body = size.layers * block + size.dim + (0 if tied else embedding)
    return Params(params=embedding + body, params_embedding=embedding, params_body=body)


def train_flops(params: int, tokens: int) -> int:
    """Floating-point operations of training on `tokens` tokens: 6 N D, with N all parameters (arXiv:2503.09799).

    Leaves out the attention scores (12 L d T a token at sequence length T, half of it if causality is used), norms,
    softmax and optimizer. A tied embedding is rightly counted once: its lookup is free, its use as the head is not. An
    untied model's N overstates the cost by the lookup table.
    """
    return 6 * params * tokens
