"""The configurations that a search tries: sites, replicas, batch, H, codec, overlap and fragments."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from diloco.plan.asked import whole_sequences
from diloco.plan.clock import inner_step, outer_round, waiting_per_step_s
from diloco.plan.cost import goodput
from diloco.plan.question import FRAGMENT_LAYERS, Question, Settled, data_parallel, divides, settle
from diloco.plan.run import Island, Run

SYNC_EVERY = (10, 20, 30, 50, 100, 200, 300, 500)
CODECS = ("fp32", "bf16", "int8", "int4", "e3m0")
"""Most bits first."""

OVERLAPS = (0, 1, 2, 5, 10)
SITE_REPLICAS = (1, 2, 4, 8)
BATCH_FACTORS = (0.5, 0.71, 1.0, 1.41, 2.0)
"""Of the law's best batch. Beyond them the law's loss would no longer hold."""

LEAST_GOODPUT = 1e-9
"""Less counts as this, so that times stay finite."""


def candidates(question: Question) -> Iterator[tuple[Run, float, float]]:
    """Configurations with the seconds of their step between failures and their goodput, plainest first: few sites and
    replicas."""
    for sites in _site_counts(len(question.cluster.sites)):
        for settled in _plain(question, sites):
            yield _timed(settled.run)
        for replicas in _replica_counts(question, sites):
            for settled in _bases(question, sites, replicas):
                yield from _schedules(question, settled.run)


def _site_counts(most: int) -> list[int]:
    """1, 2, 4, 8, ... and all of them."""
    return sorted({2**power for power in range(most.bit_length()) if 2**power <= most} | {most})


def _replica_counts(question: Question, sites: int) -> list[int]:
    """More than one replica, as many on each site."""
    if "replicas" in question.given:
        return [question.replicas] if question.replicas > 1 and question.replicas % sites == 0 else []
    return [sites * per_site for per_site in SITE_REPLICAS if sites * per_site > 1]


def _plain(question: Question, sites: int) -> Iterator[Settled]:
    fixed = "replicas" in question.given and question.replicas > 1
    if fixed or not divides(question.sites(sites), sites, question.island):
        return
    for batch in _batches(question, sites, 1):
        settled = data_parallel(question, sites, batch)
        if settled.fits:
            yield settled


def _bases(question: Question, sites: int, replicas: int) -> Iterator[Settled]:
    """A run for each batch, its chips split, that holds the model."""
    cluster = question.sites(sites)
    if not divides(cluster, replicas, question.island):
        return
    for batch in _batches(question, replicas, replicas):
        run = Run(question.model, cluster, question.speed(cluster), question.tokens, batch, replicas, sync_every=1,
                  island=question.island or Island(), failures=question.failures,
                  speeds=question.speeds)  # fmt: skip
        settled = settle(run, question.island)
        if settled.fits:
            yield settled


def _schedules(question: Question, base: Run) -> Iterator[tuple[Run, float, float]]:
    """H nearest to that of the law's runs first, exact codecs before coarse ones."""
    step, kept, parts = inner_step(base), question.given, {1, math.ceil(base.model.layers / FRAGMENT_LAYERS)}
    fragments = [question.fragments] if "fragments" in kept else sorted(parts)
    codecs = [question.codec] if "codec" in kept else CODECS
    overlaps = [question.overlap_steps] if "overlap" in kept else OVERLAPS
    ladder = {*SYNC_EVERY, question.sync_every}
    near = sorted(ladder, key=lambda h: (abs(math.log(h / question.law.sync_every)), h))
    coded = [replace(base, codec=c, fragments=p, sync_every=max(ladder)) for c in codecs for p in fragments]
    rounds = [(run, outer_round(run)) for run in coded]
    for sync_every in [question.sync_every] if "sync_every" in kept else near:
        useful = max(goodput(replace(base, sync_every=sync_every), None, step.total_s), LEAST_GOODPUT)
        for run, one in rounds:
            for overlap in overlaps:
                if max(overlap, run.fragments) <= sync_every:
                    timed = replace(run, sync_every=sync_every, overlap_steps=overlap)
                    yield timed, step.total_s + waiting_per_step_s(timed, step, one), useful


def _batches(question: Question, parts: int, replicas: int) -> list[float]:
    """Around the law's best for so many replicas, nearest first, in whole sequences for each of `parts`."""
    if "batch_tokens" in question.given:
        return [question.batch_tokens]
    best = question.law.batch_tokens(question.model.params, replicas)
    sized = {whole_sequences(factor * best, question.model, parts) for factor in BATCH_FACTORS}
    within = [batch for batch in sized if batch <= question.tokens] or [question.tokens]
    return sorted(within, key=lambda batch: abs(math.log(batch / best)))


def _timed(run: Run) -> tuple[Run, float, float]:
    step = inner_step(run)
    useful = max(goodput(run, None, step.total_s), LEAST_GOODPUT)
    return run, step.total_s + waiting_per_step_s(run, step, outer_round(run)), useful
