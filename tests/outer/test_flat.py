"""The flat buffer: every element exactly once, whatever the bucket's size and the tensors' layout.

pytest tests/outer/test_flat.py
"""

from __future__ import annotations

import pytest
import torch

from diloco.errors import BadInput
from diloco.outer.flat import Flat, linear_view, shaped_like


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "a": torch.randn(6),
        "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "scalar": torch.randn(()),
        "empty": torch.randn(0, 3),
        "transposed": torch.randn(3, 8).T,
        "z": torch.randn(12),
    }


@pytest.mark.parametrize("bucket", [1, 6, 10, 12, 100, 120, 163, 164, 1000])
def test_buckets_cover_every_element_once_report_5(bucket: int) -> None:
    """Buckets below, at and above the largest tensor, and not dividing the total, give the same bits."""
    flat = Flat(tensors(), bucket)
    whole = flat.read(torch.float32, torch.device("cpu"))
    assert whole.numel() == sum(t.numel() for t in tensors().values()) == flat.numel
    anchor, out = (
        torch.randn(flat.numel, generator=torch.Generator().manual_seed(1)),
        torch.full((flat.numel,), float("nan")),
    )
    seen = torch.zeros(flat.numel)
    for lo, hi in flat.buckets():
        for start, stop, weights in flat.pieces(lo, hi):
            assert stop - start == weights.numel()
            seen[start:stop] += 1
        flat.drift(anchor, lo, hi, out[lo:hi])
    assert (seen == 1).all()
    assert torch.equal(out, anchor - whole)


def test_write_then_read_gives_the_buffer_back_in_place() -> None:
    mine = tensors()
    flat = Flat(mine, 7)
    pointers = {n: t.data_ptr() for n, t in mine.items()}
    buffer = torch.arange(flat.numel, dtype=torch.float32)
    for lo, hi in flat.buckets():
        flat.write(buffer, lo, hi)
    assert torch.equal(flat.read(torch.float32, torch.device("cpu")), buffer)
    assert pointers == {n: t.data_ptr() for n, t in mine.items()}
    for name, view in flat.named_views(buffer).items():
        assert view.shape == mine[name].shape and torch.equal(view, mine[name])


def test_views_share_memory_and_shape() -> None:
    for name, t in tensors().items():
        line = linear_view(t, name)
        assert line.numel() == t.numel() and shaped_like(line, t).shape == t.shape
        assert torch.equal(shaped_like(line, t), t)


def test_a_view_with_gaps_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match="'gappy'"):
        Flat({"gappy": torch.randn(4, 6)[:, ::2]}, 10)


def test_drift_is_measured_from_the_rounded_anchor() -> None:
    """A bf16 replica that has not moved has no outer gradient, although its fp32 anchor lies between two bf16
    numbers."""
    weights = torch.zeros(3, dtype=torch.bfloat16)
    flat, anchor, out = Flat({"w": weights}, 3), torch.tensor([1.0001, -2.0002, 3e-9]), torch.empty(3)
    flat.write(anchor, 0, 3)
    flat.drift(anchor, 0, 3, out)
    assert out.tolist() == [0.0, 0.0, 0.0]


def test_tensors_begin_at_multiples_and_gaps_hold_zeros() -> None:
    flat = Flat({"a": torch.ones(5), "b": torch.ones(2, 4), "c": torch.ones(3)}, 16, align=8)
    assert [(p.lo, p.hi) for p in flat.places] == [(0, 5), (8, 16), (16, 19)] and flat.numel == 19
    anchor = flat.read(torch.float32, torch.device("cpu"))
    assert anchor.tolist() == [1] * 5 + [0] * 3 + [1] * 11
    for lo, hi in ((0, 19), (3, 7), (5, 8), (6, 17)):
        part = torch.full((hi - lo,), float("nan"))
        flat.drift(anchor, lo, hi, part)
        assert part.tolist() == [0] * (hi - lo)
