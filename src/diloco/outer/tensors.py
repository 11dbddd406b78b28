"""Which tensors of a model take part in a sync, and how.

Trained parameters are merged and stepped, each exactly once (tied once, frozen never, unused ones too). Persistent
float buffers, such as BatchNorm's running statistics, are averaged but never put through the outer optimizer, whose
momentum would drive a variance below zero. Integer counters are left alone, or brought to their maximum. Non-persistent
buffers (rotary caches) are constants.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diloco.errors import BadInput
from diloco.shards import local, piece

# What torch puts into a parameter's name when a module is wrapped; two replicas may be wrapped differently.
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


def clean_name(name: str) -> str:
    """The parameter's name without the prefixes of torch.compile, activation checkpointing and
    DistributedDataParallel."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


@dataclass(frozen=True)
class Roster:
    """A model's tensors by cleaned name, sorted by it, so that replicas match by name and not by order of
    construction."""

    trained: dict[str, Tensor]
    averaged: dict[str, Tensor]
    counters: dict[str, Tensor]

    def description(self) -> list[str]:
        """One line a tensor: what two replicas must have in common."""
        groups = (("trained", self.trained), ("averaged", self.averaged), ("counter", self.counters))
        return [f"{kind} {name} {_shape(t)} {t.dtype}" for kind, group in groups for name, t in group.items()]


def roster(model: nn.Module) -> Roster:
    """Raises BadInput when the model has no trainable parameter."""
    root = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    trained = {clean_name(n): p for n, p in root.named_parameters() if p.requires_grad}
    if not trained:
        raise BadInput("model has no parameter with requires_grad=True: there is nothing to train or to merge")
    persistent = root.state_dict().keys()
    buffers = {clean_name(n): b for n, b in root.named_buffers() if n in persistent}
    return Roster(
        trained=_sorted(trained.items()),
        averaged=_sorted((n, b) for n, b in buffers.items() if b.is_floating_point()),
        counters=_sorted((n, b) for n, b in buffers.items() if not b.is_floating_point() and b.dtype != torch.bool),
    )


def _shape(tensor: Tensor) -> str:
    part = "".join(f" {dim}:{place}" for dim, place in piece(tensor))
    return f"{tuple(tensor.shape)}" + (f" of which {tuple(local(tensor).shape)} at{part}" if part else "")


def _sorted(items: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    return dict(sorted(items))
