"""Merging: how the replicas' outer gradients D_m become one.

Every rule first gives each replica a weight; those above 0 take part, and send `weight * D_m`. `combine` makes one
tensor of what they sent. For the linear rules that is the SUM in replica order divided by the number that take part, so
an all-reduce will do: never a backend's own average. `finish` then sees the complete merged fragment, for the one rule
that needs it.

Weights are numbers that every replica computes from the same gathered header, so all replicas decide alike. While any
replica is alive, at least one weight is above 0.
"""

from __future__ import annotations

import difflib
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from diloco.errors import BadInput


class Merge(Protocol):
    """One rule. `tokens`, `norms` and `alive` have one entry per replica; tensors are flat and of equal length."""

    @property
    def name(self) -> str:
        """The canonical spec: `get_merge(rule.name) == rule`."""

    needs_norms: ClassVar[bool]
    """`weights` and `finish` use `norms`, the L2 norms of the outer gradients."""
    linear: ClassVar[bool]
    """`combine` is the sum of the rows divided by their number."""
    least_replicas: ClassVar[int]
    """With fewer replicas in the run the rule means nothing."""
    whole: ClassVar[bool]
    """`finish` must be called, with the complete merged fragment."""
    embeddings_apart: ClassVar[bool]
    """Embeddings have weights of their own (`embedding=True`); `norms` and `finish` are then of the rest."""

    def weights(
        self, tokens: Sequence[float], norms: Sequence[float], alive: Sequence[bool], embedding: bool = False
    ) -> list[float]:
        """What each replica multiplies its outer gradient by: 0 where it is not alive, or the rule gives it no say."""

    def combine(self, rows: Sequence[Tensor]) -> Tensor:
        """The weighted contributions of those that take part, in replica order, as one new tensor: their merge, not
        their sum. Raises ValueError when there are none.
        """

    def finish(
        self, merged: Tensor, norm: float, tokens: Sequence[float], norms: Sequence[float], alive: Sequence[bool]
    ) -> None:
        """Completes `merged` in place, where `whole`; `norm` is that of the whole replica's."""


class _Linear:
    """A rule that is a weighted sum divided by the number that take part."""

    needs_norms: ClassVar[bool] = False
    linear: ClassVar[bool] = True
    least_replicas: ClassVar[int] = 1
    whole: ClassVar[bool] = False
    embeddings_apart: ClassVar[bool] = False

    def combine(self, rows: Sequence[Tensor]) -> Tensor:
        if not rows:
            raise ValueError("no replica takes part in this round: there is nothing to merge")
        total = rows[0].clone()
        for row in rows[1:]:
            total += row
        return total.div_(len(rows))

    def finish(
        self, merged: Tensor, norm: float, tokens: Sequence[float], norms: Sequence[float], alive: Sequence[bool]
    ) -> None:
        pass


@dataclass(frozen=True)
class Mean(_Linear):
    """Each replica counts the same (DiLoCo, arXiv 2311.08105, Algorithm 1)."""

    name: ClassVar[str] = "mean"

    def weights(
        self, tokens: Sequence[float], norms: Sequence[float], alive: Sequence[bool], embedding: bool = False
    ) -> list[float]:
        return [1.0 if ok else 0.0 for ok in alive]


@dataclass(frozen=True)
class ByTokens(_Linear):
    """Each replica counts by the tokens it trained on in the window: the fair mean for machines of unequal speed."""

    name: ClassVar[str] = "tokens"

    def weights(
        self, tokens: Sequence[float], norms: Sequence[float], alive: Sequence[bool], embedding: bool = False
    ) -> list[float]:
        """Raises BadInput where no live replica has reported a token."""
        if any(alive) and not any(n > 0 for n, ok in zip(tokens, alive, strict=True) if ok):
            raise BadInput(
                "merge is 'tokens' but no tokens were counted in this window: call sync.count_tokens(n) before each "
                "step"
            )
        return _token_weights(tokens, alive)


