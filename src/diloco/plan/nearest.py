"""The nearest split of chips that a question is accepted with, found by asking."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import islice
from typing import TYPE_CHECKING

from diloco.errors import BadInput

if TYPE_CHECKING:
    from diloco.plan.asked import Asked
    from diloco.plan.hardware import Site

SPLITS = ("replicas", "tensor", "pipeline")
"""Options that one another, the sites, the model and its memory bound: what one of them allows another may not."""

TRIED = 30
"""Values asked about, nearest first, before the option is said to be left out."""

_REFUSED = re.compile(r"((?:--\w+ is [\d,]+(?: and )?)+)(, .*): give (.*)", re.DOTALL)


def accepted_instead(
    asked: Asked, refusal: str, sites: Callable[[], Sequence[Site]], read: Callable[[Asked], object]
) -> str:
    """A refusal whose "give ..." is a value that is then accepted.

    Where a question without these options is refused too, that refusal.
    """
    found = _REFUSED.fullmatch(refusal)
    named = tuple(name for name in SPLITS if found and f"--{name} is" in found[1])
    if found is None or not named or any(getattr(asked, name) is None for name in named):
        return refusal
    given = tuple(name for name in SPLITS if getattr(asked, name) is not None)
    if without := _refusal_of(replace(asked, **dict.fromkeys(given)), read):
        return without
    for names in dict.fromkeys((named, given)):
        for other in islice(_others(asked, names, sites()), TRIED):
            if _refusal_of(other, read) is None:
                return f"{found[1]}{found[2]}: give {_words(asked, other, named)}"
    return f"{found[1]}{found[2]}: leave {' and '.join(f'--{name}' for name in given)} out"


def _refusal_of(asked: Asked, read: Callable[[Asked], object]) -> str | None:
    try:
        read(asked)
    except BadInput as error:
        return str(error)
    return None


def _others(asked: Asked, names: tuple[str, ...], sites: Sequence[Site]) -> Iterator[Asked]:
    """Nearest first; of those as near, what changes only the options named. A split's other half may change too."""
    chips = reduce(math.gcd, (site.chips for site in sites))
    now = {"replicas": asked.replicas or len(sites), "tensor": asked.tensor or 1, "pipeline": asked.pipeline or 1}
    counts = [parts * len(sites) for parts in _divisors(chips)] if "replicas" in names else [now["replicas"]]
    split = {"tensor", "pipeline"} & set(names)
    found = []
    for count in counts:
        each = max(1, chips * len(sites) // count)
        sizes = _divisors(each)
        pairs = [(t, p) for t in sizes for p in sizes if each % (t * p) == 0]
        for pair in pairs if split else [(now["tensor"], now["pipeline"])]:
            changed = dict(zip(now, (count, *pair), strict=True))
            beside = sum(changed[name] != now[name] for name in now if name not in names)
            found.append((sum(_doublings(changed[name], now[name]) for name in now), beside, changed))
    for _, _, changed in sorted(found, key=lambda one: one[:2]):
        yield replace(
            asked, **{name: size for name, size in changed.items() if name in names or (split and name != "replicas")}
        )


def _words(asked: Asked, other: Asked, named: tuple[str, ...]) -> str:
    """ "4"; "4 and 4" of two that are named; "--tensor 2 and --pipeline 4" where others must change too."""
    changed = [name for name in SPLITS if (getattr(other, name) or 1) != (getattr(asked, name) or 1)]
    if set(changed) <= set(named):
        return " and ".join(str(getattr(other, name)) for name in named)
    return " and ".join(f"--{name} {getattr(other, name)}" for name in changed)


def _divisors(number: int) -> list[int]:
    low = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*low, *(number // n for n in low)})


def _doublings(one: int, other: int) -> float:
    return abs(math.log2(one / other))
