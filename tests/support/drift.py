"""Replicas that drift by noise instead of training: many elements, at the price of a few additions."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

import diloco

SHAPES = {"table": (40, 33), "weight": (130, 211), "bias": (211,), "cube": (7, 11, 13), "scale": ()}
"""29,963 elements: no codec's block divides a tensor, and eight owners have a page of 4,096 each, the last a short
one."""

LARGEST_BYTES = 4 * 130 * 211
HALVES = [["weight", "scale"], ["table", "bias", "cube"]]


class Tensors(nn.Module):
    """Parameters of SHAPES, of unlike magnitudes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        for name, shape in SHAPES.items():
            setattr(self, name, nn.Parameter(torch.randn(shape, generator=generator)))


@torch.no_grad()
def drift(model: Tensors, replica: int, step: int, scale: float = 1e-2) -> None:
    """Adds the noise that replica and step stand for; some of it common to all replicas, as progress is."""
    own = torch.Generator().manual_seed(7919 * step + replica + 1)
    common = torch.Generator().manual_seed(104_729 * step)
    for p in model.parameters():
        p.add_(torch.randn(p.shape, generator=common), alpha=scale)
        p.add_(torch.randn(p.shape, generator=own) ** 3, alpha=scale)


def make_sync(model: Tensors, exchange: object, **options: object) -> diloco.DiLoCo:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return diloco.DiLoCo(model, optimizer, exchange=exchange, hook=False, **{"sync_every": 2, **options})


class Drifters:
    """M of them in one process."""

    def __init__(self, replicas: int, exchange: object = None, **options: object) -> None:
        exchange = exchange or diloco.Local(replicas)
        self.models = [Tensors(m) for m in range(replicas)]
        self.syncs = [make_sync(m, exchange, **options) for m in self.models]
        self.step = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.drift()
            self.sync()

    def drift(self) -> None:
        for m, model in enumerate(self.models):
            drift(model, m, self.step)
        self.step += 1

    def sync(self) -> None:
        for sync in self.syncs:
            sync.step()

    def finish(self) -> None:
        for sync in self.syncs:
            sync.finish()

    def apart(self) -> bool:
        """Whether any two replicas differ in any bit."""
        return len({digest(m) for m in self.models}) > 1


def digest(model: nn.Module) -> str:
    """Of every bit of the weights."""
    return digest_of([p.detach() for _, p in sorted(model.named_parameters())])


def digest_of(tensors: list[Tensor]) -> str:
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.contiguous().numpy().tobytes())
    return total.hexdigest()


def residual_digest(sync: diloco.DiLoCo) -> str:
    kept = sync.state_dict()["local"].get("residual", {})
    return digest_of([kept[name] for name in sorted(kept)])


def flat_weights(model: nn.Module) -> Tensor:
    """In fp64, by name."""
    return torch.cat([p.detach().double().flatten() for _, p in sorted(model.named_parameters())])


def flat_of(views: dict[str, Tensor]) -> Tensor:
    return torch.cat([views[name].double().flatten() for name in sorted(views)])
