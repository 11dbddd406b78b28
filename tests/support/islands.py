"""Replicas that are islands of several processes, for tests of syncs, beside the same replicas unsharded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from support.replicas import inner_step
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import diloco

MESH_NAMES = ("replica", "fsdp", "tp")


def island_model(seed: int = 0) -> nn.Module:
    """Three blocks, with 7 rows to divide by two, gains and biases; and a scalar of its own kind."""
    torch.manual_seed(seed)
    blocks = [nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 5), nn.LayerNorm(5)) for _ in range(3)]
    return nn.Sequential(nn.Linear(5, 5), nn.Sequential(*blocks), nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))


def wide_model(seed: int = 0) -> nn.Module:
    """Its shards, of two uneven ones too, begin at multiples of every codec's block in the whole tensors."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(5, 2048, bias=False), nn.Sequential(), nn.Tanh(), nn.Identity(), nn.Linear(2048, 3, bias=False)
    )


def shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    if mesh["tp"].size() > 1:
        for block in model[1]:
            parallelize_module(block, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    if mesh["fsdp"].size() > 1:
        for block in model[1]:
            fully_shard(block, mesh=mesh["fsdp"])
        fully_shard(model, mesh=mesh["fsdp"])
    return model


def whole(tensor: Tensor) -> np.ndarray:
    """All of a tensor, gathered from its shards; an array, since a tensor travels between processes as shared memory
    that dies with its maker."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().numpy().copy()


def inner_optimizer(model: nn.Module, lr: float = 0.02) -> torch.optim.Optimizer:
    """DTensors and plain tensors apart, since torch's fused kernels take one kind at a time."""
    groups: dict[bool, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        groups.setdefault(hasattr(parameter, "to_local"), []).append(parameter)
    return torch.optim.AdamW([{"params": group} for group in groups.values()], lr=lr)


class Member:
    """One rank's share of a replica."""

    def __init__(self, mesh: DeviceMesh, **options: Any) -> None:
        self.replica = mesh.get_local_rank("replica")
        self.model = shard(options.pop("build", island_model)(self.replica), mesh)
        self.optimizer = inner_optimizer(self.model)
        self.messages: list[diloco.Message] = []
        exchange = diloco.Collective(mesh, dim="replica", on_message=self.messages.append)
        if sites := options.pop("sites", None):
            exchange = diloco.Hierarchical(exchange, sites=sites, every=2)
        self.sync = diloco.DiLoCo(self.model, self.optimizer, exchange=exchange, **{"sync_every": 4, **options})

    def step(self, step: int) -> float:
        self.sync.count_tokens(10 + 5 * self.replica)
        return inner_step(self.model, self.optimizer, self.replica, step)

    def weights(self) -> dict[str, np.ndarray]:
        return {name: whole(p) for name, p in self.model.named_parameters()}


def make_mesh(replicas: int, fsdp: int, tp: int) -> DeviceMesh:
    return init_device_mesh("cpu", (replicas, fsdp, tp), mesh_dim_names=MESH_NAMES)


def history(mesh: DeviceMesh, steps: int, options: dict, each: Callable[[Member, int], None] | None = None) -> dict:
    """Losses and, in the end, weights, anchor and reports of this rank's replica."""
    member, losses = Member(mesh, **options), []
    for step in range(steps):
        if each:
            each(member, step)
        losses.append(member.step(step))
    member.sync.finish()
    return {
        "losses": losses,
        "weights": member.weights(),
        "anchor": {name: whole(t) for name, t in member.sync.anchor().items()},
        "reports": [vars(r) for r in member.sync.rounds],
        "bytes": sum(m.bytes_sent for m in member.messages),
    }


def unsharded(replicas: int, steps: int, options: dict, each: Callable[[Any, int], None] | None = None) -> list[dict]:
    """The same for every replica, all in this process."""
    options = dict(options)
    exchange = diloco.Local(replicas)
    if sites := options.pop("sites", None):
        exchange = diloco.Hierarchical(exchange, sites=sites, every=2)
    build = options.pop("build", island_model)
    models = [build(m) for m in range(replicas)]
    inner = [inner_optimizer(m) for m in models]
    syncs = [
        diloco.DiLoCo(m, o, exchange=exchange, **{"sync_every": 4, **options})
        for m, o in zip(models, inner, strict=True)
    ]
    losses: list[list[float]] = [[] for _ in models]
    for step in range(steps):
        for m, (model, optimizer, sync) in enumerate(zip(models, inner, syncs, strict=True)):
            if each:
                each(_Whole(m, model), step)
            sync.count_tokens(10 + 5 * m)
            losses[m].append(inner_step(model, optimizer, m, step))
    for sync in syncs:
        sync.finish()
    return [
        {
            "losses": losses[m],
            "weights": {name: whole(p) for name, p in models[m].named_parameters()},
            "anchor": {name: whole(t) for name, t in syncs[m].anchor().items()},
            "reports": [vars(r) for r in syncs[m].rounds],
        }
        for m in range(replicas)
    ]


class _Whole:
    """What a test's `each` may touch of an unsharded replica."""

    def __init__(self, replica: int, model: nn.Module) -> None:
        self.replica, self.model = replica, model


def largest_difference(mine: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> float:
    """Largest difference of any element, relative to the largest element of its tensor."""
    assert sorted(mine) == sorted(theirs)
    return max(float(np.abs(mine[n] - theirs[n]).max() / max(np.abs(theirs[n]).max(), 1e-3)) for n in theirs)
