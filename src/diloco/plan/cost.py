"""Dollars, and the goodput that failures leave, in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass

from diloco.plan.clock import inner_step
from diloco.plan.hardware import Cluster
from diloco.plan.run import Run
from diloco.plan.units import DAY_S, HOUR_S, YEAR_S, format_duration

LONGEST_DAYS = 365_250
"""A thousand years: a run that takes longer never ends."""

_HOPELESS = 700.0
"""Failures between two saves, from which on nothing is left and exp overflows."""


@dataclass(frozen=True)
class Failures:
    """How chips fail, where nobody said. Assumed; `diloco.plan.goodput` plays other cases, failure by failure."""

    mtbi_s: float = YEAR_S
    """Mean time between interruptions of one chip."""
    away_s: float = 1800.0
    """From a failure until the server is whole again."""
    restart_s: float = 300.0
    checkpoint_every_s: float = 1800.0
    """Work between two checkpoints of a data-parallel run; half of it is lost."""

    @property
    def sentence(self) -> str:
        return (
            f"failures: a chip fails once in {self.mtbi_s / DAY_S:.0f} days and its server is back after "
            f"{self.away_s / 60:.0f} min; data parallel waits for it, restarts in {self.restart_s / 60:.0f} min and "
            f"loses half of the {self.checkpoint_every_s / 60:.0f} min between checkpoints; DiLoCo goes on without "
            "that replica, which loses half of its window"
        )


def days_of(seconds: float, useful: float) -> float:
    """Days of `seconds` between failures at a goodput of `useful`; infinity for a run that never ends."""
    days = seconds / useful / DAY_S if useful > 0 else math.inf
    return days if days <= LONGEST_DAYS else math.inf


def format_days(days: float) -> str:
    """1.4134 -> "1.41 days", 0.5 -> "12 h"."""
    if days < 1:
        return format_duration(days * DAY_S)
    if not math.isfinite(days):
        return "never"
    return f"{days:,.0f} days" if days >= 100 else f"{days:.3g} day{'s' * (days > 1)}"


def cost_usd(cluster: Cluster, days: float) -> float | None:
    """Days x chips x price; None where a chip has none."""
    return None if cluster.usd_per_h is None else cluster.usd_per_h * days * DAY_S / HOUR_S


def goodput(run: Run, failures: Failures | None = None, inner_step_s: float | None = None) -> float:
    """The share of chip-time that trains the model. A group that stops together fails at a rate r; each failure loses
    the work since the last save, each C seconds, and a failure while it stands still for S starts the stop anew:

        goodput = r C / (exp(r C) - 1) exp(-r S)

    The group is all chips under data parallelism, with C between checkpoints, and one replica's under DiLoCo, with C a
    window of H steps. `inner_step_s` saves working that out again.
    """
    failures = failures or Failures()
    chips = run.cluster.chips if run.data_parallel else run.cluster.chips / run.replicas
    if run.data_parallel:
        save_s = failures.checkpoint_every_s
    else:
        save_s = run.sync_every * (inner_step_s or inner_step(run).total_s)
    rate = chips / failures.mtbi_s
    kept = rate * save_s / math.expm1(rate * save_s) if rate * save_s < _HOPELESS else 0.0
    return kept * math.exp(-min(rate * (failures.away_s + failures.restart_s), _HOPELESS))
