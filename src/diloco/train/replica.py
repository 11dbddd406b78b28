"""One replica: a model, its inner optimizer, and its inner step.

Shapes: B sequences, T positions, S shards of the global batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from diloco.outer.fragments import Fragmentation, Stage
from diloco.outer.late import LATE
from diloco.outer.optimizers import Average
from diloco.outer.report import RoundReport
from diloco.outer.schedule import count_rounds
from diloco.shards import local
from diloco.sync import DiLoCo
from diloco.train.config import TrainConfig
from diloco.train.data import Data
from diloco.train.inner import build_inner, lr_at, set_lr
from diloco.train.model_source import model_for
from diloco.train.parallel.build import build_engine
from diloco.train.parallel.engine import Engine
from diloco.train.parallel.layers import Options
from diloco.train.world import World
from diloco.wire.exchange import sum_bytes


class Replica:
    """Or this process's part of one, where it is spread over several.

    `shards`: the shards of the global batch it trains on. One for DiLoCo; all of this process's for data parallel.
    """

    def __init__(
        self, config: TrainConfig, data: Data, engine: Engine, total_steps: int, world: World, shards: tuple[int, ...]
    ) -> None:
        self.config, self.data, self.engine, self.total_steps = config, data, engine, total_steps
        self.world, self.shards = world, shards
        self.optimizers = build_inner(self.model, config.inner, total_steps)
        self.sync: DiLoCo | None = None

    @property
    def model(self) -> nn.Module:
        return self.engine.model

    def inner_step(self, step: int) -> Tensor:
        """Inner step `step`, counted from 0. Returns [nll in nats per token, gradient norm before clipping] of each
        shard, [shards, 2] on the model's device.

        The optimizer's step hook runs a round where one is due.
        """
        self.world.exchange.step_begins()
        set_lr(self.optimizers, lr_at(step, self.total_steps, self.config.inner))
        nll_S = torch.stack([self._backward(step, shard) for shard in self.shards])
        if self.sync is None:
            self.world.exchange.step_ends(*self.shards)
            self._average_gradients()
            self.world.exchange.step_begins()
        norm = self.engine.clip(self.config.inner.clip)
        if self.sync is not None:
            self.sync.count_tokens(self.config.batch_tokens // self.world.replicas)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if self.sync is None:
            self.world.exchange.step_ends(*self.shards)
        return torch.stack([nll_S, norm.to(nll_S.device).expand_as(nll_S)], dim=1)

    def finish(self) -> None:
        if self.sync is not None:
            self.sync.finish()

    def global_weights(self) -> dict[str, Tensor]:
        """The newest global weights by parameter name, in the model's dtype: what evaluations and exports use."""
        own = {name: p.detach() for name, p in self.model.named_parameters()}
        if self.sync is None:
            return own
        anchor = self.sync.anchor()
        if self.world.place:
            return anchor  # sharded as the parameters are, and cast where they are put in
        return own | {name: view.to(own[name].device, own[name].dtype) for name, view in anchor.items()}

    def _backward(self, step: int, shard: int) -> Tensor:
        # A function of seed and place alone, so that dropout differs between shards, is the same in one process and in
        # many, and a resume needs no generator state.
        torch.manual_seed(hash((self.config.seed, step, shard)) % 2**63)
        batch_BT = self.data.batch(step, shard, self.world.replicas, self.config.sequences).to(self.world.device)
        return self.engine.forward_backward(batch_BT)

    def _average_gradients(self) -> None:
        """Synchronous data parallel: the mean gradient over all shards, summed in shard order in one process and in
        many."""
        gradients = [local(p.grad) for p in self.model.parameters() if p.grad is not None]
        if not self.world.distributed:
            self.world.exchange.pass_time(sum_bytes(sum(g.nbytes for g in gradients), self.world.replicas))
        else:
            total = self.world.exchange.sum(torch.cat([g.flatten() for g in gradients]))
            for gradient, part in zip(gradients, total.split([g.numel() for g in gradients]), strict=True):
                gradient.copy_(part.view_as(gradient))
        torch._foreach_div_(gradients, self.world.replicas)


def build_replicas(
    config: TrainConfig,
    data: Data,
    model: nn.Module,
    total_steps: int,
    world: World,
    on_round: Callable[[RoundReport], None],
    on_interval: Callable[[int, int, float | None], None],
    codec: str,
) -> list[Replica]:
    """This process's replicas, all from the same initial weights. `on_round` hears of every round once in each
    process, `on_interval` of every change of H; `codec` is the configured one, or what it was before a resume."""
    facts = {
        "tokenizer": data.tokenizer.fingerprint,
        "data": data.fingerprint,
        "settings": _shared_settings(config, total_steps),
    }
    if config.method == "dp":
        replica = Replica(config, data, _engine(config, model, world), total_steps, world, world.mine)
        if world.distributed:
            world.exchange.join(facts, [local(t) for t in replica.model.state_dict().values()])
        return [replica]
    interval = config.build_interval(total_steps)
    outer = Average() if config.method == "local-sgd" else config.outer.build(count_rounds(interval, total_steps))
    replicas = []
    models = [model, *(copy.deepcopy(model) for _ in world.mine[1:])]
    for index, rank in enumerate(world.mine):
        replica = Replica(config, data, _engine(config, models[index], world), total_steps, world, (rank,))
        replica.sync = DiLoCo(
            replica.model,
            replica.optimizers,
            sync_every=interval,
            outer=outer,
            fragments=_fragments(config, data, world),
            overlap=config.build_overlap(),
            mixing=config.build_mixing() if config.build_overlap() not in (0, *LATE) else 0.0,
            codec=codec,
            merge=config.merge,
            exchange=world.exchange,
            anchor_device=config.anchor_device or None,
            facts=facts,
            on_round=on_round if index == 0 else None,
            on_interval=on_interval if index == 0 else None,
        )
        replicas.append(replica)
    return replicas


def _engine(config: TrainConfig, model: nn.Module, world: World) -> Engine:
    return build_engine(
        model,
        world.place,
        world.device,
        Options(config.activation_checkpointing, config.compile, config.cpu_offload, config.precision),
        z_loss=config.z_loss,
        microbatches=config.share_out(config.sequences // world.replicas, world.shape),
        schedule=config.pipeline_schedule,
    )


def _fragments(config: TrainConfig, data: Data, world: World) -> Fragmentation:
    """A pipeline's stages have to agree on the fragments of the whole model."""
    if world.shape.pp == 1:
        return config.build_fragments()
    return Stage(config.build_fragments(), model_for(config, data, "meta"))


def _shared_settings(config: TrainConfig, total_steps: int) -> list[str]:
    """The settings that replicas must have in common, one a line so that a difference is named."""
    inner = [f"inner.{name} = {value}" for name, value in vars(config.inner).items()]
    names = ("method", "batch_tokens", "seed", "precision", "z_loss", "eval_every", "checkpoint_every", "stop_at")
    order = [f"data.{name} = {getattr(config.data, name)}" for name in ("seed", "shards", "overlap")]
    return [f"steps = {total_steps}", *(f"{name} = {getattr(config, name)}" for name in names), *inner, *order]
