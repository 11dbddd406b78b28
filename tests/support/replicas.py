"""Toy replicas that differ, for tests of syncs: a small model on noise, its data a function of (replica, step)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import diloco


def small_model(seed: int = 0) -> nn.Module:
    """Odd sizes, a 1-D parameter and a scalar parameter, so that no shape is special."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 3))
    model.scale = nn.Parameter(torch.tensor(1.3))
    return model


def loss_of(model: nn.Module, replica: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * replica + step)
    x, y = torch.randn(8, 5, generator=generator), torch.randn(8, 3, generator=generator)
    return (model(x) * getattr(model, "scale", 1.0) - y).square().mean()


def inner_step(model: nn.Module, optimizer: torch.optim.Optimizer, replica: int, step: int) -> float:
    loss = loss_of(model, replica, step)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


class Fleet:
    """M replicas in one process."""

    def __init__(
        self, replicas: int, build: Callable[[int], nn.Module] = small_model, lr: float = 0.05, **options: object
    ) -> None:
        exchange = diloco.Local(replicas)
        self.models = [build(m) for m in range(replicas)]
        self.optimizers = [
            torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=lr) for m in self.models
        ]
        self.syncs = [
            diloco.DiLoCo(m, o, exchange=exchange, **{"sync_every": 4, **options})
            for m, o in zip(self.models, self.optimizers, strict=True)
        ]
        self.step = 0

    def run(self, steps: int, each: Callable[[int, int], None] | None = None) -> list[list[float]]:
        """Steps all replicas in turn; `each(replica, step)` is called just before each optimizer step's backward
        pass."""
        losses = []
        for _ in range(steps):
            row = []
            for m, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
                if each:
                    each(m, self.step)
                row.append(inner_step(model, optimizer, m, self.step))
            losses.append(row)
            self.step += 1
        return losses

    def finish(self) -> None:
        for sync in self.syncs:
            sync.finish()

    def weights(self, replica: int = 0) -> Tensor:
        return weights_of(self.models[replica])


def weights_of(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


def trees_of(fleet: Fleet) -> list[dict]:
    """The live state of every replica, for a checkpoint."""
    return [
        {"model": m.state_dict(), "inner": o.state_dict(), "sync": s.state_dict()}
        for m, o, s in zip(fleet.models, fleet.optimizers, fleet.syncs, strict=True)
    ]


def restored(fleet: Fleet, trees: list[dict], step: int) -> Fleet:
    """The fleet as it was at inner step `step`."""
    for m, tree in enumerate(trees):
        fleet.models[m].load_state_dict(tree["model"])
        fleet.optimizers[m].load_state_dict(tree["inner"])
        fleet.syncs[m].load_state_dict(tree["sync"])
    fleet.step = step
    return fleet


def states(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}
