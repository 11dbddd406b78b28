"""What the planner's page draws, as plain lists: a window, utilisation against bandwidth, where the time goes, goodput
against chips."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from diloco.plan.answer import Answer
from diloco.plan.candidates import SITE_REPLICAS, SYNC_EVERY
from diloco.plan.clock import clock, inner_step, with_between
from diloco.plan.failures import SERVERS_FOR_A_SPARE
from diloco.plan.fleet import Fleet
from diloco.plan.goodput import simulate
from diloco.plan.policy import Policy, decoupled, static, synchronous
from diloco.plan.question import LABELS, STREAMING, divides, settle
from diloco.plan.run import Run
from diloco.plan.window import window
from diloco.units import DAY_S, format_days, format_duration, format_things

BANDWIDTHS = 61
DECADES = 2.5
"""Of bandwidth on each side of the link's."""

FLEETS = tuple(int(round(10**power)) for power in np.arange(2, 6.01, 0.5))
FAILURES_PLAYED, DAYS_PLAYED = 1500, 4.0
"""At most, for each point of the goodput picture."""

LEARNERS = 8
"""Of the picture, where the question has one replica."""


def pictures(answer: Answer) -> dict[str, Any]:
    """Plain data for every picture; None for one that the question has no use for."""
    run = answer.chosen.run
    played = window(run)
    return {
        "window": asdict(played) | {"label": LABELS[answer.chosen.name]} if played else None,
        "utilization": utilization_lines(answer),
        "breakdown": breakdown_bars(answer),
        "goodput": goodput_lines(run),
    }


def utilization_lines(answer: Answer) -> dict[str, Any] | None:
    """Compute utilisation of each method over bandwidths around the link's; None with one site."""
    between = answer.question.cluster.between
    if len(answer.question.cluster.sites) == 1:
        return None
    here = math.log10(between.gbit_per_s)
    rates = [float(rate) for rate in np.logspace(here - DECADES, here + DECADES, BANDWIDTHS)]
    lines = {
        LABELS[name]: [clock(with_between(line.run, rate)).utilization for rate in rates]
        for name, line in answer.lines.items()
        if len(line.run.cluster.sites) > 1
    }
    return {"gbit_per_s": rates, "lines": lines, "link_gbit_per_s": between.gbit_per_s}


def breakdown_bars(answer: Answer) -> list[dict[str, Any]]:
    """Seconds of a step by M at the question's H, and by H at its M."""
    line = answer.lines.get(STREAMING)
    if line is None:
        return []
    run, sites = line.run, len(line.run.cluster.sites)
    by_m = [m * sites for m in SITE_REPLICAS if all(site.chips % m == 0 for site in run.cluster.kinds)]
    by_h = [h for h in SYNC_EVERY if h >= max(run.overlap_steps, run.fragments)]
    tried = [("M", f"M = {m}", _again(replace(run, replicas=m), answer)) for m in sorted({*by_m, run.replicas} - {1})]
    tried += [("H", f"H = {h}", replace(run, sync_every=h)) for h in sorted({*by_h, run.sync_every})]
    return [_bar(group, label, one, one.replicas == run.replicas and one.sync_every == run.sync_every)
            for group, label, one in tried if one is not None]  # fmt: skip


def goodput_lines(run: Run) -> dict[str, Any]:
    """Goodput of this run's kind of step on fleets of other sizes, played failure by failure, and what was assumed."""
    failures, step_s = run.failures, inner_step(run).total_s
    learners = run.replicas if run.replicas > 1 and not run.data_parallel else LEARNERS
    own = {"step_s": step_s, "restart_s": failures.restart_s}
    sync = {"sync_every": run.sync_every} if not run.data_parallel else {}
    site = run.cluster.sites[0]
    lines: dict[str, list[float]] = {name: [] for name in _policies(learners, run, 1, own, sync)}
    fleets = [chips for chips in FLEETS if chips >= learners]
    for chips in fleets:
        spares = failures.spare_servers
        share = 1 / SERVERS_FOR_A_SPARE if spares is None else spares / site.nodes
        node_chips = min(site.node_chips, chips)
        idle = int(share * chips / node_chips) * node_chips
        fleet = Fleet(chips, node_chips, idle, mtbi_days=failures.mtbi_s / DAY_S, return_s=failures.away_s)
        days = min(DAYS_PLAYED, FAILURES_PLAYED * fleet.mtbi_days / chips)
        for name, policy in _policies(learners, run, chips, own, sync).items():
            lines[name].append(simulate(fleet, policy, days).mean)
    return {"chips": fleets, "lines": lines, "own_chips": run.cluster.chips, "assumed": _goodput_words(run)}


def _policies(learners: int, run: Run, chips: int, own: dict[str, float], sync: dict[str, int]) -> dict[str, Policy]:
    """By the names of the picture's lines."""
    failures, step_s = run.failures, own["step_s"]
    saved = {"checkpoint_every_s": max(failures.interval_s(chips), step_s), "checkpoint_s": failures.checkpoint_s}
    return {
        "data parallel": static(**own, **saved),
        f"DiLoCo, {learners} learners": synchronous(learners, 10 * step_s, **own, **sync),
        f"decoupled, {learners} learners": decoupled(learners, **own),
    }


def _goodput_words(run: Run) -> str:
    failures, site = run.failures, run.cluster.sites[0]
    given = failures.spare_servers
    spares = f"one server more for {SERVERS_FOR_A_SPARE} (none for fewer) stands by"
    if given is not None:
        spares = f"for {format_things(site.nodes, 'server')} {given:,} more stand by" if given else "none stand by"
    return (
        f"A chip fails once in {format_days(failures.mtbi_s / DAY_S)}, its server is back after "
        f"{format_duration(failures.away_s)}, a restart takes {format_duration(failures.restart_s)}, and {spares}"
    )


def _again(run: Run, answer: Answer) -> Run | None:
    """The run with its chips split anew; None where they cannot be, or do not hold it."""
    if not divides(run.cluster, run.replicas, answer.question.island):
        return None
    settled = settle(run, answer.question.island)
    return settled.run if settled.fits else None


def _bar(group: str, label: str, run: Run, own: bool) -> dict[str, Any]:
    spent = clock(run)
    parts = {
        name: getattr(spent, name) / spent.steps
        for name in ("compute_s", "inside_s", "between_s", "codec_s", "bubble_s")
    }
    return {"group": group, "label": label, "own": own, **parts}
