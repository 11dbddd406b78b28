"""A question to the planner, and the runs that it compares: one site alone, data parallel over the slow link, DiLoCo,
and Streaming DiLoCo."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from diloco.plan.clock import inner_step, outer_round, waiting_per_step_s
from diloco.plan.failures import Failures
from diloco.plan.hardware import Cluster, Speed
from diloco.plan.loss import LossLaw
from diloco.plan.memory import Fit, fit, fit_by, memory, spending, splits
from diloco.plan.model import ModelShape
from diloco.plan.run import Island, Run

ONE_SITE, DATA_PARALLEL, DILOCO, STREAMING = "one_site", "data_parallel", "diloco", "streaming"

LABELS = {ONE_SITE: "one site", DATA_PARALLEL: "data parallel", DILOCO: "DiLoCo", STREAMING: "streaming"}

GRADIENT_CODEC, PLAIN_CODEC = "bf16", "fp32"
STREAMING_CODEC, STREAMING_OVERLAP, FRAGMENT_LAYERS = "e3m0", 5, 3
"""Streaming DiLoCo's own choices (arXiv:2501.18512)."""

WORTH_SPLITTING = 0.97
"""A finer split is taken where a step lasts at most this share of the coarser one's."""

SYNC_LADDER = (30, 50, 100, 200, 300, 500)
BEARABLE_WAIT = 0.05
"""Share of a step; an H that nobody gave is the least of the ladder that waits no longer."""


@dataclass(frozen=True)
class Question:
    """What is asked, with every default already filled in; `assumed` says which, `given` what the asker fixed."""

    model: ModelShape
    cluster: Cluster
    speeds: Mapping[str, Speed]
    """By chip."""
    tokens: float
    batch_tokens: float
    """Over all replicas together."""
    replicas: int
    sync_every: int
    law: LossLaw
    codec: str = STREAMING_CODEC
    overlap_steps: int = STREAMING_OVERLAP
    fragments: int = 1
    island: Island | None = None
    """None: the fastest split of a replica's chips that fits is looked for."""
    failures: Failures = Failures()
    deadline_s: float | None = None
    budget_usd: float | None = None
    target_loss: float | None = None
    given: frozenset[str] = frozenset()
    own_hardware: frozenset[str] = frozenset()
    """Chips and links by name that are the asker's own."""
    assumed: tuple[str, ...] = ()

    def sites(self, count: int) -> Cluster:
        """The `count` of them that compute fastest."""
        ordered = sorted(self.cluster.sites, key=lambda site: -site.chips * self.speeds[site.chip.name].flop_per_s)
        return Cluster(tuple(ordered[:count]), self.cluster.between)

    def speed(self, cluster: Cluster) -> Speed:
        """Of a cluster's slowest kind of chip."""
        return min((self.speeds[site.chip.name] for site in cluster.kinds), key=lambda speed: speed.flop_per_s)


@dataclass(frozen=True)
class Settled:
    """A run with its replicas' chips split, and whether it fits into them."""

    run: Run
    fit: Fit

    @property
    def fits(self) -> bool:
        return self.fit.nearest is not None


def methods(question: Question) -> dict[str, Settled]:
    """The runs to compare, plainest first. With one site and one replica there is nothing to compare."""
    found = {ONE_SITE: data_parallel(question, 1)}
    if len(question.cluster.sites) > 1:
        found[DATA_PARALLEL] = data_parallel(question, len(question.cluster.sites))
    if question.replicas > 1:
        found[DILOCO] = settle(diloco(question), question.island)
        found[STREAMING] = settle(streaming(question), question.island)
    return found


def data_parallel(question: Question, sites: int, batch_tokens: float | None = None) -> Settled:
    """On the largest sites, gradients in bf16 over the link every step."""
    batch = batch_tokens or question.batch_tokens
    cluster = question.sites(sites)
    run = Run(question.model, cluster, question.speed(cluster), question.tokens, batch, sites, sync_every=1,
              codec=GRADIENT_CODEC, data_parallel=True, failures=question.failures, speeds=question.speeds)  # fmt: skip
    return settle(run, question.island)


def diloco(question: Question) -> Run:
    """Plain: fp32, the whole model at once, nothing overlapped, and an H of its own where none was given."""
    run = replace(streaming(question), codec=PLAIN_CODEC, overlap_steps=0, fragments=1)
    if "sync_every" in question.given:
        return run
    return replace(run, sync_every=pick_sync_every(run, question.law.sync_every, question.island))


def streaming(question: Question) -> Run:
    """With the question's codec, overlap and fragments."""
    return Run(
        question.model, question.cluster, question.speed(question.cluster), question.tokens, question.batch_tokens,
        question.replicas, question.sync_every, question.fragments, question.overlap_steps, question.codec,
        question.island or Island(), failures=question.failures, speeds=question.speeds,
    )  # fmt: skip


def settle(run: Run, island: Island | None = None) -> Settled:
    """`island` where it is given; else the fastest split of a replica's chips that fits, into data shards, tensor
    parallelism inside a server and pipeline stages, the coarser one when it hardly matters; else the one that asks for
    the least memory, which does not fit either."""
    whole = splits(replace(run, island=Island())) if island is None else [replace(run, island=island)]
    for way in spending(run):
        fitting = [split for split in whole if memory(split, way).fits]
        if fitting:
            chosen = _fastest(fitting)
            return Settled(chosen, fit_by(chosen, way))
    closest = min(whole, key=lambda split: memory(split).total_bytes)
    return Settled(closest, replace(fit(closest), nearest=None))


def _fastest(runs: list[Run]) -> Run:
    """Of runs split ever more finely. Stages are looked at only where links inside a site hold the chips up."""
    chosen, step = runs[0], inner_step(runs[0])
    for other in runs[1:]:
        if other.island.pipeline > 1 and step.inside_s + step.bubble_s <= (1 - WORTH_SPLITTING) * step.compute_s:
            break
        there = inner_step(other)
        if there.total_s < WORTH_SPLITTING * step.total_s:
            chosen, step = other, there
    return chosen


def divides(cluster: Cluster, replicas: int, island: Island | None = None) -> bool:
    """Whether every site's chips make up as many equal replicas, each of which `island` can split."""
    each, rest = divmod(replicas, len(cluster.sites))
    parts = each * (island.tensor * island.pipeline if island else 1)
    return rest == 0 and all(site.chips % parts == 0 for site in cluster.kinds)


def pick_sync_every(run: Run, start: int, island: Island | None = None) -> int:
    """The least H from `start` on with which the run waits for a bearable share of its time; the ladder's last where
    none does."""
    ladder = [start, *(h for h in SYNC_LADDER if h > start)]
    settled = settle(replace(run, sync_every=start, overlap_steps=min(run.overlap_steps, start)), island).run
    step, one = inner_step(settled), outer_round(settled)
    for sync_every in ladder:
        tried = replace(settled, sync_every=sync_every)
        if waiting_per_step_s(tried, step, one) <= BEARABLE_WAIT * step.total_s:
            return sync_every
    return ladder[-1]
