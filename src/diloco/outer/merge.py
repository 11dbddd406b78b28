"""Merging: how the replicas' outer gradients become one.

Every rule here gives each replica a weight whose mean over the replicas that take part is 1. The replicas then send
`weight * outer gradient`, the exchange SUMs, and the sum is divided by the number that take part: never a backend's own
average.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from diloco.errors import BadInput

Weights = Callable[[Sequence[float], Sequence[bool]], list[float]]


def mean(tokens: Sequence[float], alive: Sequence[bool]) -> list[float]:
    """Each replica counts the same (DiLoCo, arXiv 2311.08105, Algorithm 1)."""
    return [1.0 if ok else 0.0 for ok in alive]


def by_tokens(tokens: Sequence[float], alive: Sequence[bool]) -> list[float]:
    """Each replica counts by the tokens it trained on since the last sync: the fair mean for machines of unequal speed.

    Raises BadInput where no replica that takes part has reported a token.
    """
    live = [n for n, ok in zip(tokens, alive, strict=True) if ok]
    if live and not sum(live) > 0:
        raise BadInput(
            "merge is 'tokens' but no tokens were counted in this window: call sync.count_tokens(n) before each step"
        )
    return [n * len(live) / sum(live) if ok else 0.0 for n, ok in zip(tokens, alive, strict=True)]


MERGES: dict[str, Weights] = {"mean": mean, "tokens": by_tokens}


def get_merge(name: str) -> Weights:
    if name not in MERGES:
        raise BadInput(f"merge is {name!r}: give one of {', '.join(MERGES)}")
    return MERGES[name]
