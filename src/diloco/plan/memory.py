"""What a replica's chips must hold, and the nearest setting that fits.

Weights: bf16 copies, fp32 masters, gradients and the two moments of Adam, shared among the replica's chips; DiLoCo adds
the anchor and the outer momentum (arXiv:2501.18512: 5 copies of the parameters in place of 3). Activations: s b h
(34 L) bytes a layer with attention that keeps no scores, 2 with recomputation (arXiv:2205.05198, equations 1 and 6).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from diloco.plan.run import Island, Run
from diloco.plan.units import format_bytes

WEIGHT_BYTES, GRADIENT_BYTES, MASTER_BYTES, ADAM_BYTES = 2, 2, 4, 8
OUTER_BYTES = 8
"""Anchor and momentum in fp32."""

ACTIVATION_BYTES, ACTIVATION_UNSPLIT_BYTES, RECOMPUTED_BYTES = 34, 10, 2
"""A token, channel and layer: in all, of them those that tensor parallelism does not split, with recomputation."""

LOGIT_BYTES = 6
"""A token and word: fp32 logits and their bf16 gradient."""

RESERVE = 0.08
"""Of a chip's memory, for the allocator, messages and the runtime. Assumed."""


@dataclass(frozen=True)
class MemoryOptions:
    """How memory is spent."""

    micro_batch_tokens: float | None = None
    """Of one forward pass on one data shard; None for one sequence."""
    recompute: bool = True
    """Activations of a layer anew in the backward pass."""
    offload_outer: bool = False
    """Anchor and outer momentum in the hosts' memory."""


@dataclass(frozen=True)
class Memory:
    """Bytes on one chip of the fullest kind."""

    weights_bytes: float
    """Weights, masters and gradients."""
    optimizer_bytes: float
    outer_bytes: float
    activations_bytes: float
    gathered_bytes: float
    """Of two layers, gathered for their computation where weights are sharded."""
    chip_bytes: float
    """What a chip has, less the reserve."""
    offloaded_bytes: float = 0.0
    """In the hosts' memory, for each chip."""

    @property
    def total_bytes(self) -> float:
        return (
            self.weights_bytes + self.optimizer_bytes + self.outer_bytes + self.activations_bytes + self.gathered_bytes
        )

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.chip_bytes


@dataclass(frozen=True)
class Fit:
    """Whether a run fits, and what to change if not."""

    memory: Memory
    nearest: Run | None
    """The run itself where it fits, else the nearest that does; None where nothing tried does."""
    options: MemoryOptions
    """Of the nearest."""
    sentence: str


def memory(run: Run, options: MemoryOptions | None = None) -> Memory:
    """The parts, on the chip of the site where least is left."""
    options = options or MemoryOptions()
    site = min(run.cluster.sites, key=lambda site: site.chip.memory_bytes * site.chips)
    chips = site.chips // run.site_replicas
    shards = run.island.data_shards(chips)
    params = run.model.params / chips
    layer_params = run.model.params / run.model.layers / run.island.tensor
    outer = 0 if run.data_parallel else OUTER_BYTES * params
    return Memory(
        weights_bytes=(WEIGHT_BYTES + GRADIENT_BYTES + MASTER_BYTES) * params,
        optimizer_bytes=ADAM_BYTES * params,
        outer_bytes=0.0 if options.offload_outer else outer,
        activations_bytes=_activations_bytes(run, options),
        gathered_bytes=2 * WEIGHT_BYTES * layer_params if shards > 1 else 0.0,
        chip_bytes=(1 - RESERVE) * site.chip.memory_bytes,
        offloaded_bytes=outer if options.offload_outer else 0.0,
    )


