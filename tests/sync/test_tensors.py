"""Which tensors take part in a sync, and how: dtypes, frozen, tied and late parameters, buffers.

pytest tests/sync/test_tensors.py
"""

from __future__ import annotations

import copy

import pytest
import torch
from support.replicas import Fleet, inner_step, small_model, states
from torch import nn

import diloco
from diloco.outer.tensors import clean_name, roster


def test_small_outer_updates_survive_in_bf16_report_83() -> None:
    """100 outer steps far below bf16's resolution: the fp32 anchor moves as an fp32 model's would."""
    sizes = (64, 32)
    drift = 1e-4 * torch.randn(sizes, generator=torch.Generator().manual_seed(0)).abs()

    def train(dtype: torch.dtype) -> torch.Tensor:
        model = nn.Linear(32, 64, bias=False).to(dtype)
        with torch.no_grad():
            model.weight.fill_(1.0)
        sync = diloco.DiLoCo(
            model, torch.optim.SGD(model.parameters(), lr=1.0), sync_every=1, hook=False, outer=diloco.SGD(1e-3)
        )
        for _ in range(100):
            with torch.no_grad():
                model.weight.sub_(0.0625)  # exact in bf16: both replicas send the same outer gradient
            sync.step()
        return sync.anchor()["weight"].clone()

    anchor = train(torch.bfloat16)
    assert anchor.dtype == torch.float32
    torch.testing.assert_close(anchor, train(torch.float32), rtol=1e-6, atol=0)
    assert drift.numel() and (anchor < 1.0).all()


def test_frozen_weights_stay_home_report_97() -> None:
    """LoRA: with 99% frozen, 1% is sent and held."""
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 1, bias=False))
    for p in model[0].parameters():
        p.requires_grad_(False)
    fleet = Fleet(2, build=lambda m: copy.deepcopy(model), sync_every=1)
    sync = fleet.syncs[0]
    assert sync.fragments[0].anchor.numel() == 100 and list(sync.anchor()) == ["1.weight"]
    before = model[0].weight.clone()
    for m, o in zip(fleet.models, fleet.optimizers, strict=True):
        m(torch.ones(4, 100)).sum().backward()
        o.step()
    assert sync.rounds[0].bytes_sent < 0.05 * 4 * 10_200 and torch.equal(fleet.models[1][0].weight, before)


def test_differing_frozen_weights_are_refused() -> None:
    def build(m: int) -> nn.Module:
        model = small_model(m)
        model[0].weight.requires_grad_(False)
        return model

    with pytest.raises(diloco.BadInput, match="frozen weights differs"):
        Fleet(2, build=build)


def test_tied_tensors_take_part_once_report_98() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 5), nn.Linear(5, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x @ self.embed.weight)[:, :3]

    fleet = Fleet(2, build=lambda m: Tied(), sync_every=2, outer=diloco.Nesterov())
    pointer = fleet.models[0].embed.weight.data_ptr()
    fleet.run(4)
    model, sync = fleet.models[0], fleet.syncs[0]
    assert model.head.weight is model.embed.weight and model.embed.weight.data_ptr() == pointer
    assert sync.fragments[0].anchor.numel() == 25 == sync.fragments[0].state.tensors["momentum"].numel()


def test_unused_parameters_are_still_merged() -> None:
    def build(m: int) -> nn.Module:
        model = small_model()
        model.unused = nn.Parameter(torch.zeros(3))
        return model

    fleet = Fleet(2, build=build, sync_every=1, outer=diloco.SGD(1.0))
    with torch.no_grad():
        fleet.models[1].unused.fill_(2.0)
    fleet.run(1)
    assert fleet.models[0].unused.tolist() == fleet.models[1].unused.tolist() == [1.0, 1.0, 1.0]


