"""What the devices of a replica have sent so far, kept across a restart under whatever mesh.

Each device counts its own bytes, and the receipt adds them up. A checkpoint has each device's counts, and those who go
on share the sum, so that none is lost or counted twice. Where they are as many as before each takes up its own.
"""

from __future__ import annotations

from typing import Any

from diloco.outer.report import RoundReport
from diloco.sync import DiLoCo

SENT = "sent"
"""Key of the counts in a unit's tree, each under its device's place; absent where a replica was one device, whose
reports say it all."""


def counts_of(sync: DiLoCo) -> tuple[dict[str, Any], dict[str, Any]]:
    """(of the replica's own tree, of what is the same on all), to be joined to these."""
    island = sync.exchange.island
    if island.size == 1:
        return {}, {}
    own, shared = ({str(island.rank): counts} for counts in _counts(sync))
    return {SENT: own}, {SENT: shared}


def take_up(sync: DiLoCo, own: dict[str, Any], shared: dict[str, Any]) -> None:
    """Gives this device its share of what was sent before. `own`, `shared`: trees that `sync` was restored from."""
    island, (ours, theirs) = sync.exchange.island, _counts(sync)
    ours = _share(own.get(SENT) or {"0": ours}, island.size, island.rank)
    theirs = _share(shared.get(SENT) or {"0": theirs}, island.size, island.rank)
    sync.site_bytes_sent = ours[0]
    for report, (sent, in_site) in zip([*_under_way(sync), *sync.rounds], _pairs([*ours[1:], *theirs]), strict=True):
        report.bytes_sent, report.site_bytes_sent = sent, in_site


def _counts(sync: DiLoCo) -> tuple[list[int], list[int]]:
    """(averages inside the site and rounds under way, rounds that have landed)."""
    return [sync.site_bytes_sent, *_flat(_under_way(sync))], _flat(sync.rounds)


def _under_way(sync: DiLoCo) -> list[RoundReport]:
    return [airborne.round.report for airborne in sync.airborne]


def _flat(reports: list[RoundReport]) -> list[int]:
    return [n for report in reports for n in (report.bytes_sent, report.site_bytes_sent)]


def _pairs(counts: list[int]) -> list[tuple[int, int]]:
    return list(zip(counts[::2], counts[1::2], strict=True))


def _share(by_place: dict[str, list[int]], size: int, place: int) -> list[int]:
    if len(by_place) == size:
        return by_place[str(place)]
    totals = [sum(counts) for counts in zip(*by_place.values(), strict=True)]
    return [total // size + (place < total % size) for total in totals]
