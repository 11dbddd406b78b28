"""A fragment: a set of parameters that syncs together, with its anchor, outer state and what one replica keeps for it.

The anchor is kept in fp32 whatever the model's dtype (fp64 for an fp64 model), flat and contiguous, and may live on
another device.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from diloco.outer.flat import Flat
from diloco.outer.island import Island, Shared
from diloco.outer.optimizers import OuterOptimizer, Torch
from diloco.outer.step import OuterState, TorchState
from diloco.shards import like, local

# Bounds what a sync holds beyond anchor and momentum: three buckets of 8 MiB in flight.
BUCKET_BYTES = 8 << 20

# Buckets and slices begin at multiples of 64 elements, so that neither a vector register nor a word of the checksum
# straddles two of them, and every element sees the same arithmetic whatever the bucket's size.
ALIGNMENT = 64

CHECKSUM_BLOCK_ELEMENTS = 1 << 20

# 512 KiB of fp32: the dozen passes over a slice then run in a core's own cache instead of main memory.
SLICE_ELEMENTS = 1 << 17


class Fragment:
    """`tensors`: the fragment's trained parameters by name, of which it holds this process's parts; those in
    `embeddings` are laid out first. There may be none, on a pipeline stage that has no part of the fragment.

    `averaged`, `counters`: buffers that travel with it. `device`: where anchor and outer state live (None: with the
    model). `block`: elements that a codec codes together, so that no bucket cuts a block. `shared`: what
    several ranks of the replica hold of it, the same list on all. `align`: elements that tensors begin at multiples of.
    """

    def __init__(
        self,
        tensors: dict[str, Tensor],
        outer: OuterOptimizer | Torch,
        device: torch.device | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        block: int = 1,
        embeddings: Collection[str] = (),
        averaged: dict[str, Tensor] | None = None,
        counters: dict[str, Tensor] | None = None,
        index: int = 0,
        shared: Sequence[Shared] = (),
        align: int = 1,
    ) -> None:
        self.apart = [s for s in shared if s.apart]
        borrowed = {s.name for s in shared if not s.owner}
        apart = {s.name for s in shared if s.apart}
        order = sorted(tensors, key=lambda name: (name not in embeddings, name in apart, name))
        tensors = {name: tensors[name] for name in order}
        dtype = functools.reduce(torch.promote_types, (t.dtype for t in tensors.values()), torch.float32)
        device = device or next((local(t).device for t in tensors.values()), torch.device("cpu"))
        unit = max(ALIGNMENT, block)
        self.flat = Flat(tensors, max(bucket_bytes // dtype.itemsize // unit, 1) * unit, align)
        self.index, self.outer = index, outer
        self.averaged, self.counters = averaged or {}, counters or {}
        ranges = self._ranges()
        self.body = max((hi for name, (_, hi) in ranges.items() if name in embeddings), default=0)
        """Where the embeddings end and the rest begins."""
        self.owned_ranges = _joined(range for name, range in ranges.items() if name not in borrowed)
        """What this rank counts of the replica: all of the fragment, where the replica is one device."""
        self.anchor = self.flat.read(dtype, device)
        self.scratch = torch.empty(2, min(SLICE_ELEMENTS, self.flat.numel), dtype=dtype, device=device)
        self.synced_buffers = [b.detach().clone() for b in self.averaged.values()]
        """The float buffers as the last sync left them."""
        self.start: Tensor | None = None
        """What the replica's window started from, where that is not the anchor (outer gradients applied a round
        late)."""
        self.taken: Tensor | None = None
        """The outer gradient as it was when it was last sent."""
        self.left: Tensor | None = None
        """The weights as they were then, where the replica is to be rebased."""
        self.residual: Tensor | None = None
        """Error feedback: what this replica has not got across yet."""
        self.outer_steps = self.sent_step = self.sent_tokens = 0

    @functools.cached_property
    def state(self) -> OuterState | TorchState:
        """Made when first asked for: after the anchor has been agreed upon."""
        if isinstance(self.outer, Torch):
            return TorchState(self.outer, self.anchor, self.flat)
        return OuterState(self.outer, self.anchor)

    def _ranges(self) -> dict[str, tuple[int, int]]:
        """Where each tensor lies, with the gap behind it, which holds zeros."""
        places = self.flat.places
        ends = [*(p.lo for p in places[1:]), self.flat.numel]
        return {p.name: (p.lo, end) for p, end in zip(places, ends, strict=False)}

    def named_anchor(self) -> dict[str, Tensor]:
        """Views of the anchor by parameter name, each with its parameter's shape and sharded like it."""
        return self.sharded(self.anchor)

    def sharded(self, buffer: Tensor) -> dict[str, Tensor]:
        """Views of a flat buffer of the fragment's length, each shaped and sharded like its parameter."""
        return {name: like(view, self.flat.tensors[name]) for name, view in self.flat.named_views(buffer).items()}

    def owned(self, vector: Tensor, lo: int, hi: int) -> Iterator[Tensor]:
        """The parts of `vector`, which holds [lo, hi), that this rank counts."""
        for first, last in self.owned_ranges:
            if max(first, lo) < min(last, hi):
                yield vector[max(first, lo) - lo : min(last, hi) - lo]

    def drift(self, lo: int, hi: int, out: Tensor) -> None:
        """out[: hi - lo] = the replica's outer gradient: where its window started, minus where it is."""
        self.flat.drift(self.anchor if self.start is None else self.start, lo, hi, out)

    def take(self, weights_too: bool = False) -> Tensor:
        """Keeps the outer gradient as it is now, since the replica will go on while it travels."""
        if weights_too:
            self.left = self.flat.read(self.anchor.dtype, self.anchor.device)
        if self.taken is None:
            self.taken = torch.empty_like(self.anchor)
        self.drift(0, self.flat.numel, self.taken)
        return self.taken

    def mix(self, mixing: float) -> None:
        """Restarts the replica at mixing * local + (1 - mixing) * anchor (Streaming DiLoCo, arXiv 2501.18512)."""
        if mixing == 1:
            return
        for lo, hi in slices(0, self.flat.numel if mixing else 0):
            for start, stop, weights in self.flat.pieces(lo, hi):
                anchor = self.anchor[start:stop].to(weights.device)
                weights.copy_(weights.to(anchor.dtype) * mixing + anchor * (1 - mixing))
        if mixing == 0:
            self.restart()

    def rebase(self) -> None:
        """Carries the inner steps taken since the fragment was sent over to the new anchor."""
        if self.left is None:  # sent by a replica of a run that had another number of them
            self.restart()
            return
        for lo, hi in slices(0, self.flat.numel):
            for start, stop, weights in self.flat.pieces(lo, hi):
                moved = weights.to(self.anchor.device, self.anchor.dtype) - self.left[start:stop]
                weights.copy_(self.anchor[start:stop] + moved)
        self.left = None

    def restart(self) -> None:
        """Restarts the replica from the anchor, or from its `start`; there are no inner steps to carry over then."""
        self.left = None
        self.flat.write(self.anchor if self.start is None else self.start, 0, self.flat.numel)

    def reconcile(self, island: Island) -> None:
        """Anchor and outer state of what several ranks of the replica hold become the owner's on all of them.

        Elementwise arithmetic gives all the same bits. A codec that rounds together what lies together does not: its
        coordinates, and who rounds a sum the second time, hang upon what else a rank holds.
        """
        if not self.apart:
            return
        places = {p.name: (p.lo, p.hi) for p in self.flat.places}
        state = self.state.state_dict()
        # The outer state of torch's own optimizers has no flat form; what it makes of equal anchors differs little.
        flats = [self.anchor, *(state.values() if isinstance(self.state, OuterState) else ())]
        for flat in flats:
            travelling = flat.new_zeros(sum(s.numel for s in self.apart))
            parts = list(zip(self.apart, travelling.split([s.numel for s in self.apart]), strict=True))
            for shared, part in parts:
                if shared.owner:
                    part.copy_(flat[slice(*places[shared.name])])
            island.sum(travelling)
            for shared, part in parts:
                if shared.name is not None:
                    flat[slice(*places[shared.name])].copy_(part)

    def checksum(self) -> int:
        """A 64-bit sum over the anchor's bits: equal on two replicas when their anchors are bit-identical.

        Integer addition wraps and does not depend on order, so every device and thread count agrees; each block is
        weighted by its place, so that blocks cannot trade places unnoticed. It guards against accidents, not against
        tampering.
        """
        whole = self.flat.numel // CHECKSUM_BLOCK_ELEMENTS * CHECKSUM_BLOCK_ELEMENTS
        words = self.anchor[:whole].view(torch.int64)
        words_per_block = CHECKSUM_BLOCK_ELEMENTS * self.anchor.element_size() // 8
        sums = words.view(-1, words_per_block).sum(1).tolist() + [int(bit_sum(self.anchor[whole:]))]
        return weighted(sums)


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges in order, those that touch made one."""
    found: list[tuple[int, int]] = []
    for lo, hi in ranges:
        if found and found[-1][1] == lo:
            lo = found.pop()[0]
        found.append((lo, hi))
    return found


def weighted(sums: list[int]) -> int:
    """One signed 64-bit number from several, each weighted by its place."""
    total = sum((2 * index + 1) * value for index, value in enumerate(sums))
    return (total + (1 << 63)) % (1 << 64) - (1 << 63)


def slices(lo: int, hi: int) -> Iterator[tuple[int, int]]:
    """[lo, hi) cut at the multiples of SLICE_ELEMENTS."""
    while lo < hi:
        stop = min((lo // SLICE_ELEMENTS + 1) * SLICE_ELEMENTS, hi)
        yield lo, stop
        lo = stop


def bit_sum(values: Tensor) -> Tensor:
    """Sum of the bytes of a flat tensor read as 64-bit integers, wrapping: 0-dim int64 on the tensor's device."""
    raw = values.view(torch.uint8)
    whole = raw.numel() // 8 * 8
    if whole == raw.numel() and raw.storage_offset() % 8 == 0:
        return raw.view(torch.int64).sum()
    padded = torch.zeros(whole + 8, dtype=torch.uint8, device=raw.device)
    padded[: raw.numel()] = raw
    return padded.view(torch.int64).sum()
