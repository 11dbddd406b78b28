"""The outer step: from (anchor, outer state, contributions) to the next anchor and state.

`outer_step` is the whole of it as a pure function; `OuterState` and `TorchState` apply the same arithmetic in place and
slice by slice, so that a sync of a large model needs no second copy of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from diloco.outer.flat import Flat
from diloco.outer.optimizers import OuterOptimizer, State, Torch
from diloco.outer.rates import rate_at

# A multiple of every vector register's length in elements.
VECTOR_ELEMENTS = 64

NORM_SLICE_ELEMENTS = 1 << 20


def norm_of(vector: Tensor) -> float:
    """The L2 norm of a flat tensor."""
    # In fp64 and in slices of fixed length, so that the thread count leaves no trace in the rounded result.
    parts = [torch.linalg.vector_norm(part, dtype=torch.float64) for part in vector.split(NORM_SLICE_ELEMENTS)]
    return torch.linalg.vector_norm(torch.stack(parts)).item()


Norm = Callable[[Tensor], float]


def merged(contributions: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The weighted outer gradient: SUM in replica order, then divide by the number that take part.

    `weights` have mean 1 over the replicas that take part and are 0 for the others.
    """
    parts = [c if w == 1.0 else c * w for c, w in zip(contributions, weights, strict=True) if w]
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total / len(parts)


def divide(total: Tensor, count: int) -> Tensor:
    """In place. Multiplying by the inverse of a power of two is exact too, and several times faster than dividing."""
    if count & (count - 1) == 0:
        return total.mul_(1.0 / count) if count > 1 else total
    return total.div_(count)


def outer_step(
    outer: OuterOptimizer,
    anchor: Tensor,
    state: State,
    contributions: Sequence[Tensor],
    weights: Sequence[float],
    round: int,
) -> tuple[Tensor, State]:
    """One outer step over flat tensors of equal length; `round` counts outer steps from 1. Changes none of its
    arguments."""
    direction, state = outer.update(merged(contributions, weights), {k: v.clone() for k, v in state.items()}, round)
    lr = rate_at(outer.lr, round)
    if outer.clip is not None:
        lr *= clip_scale(lr * norm_of(direction), outer.clip)
    return anchor.add(direction, alpha=-lr), state


def clip_scale(norm: float, bound: float) -> float:
    """The factor that brings an update of this norm down to the bound."""
    return min(1.0, bound / norm) if norm > 0 else 1.0


class OuterState:
    """An outer optimizer with its state for one flat anchor, which it moves in place.

    `whole` says that `advance` must be given the complete gradient at once: clipping needs the norm of the update
    first.
    """

    def __init__(self, outer: OuterOptimizer, anchor: Tensor) -> None:
        self.outer, self.anchor = outer, anchor
        self.tensors = outer.init(anchor)
        self.whole = outer.clip is not None
        self.one_pass = not self.whole and getattr(outer, "momentum", 0) > 0 and hasattr(outer, "step_in_one_pass")

    def lr(self, round: int) -> float:
        return rate_at(self.outer.lr, round)

    def advance(self, gradient: Tensor, lo: int, hi: int, round: int, norm: Norm = norm_of) -> None:
        """Applies the merged outer gradient of [lo, hi), which it may overwrite; `norm` tells the whole replica's."""
        lr, state = self.lr(round), {k: v[lo:hi] for k, v in self.tensors.items()}
        if self.one_pass:
            # The kernel rounds the last elements of a length that its vectors do not divide in another way, so these
            # take the way below: no bit depends on how the parameters are laid out in fragments and slices.
            whole = (hi - lo) // VECTOR_ELEMENTS * VECTOR_ELEMENTS
            head = {k: v[:whole] for k, v in state.items()}
            self.outer.step_in_one_pass(self.anchor[lo : lo + whole], gradient[:whole], head, lr)
            lo, gradient, state = lo + whole, gradient[whole:], {k: v[whole:] for k, v in state.items()}
            if lo == hi:
                return
        direction, new = self.outer.update(gradient, state, round)
        for key, value in new.items():
            if value is not state[key]:
                state[key].copy_(value)
        if self.outer.clip is not None:
            lr *= clip_scale(lr * norm(direction), self.outer.clip)
        self.anchor[lo:hi].add_(direction, alpha=-lr)

    def state_dict(self) -> State:
        return self.tensors

    def load_state_dict(self, tensors: State) -> None:
        for key, value in self.tensors.items():
            value.copy_(tensors[key])


class TorchState:
    """The same for a torch.optim optimizer, which sees the anchor as one parameter per tensor."""

    whole = True

    def __init__(self, outer: Torch, anchor: Tensor, flat: Flat) -> None:
        self.anchor, self.flat = anchor, flat
        self.parameters = [nn.Parameter(view) for view in flat.named_views(anchor).values()]
        self.optimizer = outer.build(self.parameters)

    def lr(self, round: int) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def advance(self, gradient: Tensor, lo: int, hi: int, round: int, norm: Norm = norm_of) -> None:
        for parameter, view in zip(self.parameters, self.flat.named_views(gradient).values(), strict=True):
            parameter.grad = view
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict) -> None:
        self.optimizer.load_state_dict(state)
