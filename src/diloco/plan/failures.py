"""How chips fail and what that stops, where a group of chips stands still together: the assumptions of a plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from diloco.errors import BadInput
from diloco.plan.hardware import Cluster, Site
from diloco.units import DAY_S, format_days, format_duration

MTBI_DAYS = 2111.0
"""Of one chip: 419 unexpected interruptions of 16,384 H100s in 54 days (arXiv:2407.21783, Table 5)."""

SERVERS_FOR_A_SPARE = 64
"""One server in so many more is kept idle, where nobody said; a smaller site has none."""

_MANY = 500.0
"""Servers away at once, from which on their number is as good as normal."""


@dataclass(frozen=True)
class Failures:
    """Assumed where nobody said; `diloco.plan.goodput` plays other cases, failure by failure.

    Raises:
        BadInput: a negative number of spare servers.
    """

    mtbi_s: float = MTBI_DAYS * DAY_S
    """Mean time between interruptions of one chip."""
    away_s: float = 1800.0
    """From a failure until the server is whole again."""
    restart_s: float = 300.0
    """To notice a failure, load the last checkpoint and go on, with the server or a spare one."""
    checkpoint_every_s: float | None = None
    """Work between two checkpoints of a data-parallel run; None for the optimum of Young and of Daly."""
    checkpoint_s: float = 10.0
    """In which the chips stand still for one: a copy to the hosts' memory, that is written from there."""
    spare_servers: int | None = None
    """Idle ones at each site, paid for like the others; None for one in 64."""

    def __post_init__(self) -> None:
        if self.spare_servers is not None and self.spare_servers < 0:
            raise BadInput(f"--spares is {self.spare_servers}: give 0 servers for each site or more")

    def spares(self, site: Site) -> int:
        """Servers that wait idle at a site."""
        return site.nodes // SERVERS_FOR_A_SPARE if self.spare_servers is None else self.spare_servers

    def spare_chips(self, cluster: Cluster) -> int:
        """Over all sites."""
        return sum(count * self.spares(site) * site.node_chips for site, count in cluster.counted)

    def interval_s(self, chips: float) -> float:
        """Work between two checkpoints of so many chips: sqrt(2 C MTBI / chips) (Young 1974), C the price of one."""
        optimum_s = math.sqrt(2 * self.checkpoint_s) * math.sqrt(self.mtbi_s / chips)
        return self.checkpoint_every_s or optimum_s

    def stop_s(self, cluster: Cluster) -> float:
        """How long a failure stops its group: a restart, and the server's absence where every spare is out too."""
        waits = sum(count * site.chips * self._no_spare(site) for site, count in cluster.counted) / cluster.chips
        return self.restart_s + waits * self.away_s

    def _no_spare(self, site: Site) -> float:
        return at_least(self.spares(site), site.chips / self.mtbi_s * self.away_s)

    def sentence(self, cluster: Cluster, data_parallel_chips: int, with_replicas: bool = True) -> str:
        """What was assumed, with the option that says otherwise."""
        spares = {self.spares(site) for site in cluster.kinds}
        many = " to ".join(f"{count:,}" for count in sorted({min(spares), max(spares)}))
        instead = f"{many} spare server{'s' * (many != '1')} a site" if max(spares) else "no spare servers"
        given = "" if self.checkpoint_every_s else ", the optimum of Young and of Daly"
        every = format_duration(self.interval_s(data_parallel_chips))
        replicas = "; DiLoCo goes on without that replica, which loses half of its window" if with_replicas else ""
        return (
            f"failures: a chip fails once in {format_days(self.mtbi_s / DAY_S)} (--mtbi), its server is back after "
            f"{format_duration(self.away_s)} (--away), there are {instead} (--spares), a restart takes "
            f"{format_duration(self.restart_s)} (--restart); data parallel stops as a whole and loses half of the "
            f"{every} between checkpoints{given} (--checkpoint-every), each of which stops it for "
            f"{format_duration(self.checkpoint_s)}{replicas}"
        )


@lru_cache(maxsize=4096)
def at_least(count: int, mean: float) -> float:
    """The chance that a Poisson number of `mean` is `count` or more; by its normal limit where the mean is large."""
    if count <= 0:
        return 1.0
    if mean > _MANY:
        return 0.5 * math.erfc((count - 0.5 - mean) / math.sqrt(2 * mean))
    if count > mean + 40 * math.sqrt(mean) + 40:
        return 0.0
    term, below = math.exp(-mean), 0.0
    for index in range(count):
        below += term
        term *= mean / (index + 1)
    return max(0.0, 1 - below)
