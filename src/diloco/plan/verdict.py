"""What a plan comes to: whether further sites are worth it, and what to keep in mind."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from diloco.plan.clock import inner_step, needed_gbit_per_s
from diloco.plan.cost import Failures, format_days
from diloco.plan.question import LABELS, ONE_SITE, Question
from diloco.plan.units import format_bandwidth, format_count, format_share, format_usd

if TYPE_CHECKING:
    from diloco.plan.answer import Line

WORTH_IT, WORTH_TIME = 0.85, 0.6
"""Speedup over the growth in chips, from which on a further site is worth its money, or its time only."""

SEARCH_BELOW = 0.9
"""Of the utilisation of one site, under which other settings are pointed to."""


def verdict(question: Question, lines: dict[str, Line]) -> str:
    """Whether the further sites are worth their money, in a sentence or two; with one site, what it takes."""
    last, alone = list(lines.values())[-1], lines[ONE_SITE]
    sites, link = len(question.cluster.sites), format_bandwidth(question.cluster.between.gbit_per_s)
    takes = f"{format_days(last.days)}{_price(last)}"
    if sites == 1 and math.isfinite(last.days):
        size = f"{format_count(question.model.params)} parameters and {format_count(question.tokens)} tokens"
        chips = f"{last.run.cluster.chips:,} chip{'s' * (last.run.cluster.chips > 1)}"
        return f"{size} on {chips} take {takes}; {format_share(last.clock.utilization)} is computing."
    more = "a second site" if sites == 2 else f"{sites} sites instead of one"
    if not math.isfinite(last.days):
        return "Not possible: failures come faster than work is saved; more and smaller replicas lose less."
    if not math.isfinite(alone.days):
        return f"Needed: alone one site would never end, as failures come too fast; with {more} it takes {takes}."
    speedup = alone.days / last.days
    share = speedup / (last.run.cluster.chips / alone.run.cluster.chips)
    word = "Worth it" if share >= WORTH_IT else "Worth it for the time only" if share >= WORTH_TIME else "Not worth it"
    return (
        f"{word}: with {more} over {link} the run takes {format_days(last.days)} instead of {format_days(alone.days)} "
        f"({_times(speedup)}), {_dearer(alone, last)}{_loss_words(alone, last)}.{_from_where(alone, last, share)}"
    )


def _times(speedup: float) -> str:
    return f"{speedup:.2g} times as fast" if speedup >= 1 else f"{1 / speedup:.2g} times as long"


def _dearer(alone: Line, last: Line) -> str:
    if alone.cost_usd is None or last.cost_usd is None:
        return "on chips without a price"
    extra = last.cost_usd / alone.cost_usd - 1
    change = (
        "for as much money" if abs(extra) < 0.005 else f"for {abs(extra):.0%} {'more' if extra > 0 else 'less'} money"
    )
    return f"{change} ({format_usd(last.cost_usd)} against {format_usd(alone.cost_usd)})"


def _loss_words(alone: Line, last: Line) -> str:
    change = 100 * (last.loss.value / alone.loss.value - 1)
    if not math.isfinite(change):
        return ""
    return f"; loss {last.loss.value:.3f} against {alone.loss.value:.3f} ({change:+.1f}%)"


def _from_where(alone: Line, last: Line, share: float) -> str:
    """From which bandwidth on a site that is not worth it would be, at the same H."""
    target = last.clock.utilization * WORTH_IT / share
    if share >= WORTH_IT or not target < 1:
        return ""
    rate = needed_gbit_per_s(last.run, target)
    return f" From {format_bandwidth(rate)} on it would be." if math.isfinite(rate) else ""


def _price(line: Line) -> str:
    return f" and {format_usd(line.cost_usd)}" if line.cost_usd is not None else ""


def notes(question: Question, lines: dict[str, Line]) -> list[str]:
    """What to keep in mind, a sentence each."""
    last = list(lines.values())[-1]
    found = [Failures().sentence]
    offloaded = [LABELS[line.name] for line in lines.values() if line.settled.fit.options.offload_outer]
    if offloaded:
        found.append(f"{' and '.join(offloaded)}: anchor and outer momentum must lie in the hosts' memory")
    shards = last.run.island.data_shards(last.run.cluster.chips // last.run.replicas)
    per_shard = last.run.batch_tokens / last.run.replicas / shards
    if last.name != ONE_SITE and last.clock.utilization < SEARCH_BELOW * lines[ONE_SITE].clock.utilization:
        found.append("a larger batch, H or overlap waits less: --search tries them")
    if len({(site.chip.name, site.chips) for site in last.run.cluster.sites}) > 1:
        found.append("every replica has an equal share of the batch, so the faster site waits for the slower one")
    if per_shard < question.model.seq_len:
        found.append(
            f"a step has {per_shard:.3g} tokens for each data shard, less than a sequence of {question.model.seq_len}: "
            "a real run will reach less of the peak, or needs a larger batch"
        )
    if inner_step(last.run).inside_s > 0.1 * inner_step(last.run).compute_s:
        found.append("links inside the sites hold the chips up too: a larger batch or a faster --inside would help")
    found.append(question.law.silence())
    return found + question.law.reservations(question.model.params, last.run.replicas, question.tokens)
