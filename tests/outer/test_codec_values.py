"""What each codec sends, against references written here: plain Python, torch.topk, counts over many rounds.

pytest tests/outer/test_codec_values.py
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from diloco.outer.codec import Codec, Key, get_codec
from diloco.outer.codecs.bits import pack_bits, packed_bytes, unpack_bits
from diloco.outer.codecs.coordinates import random_coordinates

CPU = torch.device("cpu")


def encoded(codec: Codec, values: Tensor, key: Key) -> Tensor:
    out = torch.empty(codec.nbytes(values.numel()), dtype=torch.uint8)
    codec.encode(values, out, key)
    return out


def round_trip(codec: Codec, values: Tensor, key: Key | None = None) -> Tensor:
    key, out = key or Key(0, 0), torch.empty_like(values)
    codec.decode(encoded(codec, values, key), out, key)
    return out


def sample(numel: int, seed: int = 0) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def e3m0_of(block: list[float]) -> tuple[int, list[int], list[float]]:
    """(exponent of the top, codes, values) of one block, by trying all eight magnitudes."""
    mantissa, exponent = math.frexp(max(abs(x) for x in block))
    top = exponent if mantissa >= 0.75 else exponent - 1
    magnitudes = [0.0] + [2.0 ** (top - 7 + c) for c in range(1, 8)]
    codes, values = [], []
    for x in block:
        code = min(range(8), key=lambda c: (abs(abs(x) - magnitudes[c]), -c))
        codes.append(code + 8 * (x < 0))
        values.append(math.copysign(magnitudes[code], x))
    return top, codes, values


@pytest.mark.parametrize("scale", [1.0, 3e-5, 1e20])
def test_e3m0_bits_and_values_are_those_of_a_plain_search(scale: float) -> None:
    values = sample(128 * 3 + 41) * scale
    values[5:8] = torch.tensor([1.5, -0.75, 2.0**-7]) * values.abs().max()
    want_values: list[float] = []
    tops, codes = [], []
    for at in range(0, len(values), 128):
        top, block_codes, block_values = e3m0_of(values[at : at + 128].tolist())
        tops.append(top + 127)
        codes += block_codes
        want_values += block_values
    codec = get_codec("e3m0")
    payload = encoded(codec, values, Key(0, 0)).tolist()
    assert payload[:4] == tops
    assert torch.equal(round_trip(codec, values), torch.tensor(want_values))
    # Less than a page: the first half of the codes in the low nibbles, the second in the high ones.
    half = math.ceil(len(codes) / 2)
    nibbles = [b & 15 for b in payload[4:]] + [b >> 4 for b in payload[4:]]
    assert nibbles[: len(codes)] == codes and len(payload) == 4 + half


def test_e3m0_rounds_ties_up_and_near_zero_by_value() -> None:
    values = torch.tensor([64.0, 1.5, 1.4999, 0.5, 0.4999, -3.0, 0.0])
    assert round_trip(get_codec("e3m0"), values).tolist() == [64.0, 2.0, 1.0, 1.0, 0.0, -4.0, 0.0]


@pytest.mark.parametrize("spec, levels, block", [("int8", 127, 256), ("int4", 7, 128)])
def test_ints_are_the_nearest_multiples_of_the_step(spec: str, levels: int, block: int) -> None:
    values = sample(1000)
    got = round_trip(get_codec(spec), values).double()
    for at in range(0, 1000, block):
        x = values[at : at + block].double()
        step = x.abs().max() / levels
        assert torch.allclose(got[at : at + block], (x / step).round() * step, rtol=1e-6, atol=0)


@pytest.mark.parametrize("spec", ["int8", "int4"])
@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-39])
def test_step_of_a_block_near_zero_has_an_inverse_report_89(spec: str, value: float) -> None:
    payload = encoded(get_codec(spec), torch.full((64,), value), Key(0, 0))
    step = payload[:4].clone().view(torch.float32)
    assert step.reciprocal().isfinite() and not payload[4:].any()


@pytest.mark.parametrize("bits", range(2, 9))
def test_sparse_values_do_not_round_beyond_fp32(bits: int) -> None:
    values = torch.tensor([torch.finfo(torch.float32).max, 0.0, -1e38])
    assert round_trip(get_codec(f"topk:1:{bits}"), values).isfinite().all()


def test_fp16_rounds_as_torch_does_and_keeps_what_fp16_cannot() -> None:
    values = sample(1000)
    assert torch.equal(round_trip(get_codec("fp16"), values), values.half().float())
    for scale in (2.0**-60, 2.0**60):
        assert torch.equal(round_trip(get_codec("fp16"), values * scale), values.half().float() * scale)


@pytest.mark.parametrize(
    "density, kept, kept_last", [(0.01, 41, 1), (0.07, 287, 7), (0.25, 1024, 25), (1.0, 4096, 100)]
)
def test_topk_keeps_what_torch_topk_keeps(density: float, kept: int, kept_last: int) -> None:
    values = sample(2 * 4096 + 100)
    got = round_trip(get_codec(f"topk:{density}"), values)
    for lo, hi, count in ((0, 4096, kept), (4096, 8192, kept), (8192, 8292, kept_last)):
        best = values[lo:hi].abs().topk(count).indices
        sent = got[lo:hi].nonzero().flatten()
        assert sorted(best.tolist()) == sent.tolist()
        size = values[lo:hi][best].abs()
        quantum = (size.max() - size.min()) / 127 / 2 + size.max() * 2.0**-22
        assert ((got[lo:hi] - values[lo:hi])[best].abs() <= quantum).all()


def test_topk_of_equals_takes_the_first() -> None:
    values = torch.full((4096,), -2.0)
    got = round_trip(get_codec("topk:0.01:2"), values)
    assert got[:41].tolist() == [-2.0] * 41 and not got[41:].any()


def test_topk_two_bits_send_the_smallest_and_the_largest_exactly() -> None:
    values = torch.zeros(100)
    values[[3, 50, 70]] = torch.tensor([1.0, -4.0, 1.5])
    got = round_trip(get_codec("topk:0.03:2"), values)
    assert got[[3, 50, 70]].tolist() == [1.0, -4.0, 1.0] and got.count_nonzero() == 3


@pytest.mark.parametrize("length, kept", [(4096, 41), (4096, 4096), (100, 7), (1, 1), (4093, 2000)])
def test_random_coordinates_are_distinct_and_follow_from_seed_and_page(length: int, kept: int) -> None:
    drawn = random_coordinates(5, 10, 3, length, kept, CPU)
    assert drawn.shape == (3, kept) and 0 <= drawn.min() and drawn.max() < length
    assert all(len(set(row.tolist())) == kept for row in drawn)
    assert torch.equal(drawn[1:], random_coordinates(5, 11, 2, length, kept, CPU))
    if 1 < kept < length:
        assert not torch.equal(drawn, random_coordinates(6, 10, 3, length, kept, CPU))


@pytest.mark.parametrize("length, kept", [(4096, 410), (100, 7), (37, 1)])
def test_random_coordinates_come_up_equally_often(length: int, kept: int) -> None:
    pages = 4000
    counts = random_coordinates(1, 0, pages, length, kept, CPU).flatten().bincount(minlength=length).double()
    share = kept / length
    assert ((counts - pages * share).abs() < 6 * math.sqrt(pages * share * (1 - share))).all()


def test_randk_replicas_choose_alike_and_rounds_reach_every_coordinate() -> None:
    ones, twos, seen = torch.full((4196,), 1.0), torch.full((4196,), -2.0), torch.zeros(4196, dtype=torch.bool)
    for seed in range(80):
        sent = round_trip(get_codec("randk:0.2"), ones, Key(seed, 4096)) != 0
        assert torch.equal(sent, round_trip(get_codec("randk:0.2"), twos, Key(seed, 4096)) != 0)
        assert sent.sum() == 820 + 20
        seen |= sent
    assert seen.all()


def test_randk_sum_is_sent_whole_under_the_same_key() -> None:
    codec, key = get_codec("randk:0.1"), Key(3, 0)
    total = round_trip(codec, sample(5000, 1), key) + round_trip(codec, sample(5000, 2), key)
    assert torch.equal(round_trip(codec, total, key) != 0, total != 0) and not codec.gathers
    assert get_codec("randk:0.1-ef").gathers


def test_randk_without_feedback_is_unbiased() -> None:
    codec, values, rounds = get_codec("randk:0.25-ef"), sample(1000), 800
    total = torch.zeros_like(values)
    for seed in range(rounds):
        total += round_trip(codec, values, Key(seed, 0))
    standard_error = values.abs() * math.sqrt(0.75 / 0.25 / rounds)
    quantum = values.abs().max() / 254
    assert ((total / rounds - values).abs() <= 6 * standard_error + quantum).all()
    assert (total / rounds - values).mean().abs() < 6 * float(standard_error.square().mean().sqrt()) / math.sqrt(1000)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8, 12])
@pytest.mark.parametrize("numel", [0, 1, 7, 8, 9, 100])
def test_packed_bits_are_a_plain_little_endian_number(bits: int, numel: int) -> None:
    codes = torch.randint(0, 1 << bits, (numel,), generator=torch.Generator().manual_seed(bits))
    out = torch.empty(packed_bytes(numel, bits), dtype=torch.uint8)
    pack_bits(codes, bits, out)
    number = sum(code << (bits * at) for at, code in enumerate(codes.tolist()))
    assert int.from_bytes(bytes(out.tolist()), "little") == number
    assert torch.equal(unpack_bits(out, bits, numel), codes)
