"""The transformer: causality, positions, attention against a plain formula, initial weights, one golden training step.

Run just this: pytest tests/train/test_model.py
"""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from diloco.errors import BadInput
from diloco.train.inner import InnerConfig, build_inner, clip_gradients
from diloco.train.loss import lm_loss
from diloco.train.model import Attention, Transformer, build_model, rope_table, rotate
from diloco.train.sizes import SIZES, Size

TINY = Size("tiny", layers=2, heads=2, dim=16, ffn=64)
VOCAB, SEQ_LEN = 32, 12


def _tokens(seed=0, batch=2, length=SEQ_LEN, vocab=VOCAB):
    return torch.randint(0, vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


def test_logits_shape_and_dtype_in_fp32_bf16_and_autocast():
    model = build_model(TINY, VOCAB, SEQ_LEN, seed=0)
    fp32_BTV = model(_tokens())
    assert fp32_BTV.shape == (2, SEQ_LEN, VOCAB)
    with torch.autocast("cpu", torch.bfloat16):
        autocast_BTV = model(_tokens())
    bf16_BTV = build_model(TINY, VOCAB, SEQ_LEN, seed=0).to(torch.bfloat16)(_tokens())
    assert fp32_BTV.dtype == autocast_BTV.dtype == bf16_BTV.dtype == torch.float32
    torch.testing.assert_close(autocast_BTV, fp32_BTV, rtol=0.05, atol=0.05)
    torch.testing.assert_close(bf16_BTV, fp32_BTV, rtol=0.05, atol=0.05)


def test_future_tokens_do_not_change_past_logits():
    model = build_model(TINY, VOCAB, SEQ_LEN, seed=0)
    a_BT, b_BT = _tokens(0), _tokens(0)
    b_BT[:, 7:] = (b_BT[:, 7:] + 1) % VOCAB
    a_BTV, b_BTV = model(a_BT), model(b_BT)
    torch.testing.assert_close(a_BTV[:, :7], b_BTV[:, :7], rtol=0, atol=1e-6)
    assert (a_BTV[:, 7:] - b_BTV[:, 7:]).abs().amax(dim=-1).min() > 1e-3


def test_a_shorter_sequence_gives_the_same_logits_and_a_longer_one_is_refused():
    model = build_model(TINY, VOCAB, SEQ_LEN, seed=0)
    torch.testing.assert_close(model(_tokens())[:, :5], model(_tokens()[:, :5]), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="13 tokens are longer than the model's seq_len of 12"):
        model(_tokens(length=13))


def test_rotary_scores_depend_on_the_distance_only_and_keep_lengths():
    q_H, k_H = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    table_T1H2 = rope_table(20, 8)
    q_TH, k_TH = (rotate(x.expand(1, 20, 1, 8), table_T1H2)[0, :, 0] for x in (q_H, k_H))
    score_TT = q_TH @ k_TH.T
    for distance in (0, 1, 5):
        along = score_TT.diagonal(-distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=1e-5, atol=1e-5)
    assert (score_TT[5, 0] - score_TT[0, 0]).abs() > 0.1
    torch.testing.assert_close(q_TH.norm(dim=-1), q_H.norm().expand(20))
    torch.testing.assert_close(q_TH[0], q_H)


def test_attention_equals_plain_einsum():
    torch.manual_seed(1)
    attention = Attention(TINY)
    with torch.no_grad():
        attention.q_norm.weight.uniform_(0.5, 2)
        attention.k_norm.weight.uniform_(0.5, 2)
    x_BTD = torch.randn(2, SEQ_LEN, 16)

    def turned(x_BTNH):
        out = torch.empty_like(x_BTNH)
        for t in range(SEQ_LEN):
            for pair in range(4):
                angle = t * 10_000.0 ** (-2 * pair / 8)
                a, b = x_BTNH[:, t, :, 2 * pair], x_BTNH[:, t, :, 2 * pair + 1]
                out[:, t, :, 2 * pair] = a * math.cos(angle) - b * math.sin(angle)
                out[:, t, :, 2 * pair + 1] = a * math.sin(angle) + b * math.cos(angle)
        return out

    def normed(x, gain):
        return gain * (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()

    q, k, v = (x_BTD @ w.T for w in attention.qkv.weight.split(16))
    q, k, v = (x.reshape(2, SEQ_LEN, 2, 8) for x in (q, k, v))
    q, k = turned(normed(q, attention.q_norm.weight)), turned(normed(k, attention.k_norm.weight))
    score = torch.einsum("bqnh,bknh->bnqk", q, k) / math.sqrt(8)
    score = score.masked_fill(torch.ones(SEQ_LEN, SEQ_LEN, dtype=torch.bool).triu(1), float("-inf"))
    expected = torch.einsum("bnqk,bknh->bqnh", score.softmax(-1), v).reshape(2, SEQ_LEN, 16) @ attention.out.weight.T
    torch.testing.assert_close(attention(x_BTD, rope_table(SEQ_LEN, 8)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["30k", "300k"])
def test_first_loss_is_near_that_of_a_uniform_guess(name, tied):
    model = build_model(SIZES[name], 256, 64, seed=0, tied=tied)
    tokens_BT = _tokens(batch=8, length=65, vocab=256)
    _, nll = lm_loss(model(tokens_BT[:, :-1]), tokens_BT[:, 1:])
    assert nll.item() == pytest.approx(math.log(256), rel=0.02)


def test_weights_depend_on_the_seed_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a = build_model(TINY, VOCAB, SEQ_LEN, seed=3).state_dict()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    b = build_model(TINY, VOCAB, SEQ_LEN, seed=3).state_dict()
    other = build_model(TINY, VOCAB, SEQ_LEN, seed=4).state_dict()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["embed.weight"], other["embed.weight"])


def test_two_forward_passes_are_bitwise_equal_in_training_mode():
    model = build_model(TINY, VOCAB, SEQ_LEN, seed=0).train()
    assert torch.equal(model(_tokens()), model(_tokens()))


def test_tied_embedding_stays_one_tensor_through_save_and_load_report_98(tmp_path):
    model = build_model(TINY, VOCAB, SEQ_LEN, seed=0)
    pointer, logits_BTV = model.embed.weight.data_ptr(), model(_tokens())
    assert "head.weight" not in model.state_dict()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    model.embed.weight.data.zero_()
    model.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert model.embed.weight.data_ptr() == pointer
    assert torch.equal(model(_tokens()), logits_BTV)


@pytest.mark.parametrize("tied", [True, False])
def test_state_dict_holds_parameters_only(tied):
    model = build_model(TINY, VOCAB, SEQ_LEN, seed=0, tied=tied)
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}
    assert ("head.weight" in model.state_dict()) is not tied


def test_on_the_meta_device_nothing_is_allocated():
    model = build_model(SIZES["100b"], 32768, 2048, seed=0, device="meta")
    assert all(t.is_meta for t in [*model.parameters(), *model.buffers()])
    with torch.device("meta"):
        assert Transformer(TINY, VOCAB, SEQ_LEN)(torch.zeros(1, 4, dtype=torch.long)).shape == (1, 4, VOCAB)


def test_bad_shapes_are_refused():
    with pytest.raises(BadInput, match="vocab_size is 0"):
        build_model(TINY, 0, SEQ_LEN, seed=0)
    with pytest.raises(BadInput, match="seq_len is 0"):
        build_model(TINY, VOCAB, 0, seed=0)
    with pytest.raises(BadInput, match="'odd' has width 15 and 3 heads"):
        build_model(Size("odd", 1, 3, 15, 60), VOCAB, SEQ_LEN, seed=0)


def test_golden_training_step():
    """One AdamW step from seed 0, in numbers written down."""
    model = build_model(TINY, VOCAB, SEQ_LEN, seed=0)
    (adamw,) = build_inner(model, InnerConfig(lr=0.01, warmup_steps=0), total_steps=10)
    tokens_BT = torch.arange(2 * (SEQ_LEN + 1)).reshape(2, -1) % VOCAB
    loss, _ = lm_loss(model(tokens_BT[:, :-1]), tokens_BT[:, 1:], z_loss=1e-4)
    loss.backward()
    norm = clip_gradients(model, 1.0)
    adamw.step()
    checksum = sum(p.double().abs().sum().item() for p in model.parameters())
    measured = (loss.item(), norm.item(), checksum)
    assert measured == pytest.approx(GOLDEN, rel=1e-5), (
        f"{measured} differs from {GOLDEN}. These numbers may change only with a deliberate change of architecture, "
        "initial weights, the loss or AdamW's defaults; a refactor or a speed-up must leave them as they are."
    )


GOLDEN = (3.4872475, 0.8543587, 1170.54024)  # loss in nats with z-loss, gradient norm, sum of |weights| after the step
