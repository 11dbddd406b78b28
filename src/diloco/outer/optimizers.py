"""Outer optimizers: what turns the merged outer gradient into the next anchor.

Each is a frozen dataclass with two pure functions over flat tensors, in the way of optax:

    init(anchor)                   -> state, tensors of the anchor's own length by name
    update(gradient, state, round) -> (direction, new state)

and the anchor then moves by `anchor -= lr(round) * direction`. The outer gradient is anchor minus replica, so a
positive lr moves *towards* the replicas. `update` must be elementwise: it is called on slices of the anchor, one bucket
after another. It is given its arguments for good and may write its results into them, as the ones here do to spare a
copy; `outer_step` in `step.py` does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from diloco.errors import BadInput
from diloco.outer.rates import Rate, check_rate

State = dict[str, Tensor]


class OuterOptimizer(Protocol):
    """What an outer optimizer has to offer; any object of this shape will do."""

    lr: float | Rate
    clip: float | None

    def init(self, anchor: Tensor) -> State: ...

    def update(self, gradient: Tensor, state: State, round: int) -> tuple[Tensor, State]: ...


def _check(name: str, lr: float | Rate, clip: float | None, **fractions: float) -> None:
    check_rate(f"{name} lr", lr)
    if clip is not None and not (math.isfinite(clip) and clip > 0):
        raise BadInput(f"{name} clip is {clip!r}: give a positive bound for the norm of the outer update, or None")
    for key, value in fractions.items():
        if not 0 <= value < 1:
            raise BadInput(f"{name} {key} is {value!r}: give a number from 0 up to, but not including, 1")


@dataclass(frozen=True)
class SGD:
    """Plain outer step: anchor -= lr * gradient. With lr 1 it is FedAvg: the anchor becomes the replicas' mean."""

    lr: float | Rate = 1.0
    clip: float | None = None

    def __post_init__(self) -> None:
        _check("SGD", self.lr, self.clip)

    def init(self, anchor: Tensor) -> State:
        return {}

    def update(self, gradient: Tensor, state: State, round: int) -> tuple[Tensor, State]:
        return gradient, state


@dataclass(frozen=True)
class Average:
    """Parameter averaging (local SGD): the anchor becomes the merged weights. Nothing to tune."""

    lr: float = 1.0
    clip: None = None

    def __post_init__(self) -> None:
        if self.lr != 1.0 or self.clip is not None:
            raise BadInput(f"Average lr is {self.lr!r}: averaging has neither lr nor clip; use SGD(lr=..., clip=...)")

    def init(self, anchor: Tensor) -> State:
        return {}

    def update(self, gradient: Tensor, state: State, round: int) -> tuple[Tensor, State]:
        return gradient, state


class _OnePass:
    """For momentum optimizers: the whole outer step in one pass over memory, by torch's fused SGD kernel.

    The same operations as `update` and `anchor -= lr * direction`, at half their time, for lengths that vectors divide.
    """

    _nesterov: ClassVar[bool]
    momentum: float

    def step_in_one_pass(self, anchor: Tensor, gradient: Tensor, state: State, lr: float) -> None:
        options = {"momentum": self.momentum, "nesterov": self._nesterov, "lr": lr, "weight_decay": 0.0}
        options |= {"dampening": 0.0, "maximize": False, "has_sparse_grad": False, "foreach": False, "fused": True}
        sgd([anchor], [gradient], [state["momentum"]], **options)


@dataclass(frozen=True)
class HeavyBall(_OnePass):
    """Classical momentum: m <- momentum * m + gradient; anchor -= lr * m.

    With lr 1 the new anchor is the replicas' mean plus the momentum carried over: the article's `w = mean + momentum`.
    """

    _nesterov: ClassVar[bool] = False
    lr: float | Rate = 1.0
    momentum: float = 0.9
    clip: float | None = None

    def __post_init__(self) -> None:
        _check("HeavyBall", self.lr, self.clip, momentum=self.momentum)

    def init(self, anchor: Tensor) -> State:
        return {"momentum": torch.zeros_like(anchor)}

    def update(self, gradient: Tensor, state: State, round: int) -> tuple[Tensor, State]:
        momentum = state["momentum"].mul_(self.momentum).add_(gradient)
        return momentum, {"momentum": momentum}


