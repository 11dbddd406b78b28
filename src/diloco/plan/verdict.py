"""What a plan comes to: whether further sites are worth it, and what to keep in mind."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from diloco.plan.clock import needed_gbit_per_s
from diloco.plan.cost import LONGEST_DAYS, usd_per_h
from diloco.plan.question import ONE_SITE, Question
from diloco.units import (
    DAY_S,
    YEAR_S,
    format_bandwidth,
    format_change,
    format_count,
    format_days,
    format_loss,
    format_number,
    format_share,
    format_things,
    format_tokens,
    format_usd,
)

if TYPE_CHECKING:
    from diloco.plan.answer import Line

WORTH_IT, WORTH_TIME = 0.85, 0.6
"""Speedup over the growth in dollars an hour, from which on a further site is worth its money, or its time only."""

TWO_FIGURES = 1.1
"""Times as fast; what is less is said in percent."""

DEAR_LOSS = 0.02
"""Relative rise in loss, from which on the smaller model is named that reaches as much on one site."""

SMALLEST = 100
"""Times smaller than the one asked about, down to which that model is looked for."""

SAME_SPEED = 0.02
"""Relative difference in time that is called none."""

FASTER = 1.005
"""Times as fast; less is "as fast", and no further site is worth that."""

SPARSE = "topk"
SPARSE_CAUTION = (
    " But top-k is not in that loss: it cost 25% at 1% of the entries where it was measured, on 1M parameters "
    "(studies/wire); try it small first."
)


def verdict(question: Question, lines: dict[str, Line]) -> str:
    """Whether the further sites are worth their money, in a sentence or two; with one site, what it takes."""
    last, alone = list(lines.values())[-1], lines[ONE_SITE]
    sites, link = len(question.cluster.sites), format_bandwidth(question.cluster.between.gbit_per_s)
    takes = f"{format_days(last.days)}{_price(last)}"
    if not math.isfinite(last.days):
        return f"Not possible: {_why_never(last)}."
    caution = SPARSE_CAUTION if last.run.codec.startswith(SPARSE) else ""
    if sites == 1:
        size = f"{format_count(question.model.params)} parameters and {format_tokens(question.tokens)}"
        chips = format_things(last.run.cluster.chips, "chip")
        computing = f"{format_share(last.clock.utilization)} is computing"
        return f"{size} on {chips} take {takes}; {computing}.{_beside_none(alone, last)}{caution}"
    more = "a second site" if sites == 2 else f"{sites} sites instead of one"
    if not math.isfinite(alone.days):
        return f"Needed: alone one site would never end ({_why_never(alone)}); with {more} it takes {takes}.{caution}"
    speedup = alone.days / last.days
    share = worth(alone, last)
    word = "Worth it" if share >= WORTH_IT else "Worth it for the time only" if share >= WORTH_TIME else "Not worth it"
    leave = "" if speedup >= FASTER else "; leave that site out" if sites == 2 else "; leave the other sites out"
    return (
        f"{word}: with {more} over {link} the run takes {format_days(last.days)} instead of {format_days(alone.days)} "
        f"({_times(speedup)}), {_dearer(alone, last)}{_loss_words(alone, last)}{leave}.{caution}"
        f"{_in_size(question, alone, last)}{_from_where(alone, last, share)}"
    )


def worth(alone: Line, last: Line) -> float:
    """Speedup over the growth in dollars an hour; 0 where there is no speedup."""
    speedup = alone.days / last.days
    return speedup / growth(alone, last) if speedup >= FASTER else 0.0


def growth(alone: Line, last: Line) -> float:
    """Of the dollars an hour from one site to all; of the chips where one has no price."""
    hourly = usd_per_h(alone.run), usd_per_h(last.run)
    if hourly[0] is None or hourly[1] is None:
        return last.run.cluster.chips / alone.run.cluster.chips
    return hourly[1] / hourly[0]


def _beside_none(alone: Line, last: Line) -> str:
    """What replicas on one site gain over data parallelism there."""
    if last is alone:
        return ""
    speedup, loss = alone.days / last.days, _loss_words(alone, last)
    many = f"The {last.run.replicas} replicas"
    if abs(speedup - 1) < SAME_SPEED:
        return f" {many} gain no time: data parallel takes {format_days(alone.days)} too{loss}."
    return f" {many} make it {_times(speedup)}: data parallel takes {format_days(alone.days)}{loss}."


def _why_never(line: Line) -> str:
    """Too slow, or stopped by failures."""
    seconds = line.clock.total_s
    if seconds > LONGEST_DAYS * DAY_S:
        return f"it would take {_big(seconds / YEAR_S)} years, failures aside; it needs more chips or fewer tokens"
    many = "" if line.run.data_parallel else "; more and smaller replicas lose less"
    years = f"{_big(seconds / YEAR_S)} years" if seconds > 2 * YEAR_S else format_days(seconds / DAY_S)
    return f"failures come faster than work is saved, of which without them there are {years}{many}"


def _big(value: float) -> str:
    """12345678.9 -> "12M"."""
    return format_count(value) if value >= 1e6 else format_number(float(f"{value:.3g}"))


def _times(speedup: float) -> str:
    """2 -> "2 times as fast", 1.05 -> "5% faster", 1 -> "as fast", 0.5 -> "2 times as long"."""
    ratio, more, little = (speedup, "fast", "faster") if speedup >= 1 else (1 / speedup, "long", "slower")
    if ratio < FASTER:
        return "as fast"
    if ratio < TWO_FIGURES:
        return f"{ratio - 1:.0%} {little}"
    return f"{factor(ratio)} times as {more}"


def factor(value: float) -> str:
    """Two figures, and all digits of what is large."""
    return f"{value:.2g}" if value < 10 else _big(float(f"{value:.0f}"))


def _dearer(alone: Line, last: Line) -> str:
    if alone.cost_usd is None or last.cost_usd is None:
        return "on chips without a price"
    ratio = last.cost_usd / alone.cost_usd
    if ratio >= 2:
        change = f"for {factor(ratio)} times the money"
    elif abs(ratio - 1) < 0.005:
        change = "for as much money"
    else:
        change = f"for {abs(ratio - 1):.0%} {'more' if ratio > 1 else 'less'} money"
    return f"{change} ({format_usd(last.cost_usd)} against {format_usd(alone.cost_usd)})"


def _loss_words(alone: Line, last: Line) -> str:
    change = 100 * (last.loss.value / alone.loss.value - 1)
    if not math.isfinite(change):
        return ""
    losses = f"{format_loss(last.loss.value)} against {format_loss(alone.loss.value)}"
    return f"; loss {losses} ({format_change(change)})"


def _in_size(question: Question, alone: Line, last: Line) -> str:
    """The model that has as high a loss on one site after as many tokens, by halving in the logarithm."""
    params, loss = question.model.params, last.loss.value
    if not loss > (1 + DEAR_LOSS) * alone.loss.value:
        return ""

    def alone_at(size: float) -> float:
        return question.law.at(size, question.tokens, 1, 1, data_parallel=True).value

    low, high = params / SMALLEST, params
    if not alone_at(low) > loss:
        return ""
    while high > 1.001 * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if alone_at(middle) > loss else (low, middle)
    return f" One site reaches that loss with a model of {format_count(high)}."


def _from_where(alone: Line, last: Line, share: float) -> str:
    """From which bandwidth on a site that is not worth it would be, at the same H."""
    if share >= WORTH_IT:
        return ""
    speedup = alone.days / last.days
    target = last.clock.utilization * max(WORTH_IT * growth(alone, last), FASTER) / speedup
    if not target < 1:
        return ""
    rate = needed_gbit_per_s(last.run, target)
    return f" From {format_bandwidth(rate)} on it would be worth it, at this H." if math.isfinite(rate) else ""


def _price(line: Line) -> str:
    return f" and {format_usd(line.cost_usd)}" if line.cost_usd is not None else ""
