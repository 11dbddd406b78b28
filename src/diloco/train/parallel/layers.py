"""A model's layers, and what is done to each of them by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from diloco.errors import BadInput


@dataclass(frozen=True)
class Options:
    """How the layers are run."""

    activation_checkpointing: bool = False
    compile: bool = False
    cpu_offload: bool = False
    precision: str = "fp32"


def prepare_layers(layers: list[nn.Module], options: Options) -> None:
    """Activation checkpointing and compilation of each layer, in place: no parameter's name changes."""
    for layer in layers:
        if options.activation_checkpointing:
            layer.forward = _checkpointed(layer.forward)
        if options.compile:
            layer.compile()


def _checkpointed(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def checkpointed(*arguments: Any, **options: Any) -> Tensor:
        return checkpoint(forward, *arguments, use_reentrant=False, **options)

    return checkpointed  # a partial instead would not be compiled, and nobody told


def blocks_of(model: nn.Module) -> nn.ModuleList:
    """The model's layers: its longest nn.ModuleList. Raises BadInput where it has none."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) > 0]
    if not lists:
        raise BadInput(
            f"mesh, activation_checkpointing and compile work on a model's layers, and {type(model).__name__} has no "
            "nn.ModuleList of them: leave them out"
        )
    return max(lists, key=len)
