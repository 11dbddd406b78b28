"""Outer gradients applied one round late, so that a whole round's inner steps hide their transfer.

Eager updates, arXiv 2502.12996. At the boundary t of a fragment the outer gradient D_m(t) is sent and the one sent at
t - H, which has arrived, takes effect:

    delayed   the replica restarts from OuterOpt(theta, D(t-H)): its last window is still under way
    eager     it restarts from OuterOpt(theta_m, D(t-H) + (D_m(t) - D_m(t-H)) / M): its own last window, fresh, and the
              others' of the round before

The eager theta_m differs between replicas. It is kept as the shared anchor, which only takes the complete D(t-H) and
stays bit-identical everywhere, plus an offset of the replica's own: OuterOpt over the differences (D_m(t) -
D_m(t-H)) / M. For outer optimizers that are linear in the gradient (SGD, HeavyBall, Nesterov) the sum of the two is the
paper's theta_m.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diloco.errors import BadInput
from diloco.outer.fragment import Fragment
from diloco.outer.optimizers import SGD, Average, HeavyBall, Nesterov
from diloco.outer.step import OuterState

LATE = ("delayed", "eager")
_LINEAR = (SGD, Average, HeavyBall, Nesterov)


def check_late(mode: str, outer: object) -> None:
    """Raises BadInput for an outer optimizer that eager updates cannot be split over."""
    if mode == "eager" and not (isinstance(outer, _LINEAR) and outer.clip is None):
        names = ", ".join(c.__name__ for c in _LINEAR)
        raise BadInput(
            f"overlap is 'eager', which needs an outer optimizer that is linear in the gradient ({names}, without "
            "clip): use one of them, or overlap='delayed'"
        )


class Late:
    """What one replica keeps of a fragment between boundaries. Gives the fragment a `start` of its own."""

    def __init__(self, fragment: Fragment, eager: bool, replicas: int) -> None:
        self.fragment, self.replicas = fragment, replicas
        fragment.start = fragment.anchor.clone()
        self.offset: Tensor | None = torch.zeros_like(fragment.anchor) if eager else None
        self.before = torch.zeros_like(fragment.anchor) if eager else None
        self.state = OuterState(fragment.outer, self.offset) if eager else None

    def turn(self, fresh: Tensor | None) -> None:
        """At a boundary, the previous round having landed: restarts the replica.

        `fresh`: its outer gradient D_m(t), None where that is not finite.
        """
        self.fragment.start.copy_(self.fragment.anchor)
        if self.offset is not None:
            fresh = torch.zeros_like(self.before) if fresh is None else fresh
            # The lr of the anchor's own step at this boundary, which has been taken: the two are one outer step.
            number = max(self.fragment.outer_steps, 1)
            self.state.advance((fresh - self.before).div_(self.replicas), 0, len(fresh), number)
            self.before.copy_(fresh)
            self.fragment.start.add_(self.offset)
        self.fragment.restart()

    def reset(self) -> None:
        """Forgets the replica's own part: it starts from the anchor."""
        self.fragment.start.copy_(self.fragment.anchor)
        for tensor in self.tensors().values():
            if tensor is not self.fragment.start:
                tensor.zero_()

    def tensors(self) -> dict[str, Tensor]:
        """All of it, by name, each as long as the fragment."""
        found = {"start": self.fragment.start}
        if self.offset is not None:
            momentum = {f"offset_{key}": value for key, value in self.state.tensors.items()}
            found |= {"offset": self.offset, "before": self.before, **momentum}
        return found
