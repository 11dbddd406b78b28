"""Drawing tokens from a model.

Run just this: pytest tests/train/test_sample.py
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from diloco.errors import BadInput
from diloco.train.model import build_model
from diloco.train.sample import generate
from diloco.train.sizes import Size


class Successor(nn.Module):
    """Thinks the next token is the last one plus one (logit 2), or plus two (logit 1); records what it saw."""

    seq_len = 3

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, tokens_BT):
        self.seen.append(tokens_BT.shape[1])
        return sum(w * nn.functional.one_hot((tokens_BT + s) % 10, 10).float() for w, s in ((2, 1), (1, 2)))


def test_greedy_and_top_1_follow_the_likeliest_and_the_window_is_cropped():
    model, prompt_BT = Successor(), torch.tensor([[1, 2], [7, 8]])
    expected_BT = torch.tensor([[1, 2, 3, 4, 5], [7, 8, 9, 0, 1]])
    assert torch.equal(generate(model, prompt_BT, 3, temperature=0.0), expected_BT)
    assert model.seen == [2, 3, 3]
    assert torch.equal(generate(model, prompt_BT, 3, top_k=1), expected_BT)
    assert torch.equal(generate(model, prompt_BT, 3, temperature=1e-40), expected_BT)


def test_draws_follow_the_softmax_of_the_kept_logits():
    generator = torch.Generator().manual_seed(0)
    drawn_B = generate(Successor(), torch.zeros(4000, 1, dtype=torch.long), 1, top_k=2, generator=generator)[:, -1]
    assert set(drawn_B.tolist()) == {1, 2}
    assert (drawn_B == 1).float().mean().item() == pytest.approx(math.e / (1 + math.e), abs=0.03)


def test_top_k_keeps_exactly_k_where_logits_are_equal():
    class Flat(nn.Module):
        def forward(self, tokens_BT):
            return torch.zeros(*tokens_BT.shape, 10)

    drawn_B = generate(Flat(), torch.zeros(500, 1, dtype=torch.long), 1, top_k=3)[:, -1]
    assert len(drawn_B.unique()) == 3


def test_same_generator_same_text_and_mode_and_prompt_are_left_alone():
    model = build_model(Size("tiny", 1, 1, 8, 32), 16, 4, seed=0).train()
    prompt_BT = torch.tensor([[1]])
    a, b = (generate(model, prompt_BT, 10, generator=torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(a, b) and a.shape == (1, 11)
    assert model.training and prompt_BT.tolist() == [[1]]


@pytest.mark.parametrize(
    ("prompt", "options", "named"),
    [
        ([[]], {}, "prompt has shape"),
        ([[1]], {"temperature": -1.0}, "temperature is -1.0"),
        ([[1]], {"temperature": math.nan}, "temperature is nan"),
        ([[1]], {"top_k": 0}, "top_k is 0"),
        ([[1]], {"max_new_tokens": -1}, "max_new_tokens is -1"),
    ],
)
def test_bad_options_are_refused_by_name(prompt, options, named):
    with pytest.raises(BadInput, match=named):
        generate(Successor(), torch.tensor(prompt, dtype=torch.long), **{"max_new_tokens": 1, **options})
