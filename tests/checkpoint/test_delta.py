"""Differences between tensors: every bit comes back, and what can be small is.

pytest tests/checkpoint/test_delta.py
"""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from torch import Tensor

from diloco.checkpoint import delta, delta_planes
from diloco.checkpoint.delta_words import by_magnitude, disorder, order, rotate, unrotate, unzigzag, words_of, zigzag
from diloco.checkpoint.dtypes import DTYPES

SHAPES = [(), (0,), (1,), (3, 0, 2), (7, 13), (300, 64)]


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def random_bits(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Any bit pattern: NaNs with payloads, infinities, subnormals and -0.0 among them. Bools are 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    numel = int(np.prod(shape)) * dtype.itemsize
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (numel,), generator=generator, dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def nudged(tensor: Tensor, seed: int) -> Tensor:
    """A tensor most of whose bits are the base's."""
    changed = tensor.clone()
    raw = changed.reshape(-1).view(torch.uint8)
    raw[:: max(changed.element_size(), 1)] ^= random_bits((1,), torch.bool, seed).view(torch.uint8)
    return changed


def round_trip(new: Tensor, base: Tensor | None) -> dict:
    payload, recipe = delta.encode(new, base)
    assert payload.dtype == torch.uint8 and payload.dim() == 1
    recipe = json.loads(json.dumps(recipe))
    assert recipe["bytes_after"] == payload.numel() <= recipe["bytes_before"] == new.nbytes
    back = delta.decode(payload, recipe, base)
    assert (back.dtype, back.shape) == (new.dtype, new.shape) and bytes_of(back) == bytes_of(new)
    return recipe


@pytest.mark.parametrize("dtype", sorted(DTYPES, key=str), ids=str)
def test_every_bit_of_every_dtype_comes_back(dtype: torch.dtype) -> None:
    for seed, shape in enumerate(SHAPES):
        base = random_bits(shape, dtype, seed)
        for new in (random_bits(shape, dtype, seed + 100), nudged(base, seed), base.clone()):
            round_trip(new, base)
            round_trip(new, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float16, torch.complex64])
def test_trained_tensors_are_coded_as_differences_and_come_back(dtype: torch.dtype) -> None:
    base = torch.randn(200, 80, generator=torch.Generator().manual_seed(0)).to(dtype)
    new = (base + 1e-3 * torch.randn(200, 80, generator=torch.Generator().manual_seed(1))).to(dtype)
    recipe = round_trip(new, base)
    assert recipe["kind"] == delta.DIFFERENCE
    assert recipe["bytes_after"] < round_trip(new, None)["bytes_after"] < recipe["bytes_before"]


