"""How a replica's batch becomes gradients, a clipped norm and held-out losses: on one device, or over an island.

Shapes: B sequences, T positions, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from diloco.outer.tensors import clean_name, roster
from diloco.shards import local
from diloco.sync.build import borrowed_names, reshard
from diloco.train.inner import clip_gradients
from diloco.train.loss import lm_loss
from diloco.train.parallel.place import Place
from diloco.train.precision import forward_precision

if TYPE_CHECKING:
    from diloco.train.parallel.pipeline import Pipeline

_EPSILON = 1e-6  # as in torch.nn.utils.clip_grads_with_norm_


class Engine(Protocol):
    """What a replica asks of its devices. Every rank of the island makes the same calls."""

    model: nn.Module
    """What this rank holds of the model."""

    def forward_backward(self, batch_BT: Tensor) -> Tensor:
        """Adds the gradients of a replica's whole batch to what this rank holds. Returns its mean nll in nats per
        token, the same on all ranks."""
        ...

    def clip(self, max_norm: float) -> Tensor:
        """Scales the gradients so that their norm over the island is at most `max_norm`; 0 leaves them. Returns the
        norm before, the same on all ranks."""
        ...

    def sequence_losses(self, weights: dict[str, Tensor], batches: Iterable[Tensor]) -> Iterator[list[float]]:
        """For each batch (B, T), the mean nll of each of its sequences under `weights` in place of the model's own.
        To be read to its end."""
        ...


class OneDevice:
    """The whole model here."""

    def __init__(self, model: nn.Module, device: torch.device, precision: str, z_loss: float = 0.0) -> None:
        self.model, self.device, self.precision, self.z_loss = model, device, precision, z_loss

    def forward_backward(self, batch_BT: Tensor) -> Tensor:
        with forward_precision(self.precision, self.device):
            logits_BTV = self.model(batch_BT[:, :-1])
        loss, nll = lm_loss(logits_BTV, batch_BT[:, 1:], self.z_loss)
        loss.backward()
        return nll.detach()

    def clip(self, max_norm: float) -> Tensor:
        return clip_gradients(self.model, max_norm)

    @torch.no_grad()
    def sequence_losses(self, weights: dict[str, Tensor], batches: Iterable[Tensor]) -> Iterator[list[float]]:
        for batch_BT in batches:
            with forward_precision(self.precision, self.device):
                logits_BTV = functional_call(self.model, weights, (batch_BT[:, :-1],))
            yield per_sequence(logits_BTV, batch_BT[:, 1:]).tolist()


class ManyDevices:
    """This rank's part of a model that is spread over an island.

    `summed`: parameters whose gradients are sums over the tensor ranks, see `plans.py`.
    """

    def __init__(
        self,
        model: nn.Module,
        place: Place,
        precision: str,
        z_loss: float,
        pipeline: Pipeline | None,
        summed: list[nn.Parameter],
    ) -> None:
        self.model, self.place, self.precision, self.z_loss = model, place, precision, z_loss
        self.pipeline, self.summed = pipeline, summed
        self.borrowed = borrowed_names(roster(model), place.island)
        """What another rank counts: norms on several tensor ranks, a tied embedding on the last stage."""

    def forward_backward(self, batch_BT: Tensor) -> Tensor:
        share_BT = self.place.share(batch_BT)
        if self.pipeline:
            nll = self.pipeline.forward_backward(share_BT)
        else:
            nll = OneDevice(self.model, self.place.device, self.precision, self.z_loss).forward_backward(share_BT)
        self._sum_over_tensor_ranks()
        return self.place.sum(nll if self.place.speaks else torch.zeros_like(nll)) / self.place.shape.data

    def _sum_over_tensor_ranks(self) -> None:
        gradients = [local(p.grad) for p in self.summed if p.grad is not None]
        if not gradients:
            return
        total = torch.cat([g.flatten() for g in gradients])
        torch.distributed.all_reduce(total, group=self.place.mesh["tp"].get_group())
        for gradient, part in zip(gradients, total.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def clip(self, max_norm: float) -> Tensor:
        gradients = {clean_name(n): local(p.grad) for n, p in self.model.named_parameters() if p.grad is not None}
        owned = [g for name, g in gradients.items() if name not in self.borrowed]
        squares = torch.zeros((), device=self.place.device)
        if owned:
            squares += torch.stack(torch._foreach_norm(owned)).square().sum().to(squares.device)
        norm = self.place.sum(squares).sqrt()
        if max_norm > 0:
            factor = (max_norm / (norm + _EPSILON)).clamp(max=1.0)
            for gradient in gradients.values():
                gradient.mul_(factor.to(gradient.device))
        return norm

    @torch.no_grad()
    def sequence_losses(self, weights: dict[str, Tensor], batches: Iterable[Tensor]) -> Iterator[list[float]]:
        """All ranks of the island take part; none gathers weights that are not its own."""
        with swapped(self.model, weights):
            for batch_BT in batches:
                yield self._batch_losses(batch_BT)

    def _batch_losses(self, batch_BT: Tensor) -> list[float]:
        count, ranks = len(batch_BT), self.place.shape.data
        padding = batch_BT[-1:].expand(-count % ranks, -1)
        share_BT = self.place.share(torch.cat([batch_BT, padding]))
        losses_B = self._losses(share_BT)
        silent = torch.zeros(len(share_BT), device=self.place.device)
        rows = self.place.gather(losses_B if self.place.speaks and losses_B is not None else silent)
        shape = self.place.shape
        # (pp, dp, fsdp, tp, B): only the last stage and the first tensor rank know them.
        known = rows.view(shape.pp, shape.data, shape.tp, -1)[-1, :, 0]
        return known.flatten()[:count].tolist()

    def _losses(self, batch_BT: Tensor) -> Tensor | None:
        def use(logits_BTV: Tensor) -> Tensor:
            return per_sequence(logits_BTV, batch_BT[:, 1:])

        if self.pipeline:
            return self.pipeline.forward(batch_BT[:, :-1], use)
        with forward_precision(self.precision, self.place.device):
            return use(self.model(batch_BT[:, :-1]))


def per_sequence(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Mean nll of each sequence, each by itself, so that it does not hang upon what it is batched with."""
    rows = range(len(targets_BT))
    return torch.stack([lm_loss(logits_BTV[b : b + 1], targets_BT[b : b + 1])[1] for b in rows])


@contextlib.contextmanager
def swapped(model: nn.Module, weights: dict[str, Tensor]) -> Iterator[None]:
    """Within it a model's parameters have other values; afterwards, their own bits again. No parameter is replaced, so
    that sharded ones stay what they are."""
    own = {name: part.clone() for name, part in _parts(model).items() if name in weights}
    _fill(model, weights)
    try:
        yield
    finally:
        reshard(model)
        _fill(model, own)


def _parts(model: nn.Module) -> dict[str, Tensor]:
    return {clean_name(name): local(p) for name, p in model.named_parameters()}


def _fill(model: nn.Module, weights: dict[str, Tensor]) -> None:
    for name, part in _parts(model).items():
        if name in weights:
            part.copy_(local(weights[name]))
