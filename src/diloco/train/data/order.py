"""Which samples a replica sees at a step: a pure function of the seed and the position. numpy only, no state.

A *sample* is one training window; samples are numbered 0 .. n-1 over all sources, source after source.
A *position* is a place in the endless global order in which samples are drawn.

Shuffled shards. With S sequences in the global batch, step t uses positions [t*S, (t+1)*S), and replica m of M the m-th
M-th of them. Position p lies in epoch p // n and holds sample permute(p % n) under the key of that epoch: with any M,
and after a resume at any step, nothing is repeated or skipped, and each epoch has an order of its own. (S must stay the
same over a run.)

Overlap f. Let b = S / M, x = min(f*b, b // 2) and o_t = floor((t+1)*x) - floor(t*x), so that fractions of a sample add
up over the steps. Step t then uses only M*(b - o_t) fresh positions, laid in a ring; replica m takes b of them from
place m*(b - o_t) on, so its last o_t samples are the first o_t of replica m+1. No fresh position is skipped; which ones
a step uses now depends on M.

Contiguous shards. Replica m owns the m-th M-th of every source, made longer by the fraction f of itself into the next
one (in a ring), and walks through it in an endless order of its own, b positions a step, reshuffled each epoch.

Mixtures. Inside every block of 1000 positions each source has an exact number of places, in shuffled order; the j-th
place of source k in block i is position i*c_k + j of that source, which has its own epochs.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from diloco.errors import BadInput

BLOCK = 1000
"""Positions in a mixture block: weights are kept in steps of 1/1000."""

_ROUNDS = 3
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY_1, _MULTIPLY_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_1, _27, _30, _31 = np.uint64(1), np.uint64(27), np.uint64(30), np.uint64(31)


def mix64(x: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): a bijection of uint64 that scatters every bit."""
    x = (x ^ (x >> _30)) * _MULTIPLY_1
    x = (x ^ (x >> _27)) * _MULTIPLY_2
    return x ^ (x >> _31)


def stream_keys(seed: int, label: str, counter: np.ndarray) -> np.ndarray:
    """One uint64 key per entry of `counter` (an epoch or block number), different for each seed and label."""
    digest = hashlib.blake2b(f"{seed}/{label}".encode(), digest_size=8).digest()
    base = np.uint64(int.from_bytes(digest, "little"))
    return mix64(counter.astype(np.uint64) * _GOLDEN + base)


