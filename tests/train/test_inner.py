"""Inner optimizers, learning-rate schedule and clipping.

Run just this: pytest tests/train/test_inner.py
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from diloco.errors import BadInput
from diloco.train.inner import (
    InnerConfig,
    body_matrices,
    build_inner,
    clip_gradients,
    lr_at,
    set_lr,
    warmup_steps,
    weight_decay,
)
from diloco.train.model import build_model
from diloco.train.sizes import Size

TINY = Size("tiny", 2, 2, 16, 64)


def _model(tied=True):
    return build_model(TINY, 32, 8, seed=0, tied=tied)


BAD = {
    "optimizer": ["sgd"],
    "lr": [0.0, -1e-3, math.nan, math.inf],
    "beta1": [1.0, -0.1, math.nan],
    "beta2": [1.0, -0.1, math.nan],
    "eps": [0.0, math.nan],
    "weight_decay": [-0.1, math.nan, math.inf],
    "warmup_steps": [-1],
    "min_lr_ratio": [-0.1, 1.1, math.nan],
    "clip": [-1.0, math.nan, math.inf],
}


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in BAD.items() for v in values])
def test_bad_values_are_refused_by_name(field, value):
    with pytest.raises(BadInput, match=rf"^inner\.{field} is "):
        InnerConfig(**{field: value})


def test_schedule_shape():
    cfg = InnerConfig(lr=1.0, warmup_steps=4, min_lr_ratio=0.1)
    lrs = [lr_at(t, 15, cfg) for t in range(15)]
    assert lrs[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert lrs[9] == pytest.approx(0.1 + 0.9 * 0.5)  # half way between peak at 4 and end at 14
    assert lrs[14] == pytest.approx(0.1)
    assert all(a > b for a, b in zip(lrs[4:], lrs[5:], strict=False))
    assert lr_at(99, 15, cfg) == pytest.approx(0.1)


@pytest.mark.parametrize("total_steps", [1, 2, 3, 20, 5000])
@pytest.mark.parametrize("warmup", [None, 0, 1])
def test_every_lr_is_positive_from_the_first_step(total_steps, warmup):
    cfg = InnerConfig(warmup_steps=warmup)
    lrs = [lr_at(t, total_steps, cfg) for t in range(total_steps)]
    assert all(0 < lr <= cfg.lr for lr in lrs)


def test_fresh_resumed_and_rejoined_curves_agree_report_33():
    cfg, total_steps = InnerConfig(warmup_steps=3), 30

    def curve(first_step):
        optimizers = build_inner(_model(), cfg, total_steps)
        lrs = []
        for step in range(first_step, total_steps):
            set_lr(optimizers, lr_at(step, total_steps, cfg))
            lrs += [{g["lr"] for o in optimizers for g in o.param_groups}]
        return lrs

    fresh = curve(0)
    assert fresh[11:] == curve(11)
    assert fresh[29:] == curve(29)
    assert all(len(lrs) == 1 for lrs in fresh)
    assert build_inner(_model(), cfg, total_steps)[0].param_groups[0]["lr"] in fresh[0]


def test_defaults_follow_the_length_of_the_run():
    assert [warmup_steps(InnerConfig(), t) for t in (1, 10, 400, 20_000, 10**6)] == [0, 0, 20, 1000, 1000]
    assert weight_decay(InnerConfig(), 400) == 1 / 400
    assert weight_decay(InnerConfig(weight_decay=0.0), 400) == 0.0


def test_warmup_longer_than_the_run_and_empty_runs_are_refused():
    with pytest.raises(BadInput, match="warmup_steps is 11, more than the run's 10 steps"):
        build_inner(_model(), InnerConfig(warmup_steps=11), 10)
    with pytest.raises(BadInput, match="steps is 0"):
        lr_at(0, 0, InnerConfig())
    with pytest.raises(ValueError, match="step is -1"):
        lr_at(-1, 10, InnerConfig())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_every_trainable_parameter_is_in_exactly_one_group(optimizer, tied):
    if optimizer == "muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    model = _model(tied)
    model.blocks[0].ffn.up.weight.requires_grad_(False)
    optimizers = build_inner(model, InnerConfig(optimizer=optimizer), 10)
    held = [p for o in optimizers for g in o.param_groups for p in g["params"]]
    trainable = [p for p in model.parameters() if p.requires_grad]
    assert len(held) == len(trainable)
    assert {id(p) for p in held} == {id(p) for p in trainable}


def test_only_matrices_decay():
    (adamw,) = build_inner(_model(), InnerConfig(weight_decay=0.1), 10)
    for group in adamw.param_groups:
        assert {p.dim() >= 2 for p in group["params"]} == {group["weight_decay"] == 0.1}


def test_muon_takes_the_body_and_leaves_embedding_and_head():
    model = _model(tied=False)
    chosen = {n for n, p in model.named_parameters() if any(p is q for q in body_matrices(model))}
    kinds = ("attention.qkv", "attention.out", "ffn.up", "ffn.down")
    assert chosen == {f"blocks.{i}.{kind}.weight" for i in range(2) for kind in kinds}


def test_muon_steps_have_the_scale_of_adamw_so_that_one_lr_serves_both():
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    weight = nn.Linear(128, 128, bias=False)
    muon, *_ = build_inner(weight, InnerConfig(optimizer="muon", weight_decay=0.0), 10)
    set_lr([muon], 0.01)
    before = weight.weight.detach().clone()
    weight.weight.grad = torch.randn(128, 128, generator=torch.Generator().manual_seed(0))
    muon.step()
    # AdamW's update has an RMS of 0.2 to 0.4 times lr (arXiv:2502.16982 section 2.2).
    assert 0.15 < (weight.weight - before).square().mean().sqrt().item() / 0.01 < 0.45


def test_muon_missing_names_the_torch_that_has_it(monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon", raising=False)
    with pytest.raises(BadInput, match="torch>=2.9"):
        build_inner(_model(), InnerConfig(optimizer="muon"), 10)


def test_nothing_to_train_is_refused():
    with pytest.raises(BadInput, match="no trainable parameter"):
        build_inner(_model().requires_grad_(False), InnerConfig(), 10)


def test_adamw_equals_a_plain_loop():
    weight = nn.Linear(3, 2, bias=False)
    cfg = InnerConfig(lr=0.1, beta1=0.8, beta2=0.9, weight_decay=0.2)
    optimizers = build_inner(weight, cfg, 10)
    w = weight.weight.detach().double()
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    g = torch.Generator().manual_seed(0)
    for t in range(1, 6):
        grad = torch.randn(2, 3, generator=g)
        weight.weight.grad = grad.clone()
        set_lr(optimizers, 0.1 / t)
        optimizers[0].step()
        m, v = 0.8 * m + 0.2 * grad, 0.9 * v + 0.1 * grad**2
        update = (m / (1 - 0.8**t)) / ((v / (1 - 0.9**t)).sqrt() + 1e-8)
        w = w - (0.1 / t) * (update + 0.2 * w)
    torch.testing.assert_close(weight.weight.detach().double(), w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("max_norm", "norm_after"), [(1.0, 1.0), (100.0, 13.0), (0.0, 13.0)])
def test_clipping_is_global_and_reports_the_norm_before(max_norm, norm_after):
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1, bias=False), nn.Linear(1, 1).requires_grad_(False))
    for parameter, grad in zip([p for p in model.parameters() if p.requires_grad], (3.0, 4.0, 12.0), strict=True):
        parameter.grad = torch.full_like(parameter, grad)
    norm = clip_gradients(model, max_norm)
    assert norm.item() == pytest.approx(13.0)
    grads = torch.stack([p.grad.flatten()[0] for p in model.parameters() if p.grad is not None])
    assert grads.norm().item() == pytest.approx(norm_after, rel=1e-5)
    torch.testing.assert_close(grads / grads.norm(), torch.tensor([3.0, 4.0, 12.0]) / 13)


def test_a_nan_gradient_gives_a_nan_norm():
    model = nn.Linear(2, 2, bias=False)
    model.weight.grad = torch.tensor([[1.0, math.nan], [0.0, 0.0]])
    assert clip_gradients(model, 1.0).isnan()
