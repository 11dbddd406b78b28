"""Which single option would make a planned run faster, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from diloco.plan.asked import whole_sequences
from diloco.plan.clock import clock, with_between
from diloco.plan.cost import cost_usd, days_of, goodput
from diloco.plan.hardware import Cluster
from diloco.plan.question import STREAMING_CODEC, Question, divides, methods, pick_sync_every, settle
from diloco.plan.run import Run
from diloco.plan.verdict import factor
from diloco.units import format_bandwidth, format_duration

WORTH_SAYING = 1.03
"""Times as fast; a change that gains less is not named."""

NAMED = 2
RISKY = ("--batch-tokens", "--sync-every", "--overlap", "--codec")
"""Options with an effect on the loss that a law may not know."""

SAME_MONEY = 0.005
FASTER_LINK, FASTER_INSIDE = 10, 2
_SPARSE = "topk", "randk"


def advice(question: Question, run: Run) -> str:
    """The options that help most, each changed alone, in a sentence; empty for a run that never ends."""
    here = _days(run)
    if not math.isfinite(here):
        return ""
    tried = [(here / _days(changed), words, changed) for words, changed in changes(question, run)]
    best = sorted((one for one in tried if one[0] >= WORTH_SAYING), key=lambda one: -one[0])[:NAMED]
    if not best:
        return _nothing(question, run)
    named = ", then ".join(f"{words} ({_faster(gain)}{_dearer(run, changed)})" for gain, words, changed in best)
    risky = [flag for flag in RISKY if any(words.startswith(flag) for _, words, _ in best)]
    caution = f"; {' and '.join(risky)} may cost loss" if risky else ""
    return f"What helps most: {named}{caution}."


def _nothing(question: Question, run: Run) -> str:
    schedule = "" if run.data_parallel else ", H, overlap"
    mfu = "" if "measured" in question.given else ", or a higher --mfu"
    inside = " or speed of the links inside" if any(site.nodes > 1 for site in run.cluster.kinds) else ""
    between = f"a link {FASTER_LINK} times as fast between sites, nor " if len(run.cluster.sites) > 1 else ""
    return (
        f"Neither {between}twice the batch{schedule}{inside}, nor fewer failures save as much as "
        f"{WORTH_SAYING - 1:.0%}: what is left is more or faster chips{mfu}."
    )


def _faster(gain: float) -> str:
    return f"{factor(gain)} times as fast" if gain >= 2 else f"{gain - 1:.0%} faster"


def _dearer(run: Run, changed: Run) -> str:
    """Where a change costs more than the time it saves."""
    before, after = cost_usd(run, _days(run)), cost_usd(changed, _days(changed))
    more = after / before - 1 if before and after else 0.0
    return f", for {more:.0%} more money" if more >= SAME_MONEY else ""


def changes(question: Question, run: Run) -> Iterator[tuple[str, Run]]:
    """The run with one option changed each time, and that option in words."""
    if len(run.cluster.sites) > 1:
        rate = FASTER_LINK * run.cluster.between.gbit_per_s
        yield f"--between of {format_bandwidth(rate)}", _with_own_interval(question, with_between(run, rate))
        yield from _fewer_sites(question)
    if not run.data_parallel:
        yield from _schedules(question, run)
    if 2 * run.batch_tokens <= run.tokens:
        larger = 2 * run.batch_tokens
        yield from _anew(f"--batch-tokens {larger:.0f}", replace(run, batch_tokens=larger), question)
    if any(site.nodes > 1 for site in run.cluster.kinds):
        inside = max(site.inside.gbit_per_s for site in run.cluster.kinds) * FASTER_INSIDE
        changed = {id(s): replace(s, inside=replace(s.inside, gbit_per_s=inside)) for s in run.cluster.kinds}
        faster = replace(run, cluster=replace(run.cluster, sites=tuple(changed[id(s)] for s in run.cluster.sites)))
        yield from _anew(f"--inside of {format_bandwidth(inside)} a chip", faster, question)
    if question.island is not None:
        yield from _anew("no --tensor and --pipeline of your own", run, replace(question, island=None))
    yield from _failures(run)


def _with_own_interval(question: Question, run: Run) -> Run:
    """With the H that the question would get, where it gave none."""
    if run.data_parallel or run.replicas == 1 or "sync_every" in question.given:
        return run
    start = max(question.law.sync_every, run.fragments, run.overlap_steps)
    return replace(run, sync_every=pick_sync_every(run, start, question.island))


def _fewer_sites(question: Question) -> Iterator[tuple[str, Run]]:
    """Without the sites that compute slowest, and the fastest site alone."""
    sites, each = question.cluster.sites, question.replicas // len(question.cluster.sites)
    pace = [site.chips * question.speeds[site.chip.name].flop_per_s for site in sites]
    quick = tuple(site for site, own in zip(sites, pace, strict=True) if own > min(pace))
    for kept in {len(some): some for some in (quick, question.sites(1).sites) if some}.values():
        cluster = Cluster(kept, question.cluster.between)
        replicas = question.replicas if "replicas" in question.given else each * len(kept)
        if not divides(cluster, replicas, question.island):
            continue
        fewer = replace(question, cluster=cluster, replicas=replicas, batch_tokens=_batch(question, replicas))
        settled = list(methods(fewer).values())[-1]
        if settled.fits:
            parts = (f"{count}x" * (count > 1) + f"{site.chips}x{site.chip.name}" for site, count in cluster.counted)
            yield f"--sites {'+'.join(parts)}", _with_own_interval(question, settled.run)


def _batch(question: Question, replicas: int) -> float:
    """Tokens of a step that the question would get with so many replicas."""
    if "batch_tokens" in question.given:
        return question.batch_tokens
    best = question.law.batch_tokens(question.model.params, replicas)
    return min(whole_sequences(best, question.model, replicas), question.tokens)


def _schedules(question: Question, run: Run) -> Iterator[tuple[str, Run]]:
    longer, shorter = 2 * run.sync_every, run.sync_every // 2
    yield f"--sync-every {longer}", replace(run, sync_every=longer)
    if shorter >= max(run.overlap_steps, run.fragments):
        yield f"--sync-every {shorter}", replace(run, sync_every=shorter)
    overlap = min(run.sync_every, max(1, 2 * run.overlap_steps))
    if overlap > run.overlap_steps:
        yield f"--overlap {overlap}", _with_own_interval(question, replace(run, overlap_steps=overlap))
    if run.codec != STREAMING_CODEC and not run.codec.startswith(_SPARSE):
        yield f"--codec {STREAMING_CODEC}", _with_own_interval(question, replace(run, codec=STREAMING_CODEC))


def _failures(run: Run) -> Iterator[tuple[str, Run]]:
    failures = run.failures
    quicker = failures.restart_s / 2
    yield f"--restart of {format_duration(quicker)}", replace(run, failures=replace(failures, restart_s=quicker))
    spares = max(failures.spares(site) for site in run.cluster.kinds) + 1
    yield f"--spares {spares}", replace(run, failures=replace(failures, spare_servers=spares))
    if failures.checkpoint_every_s is not None:
        yield "no --checkpoint-every of your own", replace(run, failures=replace(failures, checkpoint_every_s=None))


def _anew(words: str, changed: Run, question: Question) -> Iterator[tuple[str, Run]]:
    """With its chips split anew, if it fits."""
    settled = settle(changed, question.island)
    if settled.fits:
        yield words, _with_own_interval(question, settled.run)


def _days(run: Run) -> float:
    return days_of(clock(run).total_s, goodput(run))