def fit(run: Run, options: MemoryOptions | None = None) -> Fit:
    """Tries, in this order: recomputation, the anchor in the hosts' memory, tensor parallelism inside a server,
    pipeline stages over servers, fewer replicas.
    """
    options = options or MemoryOptions()
    here = memory(run, options)
    if here.fits:
        used = f"{format_bytes(here.total_bytes)} of a chip's {format_bytes(here.chip_bytes)}"
        return Fit(here, run, options, f"fits: {used}")
    over = (
        f"does not fit: {format_bytes(here.total_bytes)} a chip, of which {format_bytes(here.chip_bytes)} can be used"
    )
    for other, spent in _nearby(run, options):
        there = memory(other, spent)
        if there.fits:
            words = _changes(run, options, other, spent)
            return Fit(here, other, spent, f"{over}; it fits with {words} ({format_bytes(there.total_bytes)} a chip)")
    chips = _least_chips(run, here)
    wanted = f"give a replica {chips} chips or more" if chips else "give fewer tokens in a micro-batch"
    return Fit(here, None, options, f"{over}; no other split of these chips helps: {wanted}, or a smaller model")


def _activations_bytes(run: Run, options: MemoryOptions) -> float:
    """Of the micro-batches that a first pipeline stage has under way: as many as there are stages."""
    model, island = run.model, run.island
    tokens = options.micro_batch_tokens or model.seq_len
    whole = ACTIVATION_UNSPLIT_BYTES + (ACTIVATION_BYTES - ACTIVATION_UNSPLIT_BYTES) / island.tensor
    under_way = min(island.pipeline, island.micro_batches)
    layers = model.layers / island.pipeline
    kept = RECOMPUTED_BYTES * layers * under_way + whole if options.recompute else whole * layers * under_way
    return tokens * (model.width * kept + LOGIT_BYTES * model.vocab / island.tensor)


def _nearby(run: Run, options: MemoryOptions) -> Iterator[tuple[Run, MemoryOptions]]:
    """Other settings, those that change least first."""
    frugal = replace(options, recompute=True)
    yield run, frugal
    if not run.data_parallel:
        frugal = replace(frugal, offload_outer=True)
        yield run, frugal
    for replicas in _fewer_replicas(run):
        for island in (run.island, *_splits(run)):
            chips = [site.chips * len(run.cluster.sites) // replicas for site in run.cluster.sites]
            if all(count % (island.tensor * island.pipeline) == 0 for count in chips):
                yield replace(run, replicas=replicas, island=island), frugal


def _changes(run: Run, options: MemoryOptions, other: Run, spent: MemoryOptions) -> str:
    island = other.island
    changed = {
        "activations recomputed": spent.recompute != options.recompute,
        "the anchor and outer momentum in host memory": spent.offload_outer != options.offload_outer,
        f"{other.replicas} replicas": other.replicas != run.replicas,
        f"tensor {island.tensor} x pipeline {island.pipeline}": island != run.island,
    }
    return ", ".join(words for words, does in changed.items() if does)


def _least_chips(run: Run, here: Memory) -> int | None:
    """That a replica needs with everything shared among them; None where activations alone fill a chip."""
    chips = min(site.chips for site in run.cluster.sites) // run.site_replicas
    shared = chips * (here.total_bytes - here.activations_bytes - here.gathered_bytes)
    left = here.chip_bytes - here.activations_bytes - here.gathered_bytes
    return math.ceil(shared / left) if left > 0 else None


def _splits(run: Run) -> list[Island]:
    node_chips = min(site.node_chips for site in run.cluster.sites)
    tensors = [t for t in (1, 2, 4, 8) if t <= node_chips]
    wider = [replace(run.island, tensor=t) for t in tensors if t > run.island.tensor]
    deeper = [
        replace(run.island, tensor=tensors[-1], pipeline=p)
        for p in (2, 4, 8, 16)
        if p > run.island.pipeline and p <= run.model.layers
    ]
    return wider + deeper


def _fewer_replicas(run: Run) -> list[int]:
    """As they are, then fewer, down to one a site."""
    sites = len(run.cluster.sites)
    possible = [n for n in range(run.site_replicas, 0, -1) if all(site.chips % n == 0 for site in run.cluster.sites)]
    return [sites * n for n in possible]
