"""A tree that is saved comes back bit for bit, or is refused by path.

pytest tests/checkpoint/test_pack.py
"""

from __future__ import annotations

import math
import uuid
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch

from diloco import checkpoint
from diloco.checkpoint.dtypes import DTYPES
from diloco.checkpoint.pack import decode, first_nonfinite, split


def round_trip(tree):
    place = f"memory://{uuid.uuid4().hex}"
    checkpoint.save(place, 1, {"x": tree}, {})
    return checkpoint.load(f"{place}/step-00000001")[0]["x"]


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


def test_every_dtype_survives_a_file_report_37():
    """An fp32 buffer among bf16 weights, and every other dtype, keeps its dtype and bits."""
    tree = {str(dtype): torch.arange(1, 9, dtype=torch.uint8).view(dtype) for dtype in DTYPES if dtype != torch.bool}
    tree["bool"] = torch.tensor([True, False])
    assert same(round_trip(tree), tree)


def test_views_are_saved_as_what_they_show():
    base = torch.arange(12.0).view(3, 4)
    tree = {"base": base, "transposed": base.T, "row": base[1], "flat": base.view(-1), "strided": base[:, ::2]}
    tree["conjugate"] = torch.view_as_complex(torch.randn(3, 2)).conj()
    assert same(round_trip(tree), {**tree, "conjugate": tree["conjugate"].resolve_conj()})


def test_tied_tensor_is_stored_once_and_comes_back_tied():
    weight = torch.nn.Parameter(torch.randn(3))
    tied = {"embed": weight, "head": weight.data}
    assert list(split(tied)[0]) == ["embed"]
    tree = round_trip(tied)
    assert tree["embed"] is tree["head"]
    assert not tree["embed"].requires_grad


def test_names_read_as_paths():
    tree = {"optimizer": [{"state": {3: {"exp_avg": torch.ones(1)}}}]}
    assert list(split(tree)[0]) == ["optimizer/0/state/3/exp_avg"]


def test_ordered_dict_becomes_dict():
    assert same(round_trip(OrderedDict(b=1, a=2)), {"b": 1, "a": 2})


def test_splitting_copies_nothing():
    weight = torch.ones(4)
    assert split({"w": weight})[0]["w"].data_ptr() == weight.data_ptr()


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
        split(bad)


def test_an_unknown_tag_is_refused():
    with pytest.raises(ValueError, match="unknown tag"):
        decode({"$object": "x"}, lambda tag, value: None)


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


FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.float8_e4m3fn]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_single_value_that_is_not_finite_is_found_wherever_it_is(dtype: torch.dtype, value: float) -> None:
    """Beside the largest values that are finite, and in whatever layout; e4m3fn has no infinity."""
    if dtype.itemsize == 1:
        value = math.nan
    largest = 3e38 if dtype.is_complex else torch.finfo(dtype).max
    for place in range(40):
        tensor = torch.full((8, 5), -largest, dtype=dtype)
        tensor[0] = largest
        assert first_nonfinite({"w": tensor.T, "none": tensor[:0]}) is None
        tensor.view(-1)[place] = value
        assert first_nonfinite({"w": tensor.T}) == "w"
