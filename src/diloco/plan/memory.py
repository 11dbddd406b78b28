"""What a replica's chips must hold, and the nearest setting that fits.

Weights: bf16 copies, fp32 masters, gradients and the two moments of Adam, shared among the replica's chips; DiLoCo adds
the anchor and the outer momentum (arXiv:2501.18512: 5 copies of the parameters in place of 3). Activations: s b h
(34 L) bytes a layer with attention that keeps no scores, 2 with recomputation (arXiv:2205.05198, equations 1 and 6).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from diloco.plan.hardware import Site
from diloco.plan.run import LEAST_MICRO_TOKENS, Run
from diloco.units import format_bytes, format_things

WEIGHT_BYTES, GRADIENT_BYTES, MASTER_BYTES, ADAM_BYTES = 2, 2, 4, 8
OUTER_BYTES = 8
"""Anchor and momentum in fp32."""

ACTIVATION_BYTES, ACTIVATION_UNSPLIT_BYTES, RECOMPUTED_BYTES = 34, 10, 2
"""A token, channel and layer: in all, of them those that tensor parallelism does not split, with recomputation."""

LOGIT_BYTES = 6
"""A token and word: fp32 logits and their bf16 gradient."""

SHARED_SEQUENCES = (2, 4, 8, 16)
"""Chips over which a sequence is split, where one is too long for a chip's activations."""

TENSOR_SIZES, PIPELINE_SIZES = (1, 2, 4, 8), (1, 2, 4, 8, 16, 32)
ALL_SPLITS = TENSOR_SIZES[-1] * PIPELINE_SIZES[-1]

MOST_CHIPS = 10**7
"""Of a replica, up to which the least number that holds a model is looked for."""

RESERVE = 0.08
"""Of a chip's memory, for the allocator, messages and the runtime. Assumed."""


@dataclass(frozen=True)
class MemoryOptions:
    """How memory is spent."""

    micro_batch_tokens: float | None = None
    """Of one forward pass on one data shard; None for a sequence, or what a step has for a shard if that is less."""
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
    site = min(run.cluster.kinds, key=lambda site: site.chip.memory_bytes * site.chips)
    chips = replica_chips(run, site)
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
    pipeline stages over servers, fewer replicas, sequences split over chips.
    """
    options = options or MemoryOptions()
    here = memory(run, options)
    if here.fits:
        return fit_by(run, options)
    over = (
        f"does not fit: {_split_words(run)}{format_bytes(here.total_bytes)} a chip, of which "
        f"{format_bytes(here.chip_bytes)} can be used"
    )
    for other, spent in _nearby(run, options):
        there = memory(other, spent)
        if there.fits:
            words = _changes(run, options, other, spent)
            return Fit(here, other, spent, f"{over}; it fits with {words} ({format_bytes(there.total_bytes)} a chip)")
    chips = least_chips(run, options)
    if chips is not None:
        wanted = f"give a replica {format_things(chips, 'chip')} or more"
    elif options.micro_batch_tokens is not None:
        wanted = "give fewer tokens in a micro-batch"
    else:
        wanted = f"nor do {MOST_CHIPS:,} chips a replica, give a shorter sequence"
    return Fit(here, None, options, f"{over}; no other split of these chips helps: {wanted}, or a smaller model")


def fit_by(run: Run, way: MemoryOptions) -> Fit:
    """Of a run that fits if its memory is spent so."""
    there, words = memory(run, way), _changes(run, MemoryOptions(), run, way)
    used = f"{format_bytes(there.total_bytes)} of a chip's {format_bytes(there.chip_bytes)}"
    return Fit(there, run, way, f"fits{f' with {words}' if words else ''}: {used}")


def replica_chips(run: Run, site: Site) -> int:
    """Of one replica at a site."""
    return site.chips // run.site_replicas


def spending(run: Run, options: MemoryOptions | None = None) -> list[MemoryOptions]:
    """Ways to spend memory for the same run, the plainest first."""
    options = options or MemoryOptions()
    frugal = replace(options, recompute=True)
    found = [options, frugal]
    if not run.data_parallel:
        frugal = replace(frugal, offload_outer=True)
        found.append(frugal)
    if options.micro_batch_tokens is None:
        parts = [run.model.seq_len / count for count in SHARED_SEQUENCES]
        found += [replace(frugal, micro_batch_tokens=part) for part in parts if part >= LEAST_MICRO_TOKENS]
    return found


def least_chips(run: Run, options: MemoryOptions | None = None) -> int | None:
    """The fewest chips of a replica, in whole servers, that hold the run; None where even `MOST_CHIPS` do not.

    Every split divides the multiples of `ALL_SPLITS`, and of those more chips hold more: the least of them by halving,
    then number by number through those just below.
    """
    site = min(run.cluster.kinds, key=lambda site: site.chip.memory_bytes)
    unit = math.lcm(ALL_SPLITS, site.chip.node_chips)
    ways = spending(run, options)[1:]

    def holds(chips: int) -> bool:
        wider = _with_chips(run, site, chips)
        return wider is not None and any(memory(split, way).fits for split in splits(wider) for way in ways)

    low, high = 0, MOST_CHIPS // unit
    if not holds(high * unit):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle * unit) else (middle, high)
    return next(chips for chips in range(low * unit + 1, high * unit + 1) if holds(chips))


def splits(run: Run) -> list[Run]:
    """The run with its replicas' chips split otherwise, tensor parallelism inside a server; the run itself first."""
    chips = [replica_chips(run, site) for site in run.cluster.kinds]
    node_chips = min(site.node_chips for site in run.cluster.kinds)
    islands = [run.island] + [
        replace(run.island, tensor=tensor, pipeline=pipeline)
        for pipeline in PIPELINE_SIZES
        for tensor in TENSOR_SIZES
        if pipeline <= run.model.layers and tensor <= min(node_chips, run.model.heads)
    ]
    return [
        replace(run, island=island)
        for island in dict.fromkeys(islands)
        if all(count % (island.tensor * island.pipeline) == 0 for count in chips)
    ]


