"""A packed tree comes back bit for bit, or is refused by path.

pytest tests/checkpoint/test_pack.py
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch

from diloco.checkpoint.dtypes import DTYPES
from diloco.checkpoint.pack import first_nonfinite, pack, unpack


def round_trip(tree):
    tensors, json_tree = pack(tree)
    return unpack(tensors, json.loads(json.dumps(json_tree, allow_nan=False)))


def same(a, b) -> bool:
    """Same types, values and bits all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        bits = [x.contiguous().view(-1).view(torch.uint8) if x.numel() else x for x in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*bits)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or (a != a and b != b)


@pytest.mark.parametrize(
    "tree",
    [
        {},
        [],
        (),
        None,
        "text 😀 \n",
        -0.0,
        0.1,
        2**70,
        {"a": [1, (2, [True, None, ()])], "": {"": 1}},
        {"$tensor": "not a tag", "x": 1},
        {"$tuple": [1]},
        {0: "int", "0": "text", -1: {"$dict": []}},
        {"betas": (0.9, 0.999), "loss": [math.nan, math.inf, -math.inf]},
        torch.tensor(3.0),
        {"zero_dim": torch.tensor(7, dtype=torch.int64), "none": torch.empty(0, 3)},
        {"a/b": torch.ones(1), "a": {"b": torch.zeros(1)}, 0: torch.ones(2), "0": torch.zeros(2)},
        {"__metadata__": torch.ones(1)},
        {"nan": torch.tensor([math.nan, math.inf, -0.0])},
    ],
    ids=repr,
)
def test_tree_comes_back_the_same(tree):
    assert same(round_trip(tree), tree)


def test_every_dtype_survives_a_file_report_37(tmp_path):
    """An fp32 buffer among bf16 weights, and every other dtype, keeps its dtype and bits."""
    from safetensors.torch import load_file, save_file

    tree = {str(dtype): torch.arange(1, 9, dtype=torch.uint8).view(dtype) for dtype in DTYPES if dtype != torch.bool}
    tree["bool"] = torch.tensor([True, False])
    tensors, json_tree = pack(tree)
    save_file(tensors, tmp_path / "x.safetensors")
    assert same(unpack(load_file(tmp_path / "x.safetensors"), json_tree), tree)


def test_views_are_packed_as_what_they_show(tmp_path):
    from safetensors.torch import save_file

    base = torch.arange(12.0).view(3, 4)
    tree = {"base": base, "transposed": base.T, "row": base[1], "flat": base.view(-1), "strided": base[:, ::2]}
    tensors, json_tree = pack(tree)
    save_file(tensors, tmp_path / "x.safetensors")
    assert same(unpack(tensors, json_tree), tree)


def test_tied_tensor_is_stored_once_and_comes_back_tied():
    weight = torch.nn.Parameter(torch.randn(3))
    tensors, json_tree = pack({"embed": weight, "head": weight.data})
    assert list(tensors) == ["embed"]
    tree = unpack(tensors, json_tree)
    assert tree["embed"] is tree["head"]
    assert not tree["embed"].requires_grad


def test_names_read_as_paths():
    tree = {"optimizer": [{"state": {3: {"exp_avg": torch.ones(1)}}}]}
    assert list(pack(tree)[0]) == ["optimizer/0/state/3/exp_avg"]


def test_ordered_dict_becomes_dict():
    assert same(round_trip(OrderedDict(b=1, a=2)), {"b": 1, "a": 2})


def test_packing_copies_nothing_that_stays_on_the_cpu_whole():
    weight = torch.ones(4)
    assert pack({"w": weight})[0]["w"].data_ptr() == weight.data_ptr()


@pytest.mark.parametrize(
    "bad, path",
    [
        ({"a": [np.float64(1.0)]}, "a/0"),
        ({"a": {"b": object()}}, "a/b"),
        ({"a": {1, 2}}, "a"),
        ({"a": namedtuple("P", "x")(1)}, "a"),
        ({"a": {(1, 2): 3}}, "a"),
        ({"a": {True: 3}}, "a"),
        ({"a": torch.ones(2, device="meta")}, "a"),
        ({"a": torch.ones(2, 2).to_sparse()}, "a"),
        ({"a": torch.ones(2, dtype=torch.complex128)}, "a"),
        ({"a": b"bytes"}, "a"),
    ],
)
def test_anything_else_is_refused_by_path(bad, path):
    with pytest.raises(TypeError, match=rf"cannot save {path}[:,]"):
        pack(bad)


def test_unpack_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="'w' is missing"):
        unpack({}, {"$tensor": "w"})
    with pytest.raises(ValueError, match="'extra' belongs nowhere"):
        unpack({"extra": torch.ones(1)}, {"a": 1})
    with pytest.raises(ValueError, match="unknown tag"):
        unpack({}, {"$object": "x"})


def test_optimizer_saved_before_zero_grad_keeps_moments_report_29():
    """Gradients still present at save time must not empty the optimizer state."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    loaded = round_trip(optimizer.state_dict())
    assert set(loaded["state"][0]) == {"step", "exp_avg", "exp_avg_sq"}
    assert same(loaded, optimizer.state_dict())


def test_stateless_sgd_stays_empty_and_frozen_moments_stay_report_30():
    """Plain SGD gains no junk entries; a parameter frozen after training keeps its moments."""
    model = torch.nn.Linear(3, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    adam = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    sgd.step()
    adam.step()
    model.bias.requires_grad_(False)
    assert round_trip(sgd.state_dict())["state"] == {}
    assert same(round_trip(adam.state_dict()), adam.state_dict())
    assert set(round_trip(adam.state_dict())["state"]) == {0, 1}


def test_first_nonfinite_names_the_tensor_report_86():
    """A caller can refuse to save NaN weights over good checkpoints."""
    good = {"step": torch.tensor(3), "w": torch.ones(2), "mask": torch.tensor([True]), "last_loss": math.nan}
    assert first_nonfinite(good) is None
    assert first_nonfinite({**good, "m": [torch.zeros(2), torch.tensor([0.0, math.inf])]}) == "m/1"
    assert first_nonfinite(torch.tensor(math.nan, dtype=torch.bfloat16)) == "root"
    assert first_nonfinite({"w": torch.tensor([math.nan]).to(torch.float8_e5m2)}) == "w"