def test_difference_is_near_what_its_size_says() -> None:
    """Values in one octave, changed by up to 2^11 ulps either way: 12 bits, that is 37.5%, and the zeros above them."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randint(0x3F80_0000, 0x3FFF_0000, (100_000,), generator=generator, dtype=torch.int32)
    new = base + torch.randint(-2048, 2048, (100_000,), generator=generator, dtype=torch.int32)
    recipe = round_trip(new.view(torch.float32), base.view(torch.float32))
    assert recipe["bytes_after"] / recipe["bytes_before"] < 0.38


def test_what_has_turned_over_is_coded_by_itself() -> None:
    """The base of a first moment says nothing of it, and a difference would be larger than the tensor alone."""
    base, new = (torch.randn(50_000, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    assert round_trip(new, base)["kind"] == delta.SELF
    assert round_trip(new, base)["bytes_after"] == round_trip(new, None)["bytes_after"]


def test_an_equal_tensor_takes_nothing_and_noise_takes_itself() -> None:
    noise = random_bits((5000,), torch.int32, 0)
    assert round_trip(noise, noise.clone())["bytes_after"] == 0
    recipe = round_trip(noise, None)
    assert recipe["kind"] == delta.STORED and recipe["bytes_after"] == noise.nbytes


def test_zeros_that_differ_in_sign_are_not_equal() -> None:
    zeros = torch.zeros(5000)
    assert round_trip(-zeros, zeros)["kind"] != delta.SAME


@pytest.mark.parametrize("numel", [1, 99, 100, 101, 250])
def test_slices(numel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    base = torch.linspace(1, 2, numel)
    new = base * (1 + 1e-6)
    whole = round_trip(new, base)
    monkeypatch.setattr(delta, "SLICE", 100)
    monkeypatch.setattr(delta_planes, "SLICE", 100)
    payload, recipe = delta.encode(new, base)
    monkeypatch.undo()  # a reader goes by the recipe, whatever its own slices are
    assert recipe["slice"] == 100 != whole["slice"]
    assert torch.equal(delta.decode(payload, recipe, base), new)


def test_a_chain_of_links_comes_back() -> None:
    generator = torch.Generator().manual_seed(0)
    states = [torch.randn(400, generator=generator)]
    for _ in range(12):
        states.append(states[-1] + 1e-3 * torch.randn(400, generator=generator))
    links = [delta.encode(new, base) for new, base in zip(states, [None, *states], strict=False)]
    have = None
    for (payload, recipe), state in zip(links, states, strict=True):
        have = delta.decode(payload, recipe, have)
        assert torch.equal(have, state)


def test_strided_conjugated_and_trained_tensors_are_taken_as_they_look() -> None:
    matrix = torch.arange(12.0).view(3, 4)
    for tensor in (matrix.T, matrix[:, ::2], torch.nn.Parameter(matrix), torch.complex(matrix, matrix).conj()):
        payload, recipe = delta.encode(tensor)
        assert torch.equal(delta.decode(payload, recipe), tensor.detach())


def test_what_is_read_has_memory_of_its_own() -> None:
    base = torch.arange(6.0)
    for new in (base.clone(), base + 1):
        payload, recipe = delta.encode(new, base)
        delta.decode(payload, recipe, base).zero_()
        assert torch.equal(delta.decode(payload, recipe, base), new) and torch.equal(base, torch.arange(6.0))


def test_a_base_that_is_another_tensor_is_refused() -> None:
    new = torch.ones(3)
    for base in (torch.ones(4), torch.ones(3, dtype=torch.int32)):
        with pytest.raises(ValueError, match="base is"):
            delta.encode(new, base)
    payload, recipe = delta.encode(new, new)
    with pytest.raises(ValueError, match="cannot be read without"):
        delta.decode(payload, recipe)
    with pytest.raises(ValueError, match="base is"):
        delta.decode(payload, recipe, torch.ones(4))


def test_damaged_payloads_are_refused_or_read_without_a_crash() -> None:
    base = torch.linspace(1, 2, 5000)
    payload, recipe = delta.encode(base * 1.001, base)
    table = 4 * base.element_size()
    for cut in (0, 5, table, payload.numel() - 1):
        with pytest.raises(ValueError, match="payload"):
            delta.decode(payload[:cut], recipe, base)
    for at in range(0, payload.numel(), 97):
        damaged = payload.clone()
        damaged[at] ^= 255
        try:
            assert delta.decode(damaged, recipe, base).shape == base.shape
        except ValueError:
            pass
    with pytest.raises(ValueError, match="payload has 3 bytes"):
        delta.decode(torch.zeros(3, dtype=torch.uint8), {**recipe, "kind": delta.STORED})


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_maps_are_reversible(dtype: type) -> None:
    bits = 8 * np.dtype(dtype).itemsize
    edges = [0, 1, 2 ** (bits - 1) - 1, 2 ** (bits - 1), 2**bits - 1]
    words = np.array(edges + [hash((i, bits)) % 2**bits for i in range(1000)], dtype)
    for there, back in ((rotate, unrotate), (order, disorder), (zigzag, unzigzag)):
        assert there(words).dtype == dtype and np.array_equal(back(there(words)), words)


def test_order_is_that_of_the_values_and_zigzag_that_of_magnitudes() -> None:
    values = torch.tensor([-torch.inf, -2.5, -1e-45, -0.0, 0.0, 1e-45, 1e-3, 2.5, torch.inf])
    ordered = order(words_of(values)).tolist()
    assert ordered == sorted(ordered) and ordered[4] - ordered[3] == 1
    differences = np.array([0, -1, 1, -2, 2], np.int32).view(np.uint32)
    assert zigzag(differences).tolist() == [0, 1, 2, 3, 4]


def test_sorting_is_by_exponent_and_stable() -> None:
    values = torch.tensor([4.0, -1.0, 1.5, -0.1, 7.0, 1.0])
    assert by_magnitude(words_of(values)).tolist() == [3, 1, 2, 5, 0, 4]


def test_pairs_of_bases_and_edges() -> None:
    """Differences that wrap around: from the largest to the least float and the like."""
    edges = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38])
    pairs = torch.tensor(list(itertools.product(edges.tolist(), repeat=2)))
    new, base = pairs.unbind(1)
    words = order(words_of(new)) - order(words_of(base))
    assert np.array_equal(disorder(unzigzag(zigzag(words)) + order(words_of(base))), words_of(new.contiguous()))
    round_trip(new.contiguous(), base.contiguous())
