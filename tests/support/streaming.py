"""Streaming DiLoCo (arXiv 2501.18512, Algorithm 2) as a plain loop over parameters, and what it is compared with.

Nothing of the package is used by `plain_history`: it has its own schedule, its own Nesterov as torch writes it, its own
mixing, and takes the outer step when a result is applied, as the paper does, not when it is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from support.replicas import inner_step, small_model
from torch import Tensor, nn

NAMES = ("0.weight", "0.bias", "2.weight", "2.bias", "3.weight", "3.bias", "scale")
"""The trained tensors of `small_model`, in no order that the package has."""

GROUPS = {p: [list(NAMES[i::p]) for i in range(p)] for p in (1, 2, 3, 7)}
"""P fragments, as lists of names."""


@dataclass(frozen=True)
class Case:
    """One way of streaming. lr and momentum are powers of two by default: their products are exact, so whether a
    processor fuses a multiplication with the addition behind it makes no difference, and bits can be compared."""

    fragments: int
    every: int
    overlap: int = 0
    mixing: float | str = 0.0
    lr: float = 0.5
    momentum: float = 0.5
    offsets: tuple[int, ...] | None = None
    steps: int = 0

    @property
    def length(self) -> int:
        """Three rounds of each fragment, the last of them in flight at the end, and a window left open."""
        return self.steps or 3 * self.every + self.every // 2 + 1


def inner_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def flat(model: nn.Module) -> Tensor:
    """All weights as they are, in the order of NAMES."""
    named = dict(model.named_parameters())
    return torch.cat([named[name].detach().flatten() for name in NAMES])


@torch.no_grad()
def _nesterov(anchor: Tensor, buffer: Tensor, gradient: Tensor, case: Case) -> None:
    """torch.optim.SGD(nesterov=True) on one tensor."""
    buffer.mul_(case.momentum).add_(gradient)
    anchor.sub_(case.lr * (gradient + case.momentum * buffer))


def plain_history(replicas: int, case: Case) -> Tensor:
    """The weights of each replica after every inner step, and after the end: [T + 1, M, n]."""
    models = [small_model(0) for _ in range(replicas)]
    optimizers = [inner_optimizer(m) for m in models]
    weights = [dict(m.named_parameters()) for m in models]
    anchor = {name: weights[0][name].detach().clone() for name in NAMES}
    buffer = {name: torch.zeros_like(anchor[name]) for name in NAMES}
    groups, history = GROUPS[case.fragments], []
    offsets = case.offsets or [p * case.every // case.fragments for p in range(case.fragments)]
    sent_at, under_way, left = [0] * case.fragments, {}, {}

    @torch.no_grad()
    def send(p: int, t: int) -> None:
        sent_at[p] = t
        under_way[p] = {}
        for name in groups[p]:
            total = anchor[name] - weights[0][name]
            for m in range(1, replicas):
                total = total + (anchor[name] - weights[m][name])
            under_way[p][name] = total / replicas
            left[name] = [own[name].detach().clone() for own in weights]

    @torch.no_grad()
    def apply(p: int, mixing: float | str) -> None:
        for name, gradient in under_way.pop(p).items():
            _nesterov(anchor[name], buffer[name], gradient, case)
            for own, then in zip(weights, left[name], strict=True):
                if mixing == "rebase":
                    own[name].copy_(anchor[name] + (own[name] - then))
                else:
                    own[name].copy_(mixing * own[name] + (1 - mixing) * anchor[name])

    for t in range(1, case.length + 1):
        for m in range(replicas):
            inner_step(models[m], optimizers[m], m, t - 1)
        for p, offset in enumerate(offsets):
            if t >= case.every and (t - offset) % case.every == 0:
                send(p, t)
            if p in under_way and t - sent_at[p] == case.overlap:
                apply(p, case.mixing if case.overlap else 0.0)
        history.append(torch.stack([flat(m) for m in models]))
    for p in range(case.fragments):
        if p in under_way:
            apply(p, case.mixing)
        if sent_at[p] < case.length:
            send(p, case.length)
            apply(p, 0.0)
        else:
            with torch.no_grad():
                for name in groups[p]:
                    for own in weights:
                        own[name].copy_(anchor[name])
    history.append(torch.stack([flat(m) for m in models]))
    return torch.stack(history)


def history_of(
    models: list[nn.Module], optimizers: list[torch.optim.Optimizer], ranks: range, case: Case, finish: Callable
) -> Tensor:
    """The same of replicas `ranks` whose models are being synced by somebody else."""
    history = []
    for t in range(case.length):
        for model, optimizer, m in zip(models, optimizers, ranks, strict=True):
            inner_step(model, optimizer, m, t)
        history.append(torch.stack([flat(m) for m in models]))
    finish()
    history.append(torch.stack([flat(m) for m in models]))
    return torch.stack(history)
