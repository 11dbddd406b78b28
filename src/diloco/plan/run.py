"""What a run is made of: model, cluster, budget, and how replicas and their chips work together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from diloco.errors import BadInput
from diloco.plan.codecs import CodecCost, codec_cost
from diloco.plan.failures import Failures
from diloco.plan.hardware import Chip, Cluster, Speed
from diloco.plan.model import ModelShape
from diloco.units import format_things

BACKWARD_SHARE = 2 / 3
"""Of a step: data parallelism reduces gradients as the backward pass yields them."""


LEAST_MICRO_TOKENS = 1024
"""Of a micro-batch. A weight in bf16 is read once for 2 FLOPs a token: with so many a chip computes for 3.5 times as
long as it reads, if it is an H100 at its peak."""

MICRO_BATCHES_A_STAGE = 4
"""With so many the stages idle for at most a fifth of a step; sequences are split over chips where there are fewer."""


@dataclass(frozen=True)
class Island:
    """How the chips of one replica share it; data shards take what tensor and pipeline leave."""

    tensor: int = 1
    pipeline: int = 1
    micro_batches: int | None = None
    """A step's, of each pipeline; None for as many as the batch gives, see `Run.micro_batches`."""

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "micro_batches"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadInput(f"{name} is {value}: give 1 or more")

    def data_shards(self, chips: int) -> int:
        """Raises BadInput where tensor x pipeline does not divide the replica's chips."""
        if chips % (self.tensor * self.pipeline):
            near = self.nearest(chips).values(self.names)
            raise BadInput(
                f"{self.words()}, which does not divide a replica's {format_things(chips, 'chip')}: give {near}"
            )
        return chips // (self.tensor * self.pipeline)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the ways in which it splits."""
        return tuple(name for name in ("tensor", "pipeline") if getattr(self, name) > 1) or ("tensor",)

    def words(self) -> str:
        """ "tensor is 2", "tensor is 2 and pipeline is 4"."""
        return " and ".join(f"{name} is {getattr(self, name)}" for name in self.names)

    def values(self, names: tuple[str, ...]) -> str:
        """ "2", "2 and 4"."""
        return " and ".join(str(getattr(self, name)) for name in names)

    def nearest(self, chips: int) -> Island:
        """The split most like this one that so many chips of a replica allow; what is 1 stays 1."""
        divisors = [n for n in range(1, math.isqrt(chips) + 1) if chips % n == 0]
        divisors += [chips // n for n in divisors]
        tensors, pipelines = (divisors if size > 1 else [1] for size in (self.tensor, self.pipeline))
        pairs = [(t, p) for t in tensors for p in pipelines if chips % (t * p) == 0]
        tensor, pipeline = min(pairs, key=lambda pair: self.distance(*pair))
        return replace(self, tensor=tensor, pipeline=pipeline)

    def distance(self, tensor: int, pipeline: int) -> float:
        """Doublings between this split and another."""
        return abs(math.log2(tensor / self.tensor)) + abs(math.log2(pipeline / self.pipeline))


@dataclass(frozen=True)
class Run:
    """A run on a cluster. Data parallelism: `data_parallel=True, sync_every=1, codec="bf16"`, one replica a site."""

    model: ModelShape
    cluster: Cluster
    speed: Speed
    """Of a chip; of the slowest kind where there are several."""
    tokens: float
    batch_tokens: float
    """Over all replicas together."""
    replicas: int
    sync_every: int = 100
    fragments: int = 1
    overlap_steps: int = 0
    codec: str = "fp32"
    island: Island = Island()
    site_every: int | None = None
    """Steps between two averages of the weights inside a site; None for none."""
    two_level: bool = True
    """Sums inside a site cross the link once, instead of every replica's own gradient."""
    data_parallel: bool = False
    codec_bytes_per_s: float | None = None
    """fp32 bytes a second that one chip codes and merges; None for memory bandwidth / CODEC_PASSES."""
    backward_share: float = BACKWARD_SHARE
    """Of a step, that hides data parallelism's reductions; 0 for a loop that sums gradients after its backward pass."""

    failures: Failures = Failures()
    speeds: Mapping[str, Speed] = field(default_factory=dict)
    """By kind of chip; `speed` where a kind is not in it."""

    def __post_init__(self) -> None:
        for name in ("tokens", "batch_tokens", "replicas", "sync_every", "fragments"):
            if not 0 < getattr(self, name) < math.inf:
                raise BadInput(f"{name} is {getattr(self, name):g}: give a finite number above 0")
        if self.batch_tokens > self.tokens:
            raise BadInput(f"batch_tokens is {self.batch_tokens:g}: give at most the run's {self.tokens:g} tokens")
        if not 0 <= self.backward_share <= 1:
            raise BadInput(f"backward_share is {self.backward_share:g}: give a share of a step, 0 to 1")
        if not 0 <= self.overlap_steps <= self.sync_every:
            raise BadInput(f"overlap is {self.overlap_steps} steps: give 0 to the sync interval, {self.sync_every}")
        if self.fragments > self.model.layers:
            layers = format_things(self.model.layers, "layer")
            raise BadInput(f"fragments is {self.fragments}: give at most the model's {layers}")
        sites = len(self.cluster.sites)
        if self.replicas % sites:
            near = max(1, round(self.replicas / sites)) * sites
            raise BadInput(f"replicas is {self.replicas}, which {sites} sites cannot share alike: give {near}")
        for site in self.cluster.kinds:
            if site.chips % self.site_replicas:
                near = max(n for n in range(1, self.site_replicas + 1) if site.chips % n == 0) * sites
                chips = format_things(site.chips, "chip")
                raise BadInput(f"replicas is {self.replicas}, which a site's {chips} cannot hold: give {near}")
            shards = self.island.data_shards(site.chips // self.site_replicas)
            self._refuse_thin(shards * self.island.tensor, "pipeline", self.model.layers, "layers")
            self._refuse_thin(shards * self.island.pipeline, "tensor", self.model.heads, "heads")

    def _refuse_thin(self, chips: int, name: str, most: int, what: str) -> None:
        """Layers or heads spread over more chips than there are of them; `chips` are a replica's for each part."""
        parts = getattr(self.island, name)
        if parts > most:
            near = max(n for n in range(1, most + 1) if chips * parts % n == 0)
            raise BadInput(f"{name} is {parts}, more than the model's {most} {what}: give {near}")

    @property
    def steps(self) -> float:
        return self.tokens / self.batch_tokens

    @property
    def site_replicas(self) -> int:
        return self.replicas // len(self.cluster.sites)

    @property
    def shard_tokens(self) -> float:
        """Of one step on one data shard, at the site with the most shards."""
        chips = max(site.chips for site in self.cluster.kinds) // self.site_replicas
        return self.batch_tokens / self.replicas / self.island.data_shards(chips)

    @property
    def micro_batches(self) -> int:
        """Of each pipeline in a step: as given; else a sequence each, or parts of at least 1024 tokens where that makes
        fewer than four a stage."""
        if self.island.micro_batches is not None or self.island.pipeline == 1:
            return self.island.micro_batches or 1
        wanted = MICRO_BATCHES_A_STAGE * self.island.pipeline
        parts = min(wanted, int(self.shard_tokens / LEAST_MICRO_TOKENS))
        return max(1, int(self.shard_tokens / self.model.seq_len), parts)

    def flop_per_s(self, chip: Chip) -> float:
        """Of a chip, as realised."""
        return self.speeds.get(chip.name, self.speed).flop_per_s

    @cached_property
    def codec_cost(self) -> CodecCost:
        return codec_cost(self.codec)
