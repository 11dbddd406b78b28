"""One table of properties over all codecs: bounds, bytes, independence of blocks, the same bits on every device; specs.

pytest tests/outer/test_codec.py
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from diloco.errors import BadInput
from diloco.outer.codec import Codec, Key, get_codec
from diloco.outer.codecs import base

SPECS = ["fp32", "bf16", "fp16", "int8", "int4", "e3m0"]
SPECS += ["topk:0.01", "topk:0.3:2", "topk:1:5", "randk:0.02", "randk:0.3:3", "randk:0.1:8-ef"]
every_codec = pytest.mark.parametrize("spec", SPECS)
KEY = Key(seed=7, first=8192)
FP32_MAX = torch.finfo(torch.float32).max

SAMPLES = {
    "normal": lambda n, g: torch.randn(n, generator=g),
    "zeros": lambda n, g: torch.zeros(n),
    "constant": lambda n, g: torch.full((n,), -0.7),
    "uniform": lambda n, g: torch.rand(n, generator=g) - 0.5,
    "mostly zero": lambda n, g: torch.randn(n, generator=g) * (torch.rand(n, generator=g) < 0.003),
    "many scales": lambda n, g: torch.randn(n, generator=g) * 10 ** (60 * torch.rand(n, generator=g) - 30),
    "powers of two": lambda n, g: 2.0 ** torch.randint(-20, 20, (n,), generator=g) * 1.5,
}


def encoded(codec: Codec, values: Tensor, key: Key = KEY, fill: int = 0) -> Tensor:
    """The payload, written at an odd byte of a larger buffer whose other bytes must stay as they are."""
    buffer = torch.full((codec.nbytes(values.numel()) + 8,), fill, dtype=torch.uint8, device=values.device)
    codec.encode(values, buffer[3:-5], key)
    assert (buffer[:3] == fill).all() and (buffer[-5:] == fill).all()
    return buffer[3:-5]


def round_trip(codec: Codec, values: Tensor, key: Key = KEY) -> Tensor:
    out = torch.full_like(values, 1e30)
    codec.decode(encoded(codec, values, key), out, key)
    return out


def assert_same_bits(a: Tensor, b: Tensor) -> None:
    assert torch.equal(a.view(torch.int32), b.view(torch.int32))


def assert_within_bound(codec: Codec, values: Tensor) -> None:
    decoded = round_trip(codec, values)
    assert decoded.isfinite().all()
    assert ((decoded.double() - values.double()).abs() <= codec.bound(values).double()).all()


@every_codec
@settings(max_examples=40, deadline=None)
@given(
    numel=st.sampled_from([0, 1, 2, 3, 127, 128, 129, 256, 300, 4095, 4096, 4097, 9001]),
    sample=st.sampled_from(sorted(SAMPLES)),
    log2_scale=st.integers(-149, 127),
    seed=st.integers(0, 99),
)
@example(numel=300, sample="zeros", log2_scale=0, seed=0)
@example(numel=4097, sample="normal", log2_scale=-149, seed=0)
@example(numel=4097, sample="uniform", log2_scale=127, seed=0)
def test_error_is_within_the_stated_bound(spec: str, numel: int, sample: str, log2_scale: int, seed: int) -> None:
    values = SAMPLES[sample](numel, torch.Generator().manual_seed(seed)).double() * 2.0**log2_scale
    assert_within_bound(get_codec(spec), values.clamp(-FP32_MAX, FP32_MAX).float())


@every_codec
@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -3e38, FP32_MAX, 1e-38, 1e-45, -1e-42, 2.0**-126, 65520.0])
@pytest.mark.parametrize("numel", [1, 5, 130])
def test_odd_tensors_stay_finite_report_89(spec: str, value: float, numel: int) -> None:
    """Zeros, one element, constants, denormals, the largest: finite, and within the bound; a zero stays zero."""
    codec = get_codec(spec)
    assert_within_bound(codec, torch.full((numel,), value))
    one = torch.zeros(numel)
    one[-1] = value
    assert_within_bound(codec, one)
    assert (round_trip(codec, one)[:-1] == 0).all()


@every_codec
def test_empty_tensor_report_89(spec: str) -> None:
    codec = get_codec(spec)
    assert codec.nbytes(0) == 0 and round_trip(codec, torch.empty(0)).numel() == 0


@every_codec
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_non_finite_values_do_not_raise(spec: str, bad: float) -> None:
    round_trip(get_codec(spec), torch.tensor([1.0, bad, 2.0]))


@every_codec
@pytest.mark.parametrize("numel", [1, 300, 4096, 9001])
def test_every_byte_of_a_payload_is_written_and_values_are_left_alone(spec: str, numel: int) -> None:
    values = torch.randn(numel)
    before = values.clone()
    first, second = (encoded(get_codec(spec), values, fill=fill) for fill in (0, 255))
    assert torch.equal(first, second) and torch.equal(values, before)


@pytest.mark.parametrize(
    "spec, numel, nbytes",
    [
        ("fp32", 1001, 4004),
        ("bf16", 1001, 2002),
        ("fp16", 1001, 2002 + 4),
        ("int8", 1001, 1001 + 4 * 4),
        ("int4", 1001, 501 + 4 * 8),
        ("e3m0", 1001, 501 + 8),
        # A range of 8 bytes a page; 41 of 4096 values; two indices in three bytes.
        ("topk:0.01", 4096, 8 + 41 + 63),
        ("topk:0.01:4", 2 * 4096, 16 + 41 + 41 * 3),
        ("randk:0.01:3", 4096 + 100, 16 + math.ceil(42 / 8) * 3),
    ],
)
def test_payload_bytes(spec: str, numel: int, nbytes: int) -> None:
    assert get_codec(spec).nbytes(numel) == nbytes


@pytest.mark.parametrize("spec, share", [("e3m0", 0.127), ("topk:0.01", 0.008), ("int8", 0.26), ("int4", 0.14)])
def test_share_of_fp32_bytes(spec: str, share: float) -> None:
    assert get_codec(spec).nbytes(1 << 20) <= share * 4 * (1 << 20)


@every_codec
@settings(max_examples=15, deadline=None)
@given(numel=st.integers(1, 14000), cuts=st.lists(st.integers(0, 110), max_size=3), seed=st.integers(0, 99))
def test_pieces_decode_to_the_bits_of_the_whole(spec: str, numel: int, cuts: list[int], seed: int) -> None:
    codec = get_codec(spec)
    assert base.PAGE % codec.block == 0
    values = torch.randn(numel, generator=torch.Generator().manual_seed(seed))
    edges = sorted({0, numel, *(min(c * 128 // codec.block * codec.block, numel) for c in cuts)})
    pieces = [
        round_trip(codec, values[lo:hi].clone(), Key(KEY.seed, KEY.first + lo))
        for lo, hi in zip(edges, edges[1:], strict=False)
    ]
    assert_same_bits(torch.cat(pieces), round_trip(codec, values))


@every_codec
def test_payload_does_not_depend_on_the_slice(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a CPU and a GPU, which work in slices of their own, write and read the same payload."""
    values = torch.randn(5 * base.PAGE + 77)
    payloads, decoded = [], []
    for pages in (1, 2, 64):
        monkeypatch.setitem(base.SLICES, "cpu", pages * base.PAGE)
        payloads.append(encoded(get_codec(spec), values))
        decoded.append(round_trip(get_codec(spec), values))
    assert torch.equal(payloads[0], payloads[1]) and torch.equal(payloads[1], payloads[2])
    assert_same_bits(decoded[0], decoded[1])
    assert_same_bits(decoded[1], decoded[2])