@dataclass(frozen=True)
class Trimmed(_Linear):
    """The mean of each coordinate without its largest and smallest values (Yin et al., arXiv 1803.01498, def. 2).

    `floor(fraction * live)` values are dropped at each end, but at least one. Where that would leave none, as many are
    dropped as leave one or two: with two live replicas or one it is the plain mean.
    """

    fraction: float = 0.25

    linear: ClassVar[bool] = False
    least_replicas: ClassVar[int] = 3

    def __post_init__(self) -> None:
        if not 0 < self.fraction < 0.5:
            raise BadInput(f"merge is '{self.name}': the fraction trimmed at each end must lie between 0 and 0.5")

    @property
    def name(self) -> str:
        return f"trimmed:{self.fraction}"

    def weights(
        self, tokens: Sequence[float], norms: Sequence[float], alive: Sequence[bool], embedding: bool = False
    ) -> list[float]:
        return [1.0 if ok else 0.0 for ok in alive]

    def dropped(self, live: int) -> int:
        """Values dropped at each end of `live`."""
        wanted = math.floor(self.fraction * live + 1e-9)  # 0.29 * 100 is 28.999999999999996
        return min(max(wanted, 1), (live - 1) // 2)

    def combine(self, rows: Sequence[Tensor]) -> Tensor:
        return super().combine(_without_extremes(rows, self.dropped(len(rows))) if rows else rows)


@dataclass(frozen=True)
class Clipped(_Linear):
    """Each outer gradient is scaled down to at most `bound` times the median norm of the live replicas, then averaged.

    Of an even number it is the lower of the two middle norms, so that one replica of two cannot raise its own bound.
    """

    bound: float = 1.0

    needs_norms: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.bound < math.inf:
            raise BadInput(f"merge is '{self.name}': the bound must be a number above 0, such as 1.0")

    @property
    def name(self) -> str:
        return f"clipped:{self.bound}"

    def weights(
        self, tokens: Sequence[float], norms: Sequence[float], alive: Sequence[bool], embedding: bool = False
    ) -> list[float]:
        live = [n for n, ok in zip(norms, alive, strict=True) if ok]
        limit = self.bound * statistics.median_low(live) if live else 0.0
        return [_scale_down(n, limit) if ok else 0.0 for n, ok in zip(norms, alive, strict=True)]


@dataclass(frozen=True)
class RDA(_Linear):
    """Radial-directional averaging (Decoupled DiLoCo, arXiv 2604.21428): mean norm times mean direction,

        (sum w ||v|| / sum w) * unit(sum w unit(v) / sum w),    unit(0) = 0,

    with w the tokens of the window, or 1 where none were counted. Averaging shrinks vectors that disagree; this does
    not. Embeddings are merged by the plain weighted mean, as in the paper.
    """

    name: ClassVar[str] = "rda"
    needs_norms: ClassVar[bool] = True
    whole: ClassVar[bool] = True
    embeddings_apart: ClassVar[bool] = True

    def weights(
        self, tokens: Sequence[float], norms: Sequence[float], alive: Sequence[bool], embedding: bool = False
    ) -> list[float]:
        # Each direction travels at the mean norm, not at norm 1: unit vectors of a large fragment have elements that
        # fp16 would round away. In `finish` any common scale drops out.
        counts = _token_weights(tokens, alive)
        if embedding:
            return counts
        radius = _mean_norm(counts, norms)
        return [w * radius / n if w and n > 0 else w for w, n in zip(counts, norms, strict=True)]

    def finish(
        self, merged: Tensor, norm: float, tokens: Sequence[float], norms: Sequence[float], alive: Sequence[bool]
    ) -> None:
        if norm > 0:
            merged.mul_(_mean_norm(_token_weights(tokens, alive), norms) / norm)


_RULES: dict[str, type[Mean | ByTokens | Trimmed | Clipped | RDA]] = {
    "mean": Mean,
    "tokens": ByTokens,
    "trimmed": Trimmed,
    "clipped": Clipped,
    "rda": RDA,
}
MERGES: tuple[str, ...] = tuple(_RULES)
_WITH_VALUE = ("trimmed", "clipped")


def get_merge(spec: str) -> Merge:
    """The rule called `spec`: a name of MERGES, with a value after a colon for "trimmed:0.25" and "clipped:1.0".

    Raises BadInput for an unknown name or a value outside its range.
    """
    name, colon, value = str(spec).strip().lower().partition(":")
    if name not in _RULES:
        near = difflib.get_close_matches(name, MERGES, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise BadInput(f"merge is {spec!r}: {hint}give one of {', '.join(MERGES)}")
    if not colon:
        return _RULES[name]()
    if name not in _WITH_VALUE:
        raise BadInput(f"merge is {spec!r}: {name} takes no value, give {name!r}")
    try:
        number = float(value)
    except ValueError:
        raise BadInput(
            f"merge is {spec!r}: what follows the colon must be a number, as in {_RULES[name]().name!r}"
        ) from None
    return _RULES[name](number)


def _token_weights(tokens: Sequence[float], alive: Sequence[bool]) -> list[float]:
    """Weights in proportion to tokens, with mean 1 over the live replicas that have any; 1 where none were counted."""
    counted = [n if ok else 0.0 for n, ok in zip(tokens, alive, strict=True)]
    total, some = sum(counted), sum(n > 0 for n in counted)
    return [n * some / total for n in counted] if some else [1.0 if ok else 0.0 for ok in alive]


def _mean_norm(weights: Sequence[float], norms: Sequence[float]) -> float:
    total = sum(weights)  # a norm left out may be NaN
    return sum(w * n for w, n in zip(weights, norms, strict=True) if w) / total if total > 0 else 0.0


def _scale_down(norm: float, limit: float) -> float:
    return limit / norm if norm > limit else 1.0


def _without_extremes(rows: Sequence[Tensor], drop: int) -> list[Tensor]:
    """The rows without the `drop` largest and smallest values of each coordinate, in no particular order.

    Rows are compared pairwise as whole vectors: a bubble sort that stops once both ends are in place, several times
    faster than sorting every coordinate by itself.
    """
    kept = list(rows)
    for done in range(drop):
        last = len(kept) - 1 - done
        for i in range(done, last):
            kept[i], kept[i + 1] = torch.minimum(kept[i], kept[i + 1]), torch.maximum(kept[i], kept[i + 1])
        for i in range(last - 1, done, -1):
            kept[i - 1], kept[i] = torch.minimum(kept[i - 1], kept[i]), torch.maximum(kept[i - 1], kept[i])
    return kept[drop : len(kept) - drop]
