"""Two levels: replicas near one another average often, the sites meet seldom.

A round goes up and down a tree: the members of a site sum their outer gradients at the site's leader, the leaders
exchange theirs (with the codec, since theirs is the slow link), and each spreads the result in its site. That is what a
"tree all-reduce" comes to where only two kinds of link matter. NCCL has trees of its own inside one collective:
NCCL_ALGO=Tree chooses them (NCCL_ALGO=Ring the rings), and NCCL_CROSS_NIC=1 lets them cross network cards.
"""

from __future__ import annotations

from collections.abc import Sequence

from diloco.errors import BadInput
from diloco.outer.dialogue import Topology
from diloco.wire.collective import Collective
from diloco.wire.local import Local


def Hierarchical(  # noqa: N802 (it is used like the exchanges it makes)
    exchange: Local | Collective | None = None, *, sites: int | Sequence[Sequence[int]], every: int = 0
) -> Local | Collective:
    """The exchange, divided into sites.

    Args:
        exchange: `Local(...)` or `Collective(...)`; by default a Collective over all ranks.
        sites: how many, of consecutive ranks and equal size; or the ranks of each.
        every: H1, inner steps between two averages of the weights inside a site; 0 for none. `DiLoCo(sync_every=...)`
            is then H2, between the sites.

    Raises:
        BadInput: sites that do not hold every replica exactly once.
    """
    exchange = exchange or Collective()
    if isinstance(every, bool) or not isinstance(every, int) or every < 0:
        raise BadInput(f"every is {every!r}: give a whole number of inner steps, or 0 for no averages inside a site")
    exchange.arrange(Topology(divide_into_sites(exchange.replicas, sites)), every)
    return exchange


def divide_into_sites(replicas: int, sites: int | Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """The ranks of each site. Raises BadInput where they cannot be told, with the nearest number that works."""
    if isinstance(sites, int) and not isinstance(sites, bool):
        if sites < 1 or replicas % sites:
            fits = [n for n in range(1, replicas + 1) if replicas % n == 0]
            nearest = min(fits, key=lambda n: abs(n - sites))
            raise BadInput(f"sites is {sites}, which does not divide {replicas} replicas: the nearest is {nearest}")
        size = replicas // sites
        return tuple(tuple(range(s * size, (s + 1) * size)) for s in range(sites))
    if not isinstance(sites, Sequence) or not all(isinstance(s, Sequence) and not isinstance(s, str) for s in sites):
        raise BadInput(f"sites are {sites!r}: give how many, or a list of the ranks of each, as in [[0, 1], [2, 3]]")
    ranks = [rank for site in sites for rank in site]
    if sorted(ranks) != list(range(replicas)) or not all(sites):
        raise BadInput(f"sites are {sites!r}: each of the replicas 0 to {replicas - 1} must be in exactly one of them")
    # In rank order, and sites by their leaders, so that two ways of writing it down are one.
    return tuple(sorted(tuple(sorted(site)) for site in sites))