@every_codec
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e-40, 1e36])
def test_cpu_and_gpu_write_the_same_bits(spec: str, scale: float) -> None:
    values = torch.randn(5 * base.PAGE + 77) * scale
    codec = get_codec(spec)
    assert torch.equal(encoded(codec, values), encoded(codec, values.cuda()).cpu())
    assert_same_bits(round_trip(codec, values), round_trip(codec, values.cuda()).cpu())


@every_codec
@pytest.mark.parametrize("numel", [1, 300, 4096, 9001])
def test_add_adds_what_decode_writes(spec: str, numel: int) -> None:
    codec, values, there = get_codec(spec), torch.randn(numel), torch.randn(numel)
    payload, out = encoded(codec, values), there.clone()
    codec.decode(payload, out, KEY, add=True)
    assert torch.equal(out, there + round_trip(codec, values))


@every_codec
def test_codecs_are_deterministic_across_objects_and_calls(spec: str) -> None:
    values, codec = torch.randn(9001), get_codec(spec)
    round_trip(codec, torch.randn(12345))
    assert torch.equal(encoded(codec, values), encoded(get_codec(spec), values))


@every_codec
def test_exact_says_whether_bits_come_back(spec: str) -> None:
    codec, values = get_codec(spec), torch.randn(1001)
    assert codec.exact == torch.equal(round_trip(codec, values), values)


@pytest.mark.parametrize(
    "spec, name, feedback",
    [
        ("fp32", "fp32", False),
        ("fp32-ef", "fp32", False),
        ("int8", "int8", False),
        ("int8+ef", "int8+ef", True),
        ("int8-ef", "int8", False),
        ("e3m0", "e3m0", True),
        ("e3m0+ef", "e3m0", True),
        ("e3m0-ef", "e3m0-ef", False),
        ("topk:0.01", "topk:0.01:8", True),
        ("topk:1e-2:8", "topk:0.01:8", True),
        ("topk:.5:2-ef", "topk:0.5:2-ef", False),
        ("randk:1", "randk:1.0:8", True),
    ],
)
def test_spec_has_one_canonical_name(spec: str, name: str, feedback: bool) -> None:
    codec = get_codec(spec)
    assert (codec.name, codec.feedback) == (name, feedback)
    assert get_codec(codec.name).name == name


@pytest.mark.parametrize(
    "spec, way_out",
    [
        ("int9", "'int8'"),
        ("E3M0", "'e3m0'"),
        ("top-k:0.1", "'topk:0.01'"),
        ("", "or another of fp32, bf16"),
        ("fp32+ef", "give 'fp32'"),
        ("int8:4", "give 'int8'"),
        ("e3m0:2-ef", "give 'e3m0-ef'"),
        ("topk", "'topk:0.01:8'"),
        ("topk:0.1:8:9", "'topk:0.01:8'"),
        ("topk:ten", "'ten' is not a number"),
        ("topk:nan", "'nan' is not a number"),
        ("topk:1.5", "give 'topk:1.0:8'"),
        ("topk:0", "give 'topk:0.000244140625:8'"),
        ("randk:0.1:1", "give 'randk:0.1:2'"),
        ("randk:0.1:9-ef", "give 'randk:0.1:8-ef'"),
        ("topk:0.1:3.6", "give 'topk:0.1:4'"),
    ],
)
def test_bad_spec_is_refused_with_the_nearest_valid_one(spec: str, way_out: str) -> None:
    with pytest.raises(BadInput) as error:
        get_codec(spec)
    assert repr(spec) in str(error.value) and way_out in str(error.value)
