"""How long inner steps wait for fragments that queue on one link.

Fragment p of P is sent as step floor(p H / P) begins, goes over the link when those before it are through, and its
result is needed tau steps later; a wait delays what follows, later sends included. Delays then form a max-plus linear
system (Baccelli et al., Synchronization and Linearity, 1992, ch. 2-3), whose cycle lasts as long as its longest loop:

    waiting in H steps = max( 0, P link - H step, rho (f - tau step) )

f is a whole exchange and link the part of it for which the link is busy. rho is how often in H steps one exchange can
follow another: sent, awaited, and the next send after that. It is P where a result is needed before the next send
(tau < H / P), and P / q with q = floor(tau P / H) + 1 fragments under way. Sends at uneven gaps (P does not divide H)
have loops of several messages more, which are looked for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

_ALIKE = 1e-12
"""Of the longest time; differences below it are rounding."""


@dataclass(frozen=True)
class _Edge:
    """`target` is at least `source` plus a time, in a period later."""

    source: int
    target: int
    links: int
    rests: int
    steps: int
    """Times of the link, of the rest of an exchange, and of a step hidden, that make up the time."""
    periods: int


@dataclass(frozen=True)
class _Loops:
    """Of one schedule; times aside."""

    rate: float
    """rho."""
    closed: bool
    """Whether the closed form is exact."""
    edges: tuple[_Edge, ...]


def waiting_s(
    sync_every: int, fragments: int, overlap_steps: int, step_s: float, link_s: float, rest_s: float
) -> float:
    """Seconds that H steps wait. A message keeps the link busy for `link_s` and lands `rest_s` after that."""
    loops = _loops(sync_every, fragments, overlap_steps)
    exposed_s = link_s + rest_s - overlap_steps * step_s
    bound_s = max(0.0, fragments * link_s - sync_every * step_s, loops.rate * exposed_s)
    if loops.closed or (exposed_s <= 0 and link_s <= sync_every // fragments * step_s):
        return bound_s
    weighed = [
        (e.source, e.target, e.links * link_s + e.rests * rest_s - e.steps * step_s, e.periods) for e in loops.edges
    ]
    return _longest(2 * fragments, weighed, bound_s, _ALIKE * max(link_s, rest_s, sync_every * step_s))


@lru_cache(maxsize=4096)
def _loops(sync_every: int, fragments: int, overlap_steps: int) -> _Loops:
    sends = [p * sync_every // fragments for p in range(fragments)]
    after = [_send_after(sends, sync_every, send + overlap_steps) for send in sends]
    rate = _rate(after)
    edges = []
    for p, then in enumerate(after):
        before, wraps = (p - 1) % fragments, int(p == 0)
        gap = sends[p] - sends[before] + wraps * sync_every
        edges += [
            _Edge(before, p, 0, 0, 0, wraps),
            _Edge(p, fragments + p, 1, 0, 0, 0),
            _Edge(fragments + before, fragments + p, 1, 0, gap, wraps),
            _Edge(fragments + p, then % fragments, 0, 1, overlap_steps, then // fragments),
        ]
    return _Loops(rate, sync_every % fragments == 0 or rate == fragments, tuple(edges))


def _send_after(sends: Sequence[int], sync_every: int, step: int) -> int:
    """Of endless sends, the first that a wait as `step` begins delays: what is sent in that step goes before it."""
    period, within = divmod(step, sync_every)
    return period * len(sends) + bisect_right(sends, within)


def _rate(after: Sequence[int]) -> float:
    """Exchanges one after another in a period. Each is followed at once: waiting longer never allows for more."""
    count, send, seen = len(after), 0, {}
    for exchanges in range(count + 1):
        if send % count in seen:
            before, first = seen[send % count]
            return (exchanges - before) / ((send - first) // count)
        seen[send % count] = (exchanges, send)
        send += after[send % count] - send % count
    raise AssertionError("among so many exchanges one begins where another did")


def _longest(nodes: int, edges: Sequence[tuple[int, int, float, int]], least: float, alike: float) -> float:
    """The largest time per period around a loop, from a bound below it: as long as some loop is longer, that one's."""
    found = least
    while True:
        loop = _longer_loop(nodes, edges, found, alike)
        if loop is None:
            return found
        longer = sum(time for time, _ in loop) / sum(periods for _, periods in loop)
        if longer <= found:
            return found
        found = longer


def _longer_loop(
    nodes: int, edges: Sequence[tuple[int, int, float, int]], than: float, alike: float
) -> list[tuple[float, int]] | None:
    """Time and periods of the edges of a loop that takes longer than `than` a period (Bellman and Ford)."""
    late, came = [0.0] * nodes, {}
    while True:
        changed = False
        for source, target, time, periods in edges:
            there = late[source] + time - than * periods
            if there > late[target] + alike:
                late[target], came[target], changed = there, (source, time, periods), True
        if not changed:
            return None
        if loop := _loop_of(came):
            return loop


def _loop_of(came: dict[int, tuple[int, float, int]]) -> list[tuple[float, int]]:
    done: set[int] = set()
    for start in came:
        path: dict[int, int] = {}
        node = start
        while node in came and node not in done and node not in path:
            path[node] = len(path)
            node = came[node][0]
        if node in path:
            return [came[other][1:] for other in list(path)[path[node] :]]
        done |= path.keys()
    return []