def permute(index: np.ndarray, n: int, keys: np.ndarray) -> np.ndarray:
    """Send each `index` in [0, n) to its place under a keyed bijection of [0, n). O(1) memory, elementwise in `index`
    and `keys`.

    A Feistel network on the rectangle a x b >= n, walked until the value falls inside (Black and Rogaway 2002, method
    3).
    """
    a = math.isqrt(n - 1) + 1
    b = -(-n // a)
    out = _feistel(index.astype(np.uint64), keys, np.uint64(a), np.uint64(b))
    while (outside := out >= n).any():
        out[outside] = _feistel(out[outside], keys[outside], np.uint64(a), np.uint64(b))
    return out.astype(np.int64)


def _feistel(x: np.ndarray, keys: np.ndarray, a: np.uint64, b: np.uint64) -> np.ndarray:
    left, right = x // b, x % b
    # Halved, so that the sums stay below 2^64: a sum that wrapped round would not be a bijection modulo a.
    for _ in range(_ROUNDS):
        keys = keys + _GOLDEN
        left = (left + (mix64(right ^ keys) >> _1)) % a
        keys = keys + _GOLDEN
        right = (right + (mix64(left ^ keys) >> _1)) % b
    return left * b + right


def apportion(total: int, weights: Sequence[float]) -> np.ndarray:
    """Whole numbers that add up to `total` and lie nearest to the weights' shares (largest remainder)."""
    shares = np.asarray(weights, dtype=np.float64) / sum(weights) * total
    counts = np.floor(shares).astype(np.int64)
    largest_first = np.argsort(counts - shares, kind="stable")
    counts[largest_first[: total - int(counts.sum())]] += 1
    return counts


def mixture(positions: np.ndarray, counts: np.ndarray, seed: int, label: str) -> tuple[np.ndarray, np.ndarray]:
    """The source of each position, and the position inside that source. `counts` are places per source in a block of
    1000."""
    if len(counts) == 1:
        return np.zeros_like(positions), positions
    block, place = np.divmod(positions, BLOCK)
    slot = permute(place, BLOCK, stream_keys(seed, label, block))
    ends = np.cumsum(counts)
    source = np.searchsorted(ends, slot, side="right")
    return source, block * counts[source] + slot - (ends - counts)[source]


@dataclass(frozen=True)
class Order:
    """The order of one run's samples; see the head of this file for the rules."""

    samples: tuple[int, ...]
    """Training samples of each source."""
    block_counts: tuple[int, ...]
    """Places of each source in a block of 1000 positions."""
    seed: int
    shards: str
    overlap: float

    def sample_ids(self, step: int, replica: int, replicas: int, sequences: int) -> np.ndarray:
        """Global sample ids (int64 [sequences / replicas]) that replica `replica` of `replicas` trains on at `step`.

        Raises `BadInput` if `sequences` (the global batch) cannot be shared out evenly or the data cannot fill it.
        """
        self._check(step, replica, replicas, sequences)
        if self.shards == "contiguous":
            positions = step * (sequences // replicas) + np.arange(sequences // replicas)
            return self._lookup(positions, replica, replicas)
        return self._lookup(shuffled_positions(step, replica, replicas, sequences, self.overlap), 0, 1)

    def _lookup(self, positions: np.ndarray, part: int, parts: int) -> np.ndarray:
        counts = np.asarray(self.block_counts)
        source, position = mixture(positions, counts, self.seed, f"mixture/{part}/{parts}")
        ids = np.empty_like(positions)
        first_id = 0
        for k, n in enumerate(self.samples):
            here = np.flatnonzero(source == k)
            start, length = _part(n, part, parts, self.overlap)
            epoch, index = np.divmod(position[here], length)
            keys = stream_keys(self.seed, f"source/{k}/{part}/{parts}", epoch)
            ids[here] = first_id + (start + permute(index, length, keys)) % n
            first_id += n
        return ids

    def _check(self, step: int, replica: int, replicas: int, sequences: int) -> None:
        if step < 0:
            raise BadInput(f"step is {step}, but steps count from 0")
        if replicas < 1 or not 0 <= replica < replicas:
            raise BadInput(f"replica {replica} of {replicas}: replicas is at least 1, replica from 0 to replicas - 1")
        if sequences < 1 or sequences % replicas:
            below = sequences // replicas * replicas
            near = f"{below} or {below + replicas}" if below > 0 else f"{replicas}"
            raise BadInput(
                f"{replicas} replicas cannot evenly share a global batch of {sequences} sequences: use {near}"
            )
        if sequences > sum(self.samples):
            raise BadInput(
                f"a global batch of {sequences} sequences is more than the {sum(self.samples)} training sequences "
                "of the data: use more text, a smaller batch or a shorter seq_len"
            )
        if self.shards == "contiguous" and replicas > min(self.samples):
            raise BadInput(
                f"contiguous shards for {replicas} replicas need as many training sequences in each source, but one "
                f"has {min(self.samples)}: use more text, fewer replicas or shuffled shards"
            )
        if self.shards == "shuffled" and self.overlap and 1 < replicas and sequences < 2 * replicas:
            raise BadInput(
                f"overlap {self.overlap} needs 2 or more sequences per replica, but {sequences} over {replicas} "
                f"replicas gives 1: use {2 * replicas} sequences or overlap 0"
            )


def shuffled_positions(step: int, replica: int, replicas: int, sequences: int, overlap: float) -> np.ndarray:
    """Positions (int64 [sequences / replicas]) in the global order that a replica uses at a step."""
    b = sequences // replicas
    shared_before = _shared(step, b, overlap) if replicas > 1 else 0
    shared = _shared(step + 1, b, overlap) - shared_before if replicas > 1 else 0
    start = replicas * (step * b - shared_before)
    fresh = b - shared
    return start + (replica * fresh + np.arange(b)) % (replicas * fresh)


def _shared(steps: int, b: int, overlap: float) -> int:
    """Samples a replica has shared with its right neighbour over `steps` steps: floor(steps * x), exact at any step."""
    numerator, denominator = _ratio(overlap)
    return steps * min(numerator * b, denominator * (b // 2)) // denominator


@functools.cache
def _ratio(overlap: float) -> tuple[int, int]:
    return Fraction(str(overlap)).as_integer_ratio()


def _part(n: int, part: int, parts: int, overlap: float) -> tuple[int, int]:
    """First sample and length of the part-th of `parts` stretches of [0, n), with its overlap into the next one."""
    start, end = n * part // parts, n * (part + 1) // parts
    numerator, denominator = _ratio(overlap)
    extra = (end - start) * numerator // denominator if parts > 1 else 0
    return start, end - start + extra