class Normalised(nn.Module):
    """BatchNorm, an integer counter, a constant buffer and a rotary cache that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(5, 3), nn.BatchNorm1d(3)
        self.register_buffer("constant", torch.tensor([0.1, 1 / 3, 7e-12]))
        self.register_buffer("cache", torch.tensor([0.3]), persistent=False)
        self.register_buffer("flag", torch.tensor([True, False]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x))


@pytest.mark.parametrize("counters", ["keep", "max"])
def test_float_buffers_are_averaged_and_counters_kept_report_95(counters: str) -> None:
    fleet = Fleet(3, build=lambda m: Normalised(), sync_every=4, counters=counters)
    fleet.run(3)
    with torch.no_grad():
        fleet.models[2].norm.num_batches_tracked.add_(10)
        fleet.models[1].cache.fill_(9.0)
    before = [states(m) for m in fleet.models]
    fleet.run(1)
    stats = [b["norm.running_mean"] for b in before]
    assert not torch.equal(stats[0], stats[1])
    after = [states(m) for m in fleet.models]
    assert all(torch.equal(after[0]["norm.running_mean"], a["norm.running_mean"]) for a in after)
    assert all(torch.equal(a["constant"], Normalised().constant) for a in after)
    assert [a["norm.num_batches_tracked"].item() for a in after] == ([14, 14, 14] if counters == "max" else [4, 4, 14])
    assert fleet.models[1].cache.item() == 9.0


def test_running_variance_is_never_stepped_report_93() -> None:
    """Under Nesterov 0.7 / 0.9 a variance that shrinks each round would go negative within 12 rounds."""
    fleet = Fleet(2, build=lambda m: Normalised(), sync_every=1, outer=diloco.Nesterov(0.7, 0.9))
    for _ in range(12):
        with torch.no_grad():
            for model in fleet.models:
                model.norm.running_var.mul_(0.5)
        fleet.run(1)
        assert (fleet.models[0].norm.running_var > 0).all()


def test_matched_by_name_through_wrappers_report_37() -> None:
    assert clean_name("_orig_mod.a._checkpoint_wrapped_module.weight") == "a.weight"
    plain, compiled = small_model(), torch.compile(small_model())
    assert roster(plain).description() == roster(compiled).description()


def test_order_of_construction_does_not_matter() -> None:
    class Swapped(nn.Module):
        def __init__(self, first: str, second: str) -> None:
            super().__init__()
            for name in (first, second):
                setattr(self, name, nn.Linear(5, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x) + self.b(x)

    fleet = Fleet(2, build=lambda m: Swapped("ab"[m], "ba"[m]), sync_every=2)
    fleet.run(2)
    assert torch.equal(fleet.models[0].a.weight, fleet.models[1].a.weight)
    assert not torch.equal(fleet.models[0].a.weight, fleet.models[0].b.weight)


def test_nothing_trainable_is_refused() -> None:
    model = small_model().requires_grad_(False)
    with pytest.raises(diloco.BadInput, match="requires_grad"):
        diloco.DiLoCo(model, torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1), sync_every=1)


def test_float64_models_keep_their_precision() -> None:
    fleet = Fleet(2, build=lambda m: small_model(m), sync_every=3)
    assert fleet.syncs[0].fragments[0].anchor.dtype == torch.float32
    model = nn.Linear(3, 3).double()
    sync = diloco.DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.1), sync_every=1)
    assert sync.fragments[0].anchor.dtype == torch.float64


def test_large_fp16_weights_are_not_taken_for_infinite() -> None:
    """Each of them is finite, although their norm in fp16 would not be."""
    model = nn.Linear(100, 100, bias=False).half()
    with torch.no_grad():
        model.weight.fill_(6e4)
    sync = diloco.DiLoCo(model, torch.optim.SGD(model.parameters(), lr=1.0), sync_every=1, hook=False)
    sync.step()
    assert sync.rounds[0].committed


@pytest.mark.parametrize("how", ["unfrozen", "replaced"])
def test_a_parameter_that_came_later_is_not_forgotten(how: str) -> None:
    model = small_model()
    model[0].weight.requires_grad_(how != "unfrozen")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    diloco.DiLoCo(model, optimizer, sync_every=2)
    inner_step(model, optimizer, 0, 0)
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())
    with pytest.raises(diloco.Mismatch, match="'0.weight' became trainable, or was replaced"):
        inner_step(model, optimizer, 0, 1)


def test_buffers_that_turned_nan_on_all_replicas_come_back() -> None:
    """A failed round restores the buffers of the last sync, so that the next one commits."""
    fleet = Fleet(2, build=lambda m: Normalised(), sync_every=2)
    fleet.run(2)
    sound = states(fleet.models[0])

    def poison(m: int, step: int) -> None:
        if step == 3:
            fleet.models[m].norm.running_var.fill_(float("nan"))

    fleet.run(2, each=poison)
    assert [r.committed for r in fleet.syncs[0].rounds] == [True, False]
    assert torch.equal(fleet.models[1].norm.running_var, sound["norm.running_var"])
    fleet.run(4)
    assert [r.committed for r in fleet.syncs[0].rounds] == [True, False, True, True]


def test_a_constant_mask_of_minus_infinity_is_no_fault() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 3)
            self.register_buffer("mask", torch.triu(torch.full((3, 3), float("-inf")), 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) @ self.mask.softmax(1)

    fleet = Fleet(2, build=lambda m: Masked(), sync_every=2)
    fleet.run(4)
    assert [r.committed for r in fleet.syncs[0].rounds] == [True, True]
    assert torch.equal(fleet.models[1].mask, Masked().mask)
