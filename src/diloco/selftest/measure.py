"""Distances between weights, in the unit that rounding has."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Named = dict[str, Tensor]


def mean_of(weights: Sequence[Named]) -> Named:
    """In fp64, from the replicas' own tensors: independent of how the exchange adds up."""
    return {name: torch.stack([w[name].double() for w in weights]).mean(0) for name in weights[0]}


def between(start: Named, end: Named, share: float) -> Named:
    """start + share * (end - start), in fp64."""
    return {name: start[name].double() + share * (end[name].double() - start[name].double()) for name in start}


def worst_ulp(found: Named, wanted: Named, seen: Sequence[Named]) -> tuple[float, str]:
    """The largest distance between `found` and `wanted` and the tensor it is in.

    In units in the last place, fp32, of the largest number that went into the element: `seen` holds them.
    """
    worst, where = 0.0, ""
    for name, value in found.items():
        size = torch.stack([s[name].abs().double() for s in seen]).amax(0).float()
        ulp = torch.nextafter(size, torch.full_like(size, torch.inf)).double() - size.double()
        off = ((value.double() - wanted[name]).abs() / ulp).nan_to_num(nan=torch.inf).max().item()
        if off > worst or not where:
            worst, where = off, name
    return worst, where


def first_difference(left: Named, right: Named) -> str | None:
    """The first tensor that is not the same to the bit."""
    return next((name for name in left if not torch.equal(left[name], right[name])), None)
