"""Which parts of a fragment each member owns, and how a pool lends its buffers.

pytest tests/outer/test_reduce.py
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diloco.outer.pool import Pool
from diloco.outer.reduce import PART_ELEMENTS, owned_parts

BLOCK = 128


@given(st.integers(1, 20 * PART_ELEMENTS), st.integers(3, 9), st.integers(1, 200_000))
def test_parts_cover_every_bucket_once_and_begin_at_blocks_report_5(numel: int, members: int, blocks: int) -> None:
    bucket = blocks * BLOCK
    for lo in range(0, numel, bucket)[:3]:
        hi = min(lo + bucket, numel)
        parts = sorted(p for owner in range(members) for p in owned_parts(numel, members, BLOCK, owner, lo, hi))
        assert [a for a, _ in parts] == [lo, *(b for _, b in parts[:-1])] and parts[-1][1] == hi
        assert all(a % BLOCK == 0 and a < b for a, b in parts)


@given(st.integers(1, 20 * PART_ELEMENTS), st.integers(3, 9), st.integers(1, 3))
def test_an_element_has_one_owner_whatever_the_bucket(numel: int, members: int, buckets: int) -> None:
    """So that the bucket's size changes neither payloads nor residuals."""
    size = -(-numel // (buckets * BLOCK)) * BLOCK
    for owner in range(members):
        joined: list[tuple[int, int]] = []
        for lo in range(0, numel, size):
            for a, b in owned_parts(numel, members, BLOCK, owner, lo, min(lo + size, numel)):
                if joined and joined[-1][1] == a:
                    a = joined.pop()[0]
                joined.append((a, b))
        assert joined == owned_parts(numel, members, BLOCK, owner, 0, numel)


@given(st.integers(50_000, 20 * PART_ELEMENTS), st.integers(3, 8))
def test_owners_of_a_fragment_share_its_work_evenly(numel: int, members: int) -> None:
    """All wait for the owner of most: it owns a block or so above the average for each of its parts."""
    owned = [owned_parts(numel, members, BLOCK, owner, 0, numel) for owner in range(members)]
    most = max(sum(b - a for a, b in parts) for parts in owned)
    assert most <= numel / members + BLOCK * max(len(parts) for parts in owned)
    assert all(b - a <= PART_ELEMENTS for parts in owned for a, b in parts)


def lend(pool: Pool, length: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return pool.take(length, dtype, torch.device("cpu"))


def test_a_pool_lends_the_same_memory_again_but_never_to_two() -> None:
    pool = Pool()
    first, second = lend(pool, 100), lend(pool, 100)
    assert first.data_ptr() != second.data_ptr()
    pool.give(first)
    third = lend(pool, 60)
    assert third.data_ptr() == first.data_ptr() and third.numel() == 60
    pool.give(third)
    assert lend(pool, 100).data_ptr() == first.data_ptr()


@pytest.mark.parametrize("length, dtype", [(101, torch.float32), (100, torch.float64)])
def test_a_pool_makes_what_it_has_not(length: int, dtype: torch.dtype) -> None:
    pool = Pool()
    held = lend(pool, 100)
    pool.give(held)
    other = lend(pool, length, dtype)
    assert other.dtype == dtype and other.numel() == length and other.data_ptr() != held.data_ptr()


def test_the_smallest_that_fits_is_lent() -> None:
    pool = Pool()
    small, large = lend(pool, 10), lend(pool, 1000)
    for buffer in (large, small):
        pool.give(buffer)
    assert lend(pool, 5).data_ptr() == small.data_ptr()
    assert lend(pool, 5).data_ptr() == large.data_ptr()
