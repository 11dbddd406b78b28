"""Dollars, and the goodput that failures leave, in closed form."""

from __future__ import annotations

import math

from diloco.plan.clock import inner_step
from diloco.plan.failures import Failures
from diloco.plan.run import Run
from diloco.units import DAY_S, HOUR_S

LONGEST_DAYS = 365_250
"""A thousand years: a run that takes longer never ends."""

_HOPELESS = 700.0
"""Failures between two saves, from which on nothing is left and exp overflows."""


def days_of(seconds: float, useful: float) -> float:
    """Days of `seconds` between failures at a goodput of `useful`; infinity for a run that never ends."""
    days = seconds / useful / DAY_S if useful > 0 else math.inf
    return days if days <= LONGEST_DAYS else math.inf


def usd_per_h(run: Run) -> float | None:
    """Of a run's chips and of those that stand by; None where a chip has no price."""
    hourly = run.cluster.usd_per_h
    if hourly is None:
        return None
    idle = (
        (site.chip.usd_per_h or 0.0, count * run.failures.spares(site) * site.node_chips)
        for site, count in run.cluster.counted
    )
    return hourly + sum(price * chips for price, chips in idle)


def cost_usd(run: Run, days: float) -> float | None:
    """Days x chips x price, spares included; None where a chip has none."""
    hourly = usd_per_h(run)
    return None if hourly is None else hourly * days * DAY_S / HOUR_S


def goodput(run: Run, failures: Failures | None = None, inner_step_s: float | None = None) -> float:
    """The share of chip-time that trains the model. A group that stops together fails at a rate r; each failure loses
    the work since the last save, one of which comes after each C seconds of work and takes c; a failure while the group
    stands still for S starts the stop anew:

        goodput = r C / (exp(r (C + c)) - 1) exp(-r S)

    The group is all chips under data parallelism, with C between checkpoints; one replica's under DiLoCo, with C a
    window of H steps and c = 0. `failures` in place of the run's; `inner_step_s` saves working that out again.
    """
    failures = failures or run.failures
    chips = run.cluster.chips if run.data_parallel else run.cluster.chips / run.replicas
    if run.data_parallel:
        save_s, stand_s = failures.interval_s(chips), failures.checkpoint_s
    else:
        save_s, stand_s = run.sync_every * (inner_step_s or inner_step(run).total_s), 0.0
    rate = chips / failures.mtbi_s
    between = rate * (save_s + stand_s)
    kept = rate * save_s / math.expm1(between) if between < _HOPELESS else 0.0
    return kept * math.exp(-min(rate * failures.stop_s(run.cluster), _HOPELESS))