def fewer_replicas(run: Run) -> list[int]:
    """As they are, then fewer, down to one a site."""
    sites = len(run.cluster.sites)
    possible = [n for n in range(run.site_replicas, 0, -1) if all(site.chips % n == 0 for site in run.cluster.kinds)]
    return [sites * n for n in possible]


def _with_chips(run: Run, site: Site, chips: int) -> Run | None:
    """The run on sites whose replicas have so many chips of the smallest kind; None where they fill no servers."""
    all_chips = chips * run.site_replicas
    node_chips = min(site.chip.node_chips, all_chips)
    if all_chips % node_chips:
        return None
    grown = replace(site, nodes=all_chips // node_chips, node_chips=node_chips)
    return replace(_unsplit(run), cluster=replace(run.cluster, sites=(grown,) * len(run.cluster.sites)))


def _unsplit(run: Run) -> Run:
    """The run before its replicas' chips are split."""
    return replace(run, island=replace(run.island, tensor=1, pipeline=1))


def _activations_bytes(run: Run, options: MemoryOptions) -> float:
    """Of the micro-batches that a first pipeline stage has under way: as many as there are stages."""
    model, island = run.model, run.island
    given = options.micro_batch_tokens
    tokens = min(model.seq_len, run.shard_tokens / run.micro_batches) if given is None else given
    whole = ACTIVATION_UNSPLIT_BYTES + (ACTIVATION_BYTES - ACTIVATION_UNSPLIT_BYTES) / island.tensor
    under_way = min(island.pipeline, run.micro_batches)
    layers = model.layers / island.pipeline
    kept = RECOMPUTED_BYTES * layers * under_way + whole if options.recompute else whole * layers * under_way
    return tokens * (model.width * kept + LOGIT_BYTES * model.vocab / island.tensor)


def _nearby(run: Run, options: MemoryOptions) -> Iterator[tuple[Run, MemoryOptions]]:
    """Other settings, those that change least first."""
    ways = spending(run, options)[1:]
    whole = [way for way in ways if way.micro_batch_tokens == options.micro_batch_tokens]
    for way in whole:
        yield run, way
    for replicas in fewer_replicas(run):
        for other in splits(replace(_unsplit(run), replicas=replicas)):
            yield other, whole[-1]
    for way in ways[len(whole) :]:
        for other in splits(run):
            yield other, way


def _changes(run: Run, options: MemoryOptions, other: Run, spent: MemoryOptions) -> str:
    island, part = other.island, spent.micro_batch_tokens
    changed = {
        "activations recomputed": spent.recompute != options.recompute,
        "the anchor and outer momentum in host memory": spent.offload_outer != options.offload_outer,
        f"{other.replicas} replicas": other.replicas != run.replicas,
        f"tensor {island.tensor} x pipeline {island.pipeline}": island != run.island,
        f"sequences split in parts of {part or 0:g} tokens": part != options.micro_batch_tokens,
    }
    return ", ".join(words for words, does in changed.items() if does)


def _split_words(run: Run) -> str:
    island = run.island
    if island.tensor * island.pipeline == 1:
        return ""
    return f"with tensor {island.tensor} x pipeline {island.pipeline} it takes "
