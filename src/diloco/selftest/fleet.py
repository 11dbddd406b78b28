"""Replicas of the subject: in this process all of them, in a worker process one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import diloco
from diloco.outer.optimizers import OuterOptimizer
from diloco.selftest.subject import Subject
from diloco.wire.exchange import Exchange


@dataclass
class Member:
    subject: Subject
    model: nn.Module
    optimizer: torch.optim.Optimizer
    sync: diloco.DiLoCo

    @property
    def rank(self) -> int:
        return self.sync.rank

    def inner_step(self, step: int, to_the_optimizer: bool = True) -> float:
        """One inner step; without `to_the_optimizer` only its gradients. Returns the loss."""
        # Dropout, if any, is then a function of step and replica, in one process and in many.
        torch.manual_seed(1_000_003 * self.rank + step)
        loss = self.subject.loss(self.model, step, self.rank)
        loss.backward()
        if to_the_optimizer:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.item()

    def weights(self) -> dict[str, Tensor]:
        """Copies of the trained tensors."""
        return {name: p.detach().clone() for name, p in self.sync.tensors.trained.items()}

    def anchor(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.sync.anchor().items()}

    def tree(self) -> dict:
        """All that a resume needs, as the trainer's checkpoints hold it."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "sync": self.sync.state_dict(),
        }

    def restore(self, tree: dict) -> None:
        self.model.load_state_dict(tree["model"])
        self.optimizer.load_state_dict(tree["optimizer"])
        self.sync.load_state_dict(tree["sync"])


def enlist(subject: Subject, exchange: Exchange, sync_every: int, outer: OuterOptimizer, hook: bool = True) -> Member:
    model = subject.make().train()
    optimizer = subject.optimizer(model)
    sync = diloco.DiLoCo(model, optimizer, sync_every=sync_every, outer=outer, exchange=exchange, hook=hook)
    return Member(subject, model, optimizer, sync)


def fleet(subject: Subject, replicas: int, sync_every: int, outer: OuterOptimizer, hook: bool = True) -> list[Member]:
    """All replicas in this process."""
    exchange = diloco.Local(replicas)
    return [enlist(subject, exchange, sync_every, outer, hook) for _ in range(replicas)]


def march(members: list[Member], first: int, last: int) -> list[list[float]]:
    """Inner steps first..last-1 in lock step; the losses by step and replica."""
    return [[member.inner_step(step) for member in members] for step in range(first, last)]
