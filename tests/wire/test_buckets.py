"""Buckets of any size give the same bits: weights, residuals and checksums.

pytest tests/wire/test_buckets.py
"""

from __future__ import annotations

from functools import cache

import pytest
from support.drift import HALVES, LARGEST_BYTES, Drifters, digest, residual_digest

import diloco

pytestmark = pytest.mark.slow

FED_BACK = ("bf16", "fp16", "int8", "int4", "e3m0", "topk:0.05", "randk:0.05")
CODECS = ("fp32", "randk:0.05-ef", *(name + "+ef" for name in FED_BACK))
ONE_BUCKET = 1 << 30


def train(replicas: int, bucket_bytes: int, **options: object) -> list[str]:
    fleet = Drifters(replicas, bucket_bytes=bucket_bytes, **{"sync_every": 2, **options})
    fleet.run(5)
    fleet.finish()
    sync = fleet.syncs[-1]
    assert not fleet.apart()
    return [digest(fleet.models[0]), residual_digest(sync), *(r.checksum for r in sync.rounds)]


@cache
def unbucketed(codec: str, replicas: int, halves: bool) -> list[str]:
    return train(replicas, ONE_BUCKET, codec=codec, fragments=HALVES if halves else None)


@pytest.mark.parametrize("bucket_bytes", [17_000, LARGEST_BYTES, LARGEST_BYTES + 4 * 211])
@pytest.mark.parametrize("halves", [False, True], ids=["whole", "fragments"])
@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("codec", CODECS)
def test_bucketed_equals_unbucketed_report_5(codec: str, replicas: int, halves: bool, bucket_bytes: int) -> None:
    """Below, at and above the largest tensor, with error feedback on."""
    bucketed = train(replicas, bucket_bytes, codec=codec, fragments=HALVES if halves else None)
    assert bucketed == unbucketed(codec, replicas, halves)


@pytest.mark.parametrize("codec", ["fp32", "e3m0"])
def test_the_smallest_buckets_there_can_be_report_5(codec: str) -> None:
    """Hundreds of buckets: one block of the codec each."""
    assert train(3, 1, codec=codec) == train(3, ONE_BUCKET, codec=codec)


@pytest.mark.parametrize(
    "options",
    [
        {"merge": "trimmed:0.25"},
        {"merge": "clipped:0.5"},
        {"merge": "rda"},
        {"merge": "trimmed:0.25", "codec": "int8+ef"},
        {"outer": diloco.Nesterov(0.7, 0.9, clip=0.1)},
        {"outer": diloco.Adam()},
        {"overlap": 1, "mixing": 0.5, "fragments": HALVES, "codec": "e3m0"},
        {"overlap": "eager", "codec": "int4"},
    ],
    ids=str,
)
def test_bucketed_equals_unbucketed_whatever_the_merge_and_the_outer_step(options: dict) -> None:
    assert train(4, 20_000, **options) == train(4, ONE_BUCKET, **options)
