"""From a model to its fragments."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from diloco.outer.flat import linear_view
from diloco.outer.fragment import Fragment, bit_sum
from diloco.outer.optimizers import OuterOptimizer, Torch
from diloco.outer.tensors import Roster, clean_name


def build_fragments(
    model: nn.Module,
    tensors: Roster,
    groups: list[list[str]],
    outer: OuterOptimizer | Torch,
    embeddings_apart: bool,
    device: torch.device | None,
    bucket_bytes: int,
    block: int,
) -> list[Fragment]:
    """One for each group of names. Buffers travel with the first."""
    embeddings = embedding_names(model) if embeddings_apart else set()
    return [
        Fragment(
            {name: tensors.trained[name] for name in group},
            outer,
            device,
            bucket_bytes,
            block,
            embeddings,
            tensors.averaged if index == 0 else {},
            tensors.counters if index == 0 else {},
            index,
        )
        for index, group in enumerate(groups)
    ]


def embedding_names(model: nn.Module) -> set[str]:
    """Parameters of the model's nn.Embedding modules, tied ones under every name they have."""
    tables: list[Tensor] = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
    named = model.named_parameters(remove_duplicate=False)
    return {clean_name(name).removeprefix("module.") for name, p in named if any(p is t for t in tables)}


def frozen_sum(model: nn.Module) -> str:
    """A checksum over the weights that are not trained, which have to be equal everywhere."""
    frozen = sorted((clean_name(n), p) for n, p in model.named_parameters() if not p.requires_grad)
    total = sum((2 * i + 1) * int(bit_sum(linear_view(p, n))) for i, (n, p) in enumerate(frozen))
    return f"checksum {total % 2**64:016x}"