@dataclass(frozen=True)
class Nesterov(_OnePass):
    """Nesterov momentum as torch writes it (Async Local-SGD, arXiv 2401.09135, eq. 4; DiLoCo's choice, arXiv
    2311.08105).

    m <- momentum * m + gradient; anchor -= lr * (gradient + momentum * m). The first step is (1 + momentum) * lr times
    the merged outer gradient: 1.33 of it at 0.7 / 0.9.
    """

    _nesterov: ClassVar[bool] = True
    lr: float | Rate = 0.7
    momentum: float = 0.9
    clip: float | None = None

    def __post_init__(self) -> None:
        _check("Nesterov", self.lr, self.clip, momentum=self.momentum)

    def init(self, anchor: Tensor) -> State:
        return {"momentum": torch.zeros_like(anchor)}

    def update(self, gradient: Tensor, state: State, round: int) -> tuple[Tensor, State]:
        # Products and sums in torch.optim.SGD's own order, so that the two agree to the bit.
        momentum = state["momentum"].mul_(self.momentum).add_(gradient)
        return gradient.add_(momentum, alpha=self.momentum), {"momentum": momentum}


@dataclass(frozen=True)
class Adam:
    """Outer Adam without decay. DiLoCo (arXiv 2311.08105) needed eps 0.1 to keep it stable, hence the default."""

    lr: float | Rate = 0.3
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 0.1
    clip: float | None = None

    def __post_init__(self) -> None:
        _check("Adam", self.lr, self.clip, beta1=self.beta1, beta2=self.beta2)
        if not (math.isfinite(self.eps) and self.eps > 0):
            raise BadInput(f"Adam eps is {self.eps!r}: give a positive number")

    def init(self, anchor: Tensor) -> State:
        return {"first_moment": torch.zeros_like(anchor), "second_moment": torch.zeros_like(anchor)}

    def update(self, gradient: Tensor, state: State, round: int) -> tuple[Tensor, State]:
        first = state["first_moment"].lerp_(gradient, 1 - self.beta1)
        second = state["second_moment"].mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        denominator = (second.sqrt() / math.sqrt(1 - self.beta2**round)).add_(self.eps)
        return first / denominator / (1 - self.beta1**round), {"first_moment": first, "second_moment": second}


@dataclass(frozen=True)
class Custom:
    """A user's own pair of functions with the signatures at the top of this file."""

    init: Callable[[Tensor], State]
    update: Callable[[Tensor, State, int], tuple[Tensor, State]]
    lr: float | Rate = 1.0
    clip: float | None = None

    def __post_init__(self) -> None:
        _check("Custom", self.lr, self.clip)


@dataclass(frozen=True)
class Torch:
    """Any torch.optim class as the outer optimizer: `Torch(torch.optim.AdamW, lr=0.3, eps=0.1)`.

    It gets the anchor as one fp32 parameter per tensor, so optimizers that look at shapes work too; the price is that
    the merged outer gradient is held whole for the length of the outer step.
    """

    factory: Callable[..., torch.optim.Optimizer]
    options: tuple[tuple[str, object], ...]

    def __init__(self, factory: Callable[..., torch.optim.Optimizer], **options: object) -> None:
        object.__setattr__(self, "factory", factory)
        object.__setattr__(self, "options", tuple(sorted(options.items())))

    def build(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """Raises BadInput where the class refuses its options."""
        try:
            return self.factory(parameters, **dict(self.options))
        except (TypeError, ValueError) as error:
            raise BadInput(f"outer optimizer {_name(self.factory)} refuses {dict(self.options)}: {error}") from error


def _name(factory: object) -> str:
    return getattr(factory, "__name__", None) or repr(factory)


def as_outer(outer: object) -> OuterOptimizer | Torch:
    """Accepts what `DiLoCo(outer=...)` may be given: one of the above, (init, update), or a torch.optim class or
    factory."""
    if isinstance(outer, tuple) and len(outer) == 2 and all(callable(f) for f in outer):
        return Custom(*outer)
    if isinstance(outer, Torch) or all(hasattr(outer, name) for name in ("init", "update", "lr")):
        return outer
    if callable(outer):
        return Torch(outer)
    raise BadInput(
        f"outer is {outer!r}: give an outer optimizer such as Nesterov(lr=0.7, momentum=0.9), a pair (init, update), "
        "or a torch.optim class"
    )


def describe(outer: OuterOptimizer | Torch) -> str:
    """One line that is equal on two machines exactly when the outer optimizers are configured alike."""
    if isinstance(outer, Torch):
        return f"{_name(outer.factory)}({', '.join(f'{k}={v!r}' for k, v in outer.options)})"
    if isinstance(outer, Custom):
        return f"Custom({_name(outer.init)}, {_name(outer.update)}, lr={outer.lr!r}, clip={outer.clip!r})"
    return repr(outer)
