"""From a model to its fragments."""

from __future__ import annotations

import json

import torch
from torch import Tensor, nn

from diloco.outer.codec import Codec
from diloco.outer.codecs.blocked import Blocked
from diloco.outer.flat import linear_view
from diloco.outer.fragment import Fragment, bit_sum
from diloco.outer.island import Island, Shared
from diloco.outer.optimizers import OuterOptimizer, Torch
from diloco.outer.tensors import Roster, clean_name
from diloco.shards import local, piece


def build_fragments(
    model: nn.Module,
    tensors: Roster,
    groups: list[list[str]],
    outer: OuterOptimizer | Torch,
    embeddings_apart: bool,
    device: torch.device | None,
    bucket_bytes: int,
    codec: Codec,
    island: Island,
) -> list[Fragment]:
    """One for each group of names. Buffers travel with the first."""
    device = device or local(next(iter(tensors.trained.values()))).device
    shared = shared_parts(tensors, groups, island)
    embeddings = embedding_names(model) if embeddings_apart else set()
    return [
        Fragment(
            {name: tensors.trained[name] for name in group},
            outer,
            device,
            bucket_bytes,
            codec.block,
            embeddings,
            tensors.averaged if index == 0 else {},
            tensors.counters if index == 0 else {},
            index,
            shared[index],
            codec.block if isinstance(codec, Blocked) else 1,
        )
        for index, group in enumerate(groups)
    ]


def shared_parts(tensors: Roster, groups: list[list[str]], island: Island) -> list[list[Shared]]:
    """What several ranks of the island hold alike, for each group of names; the lowest that has it is its owner."""
    fragment_of = {name: index for index, group in enumerate(groups) for name in group}
    own = {n: [piece(t), local(t).numel(), fragment_of[n]] for n, t in tensors.trained.items()}
    holders: dict[str, list[int]] = {}
    rosters = island.gather_json(own)
    for rank, theirs in enumerate(rosters):
        for name, part in theirs.items():
            holders.setdefault(json.dumps([name, *part]), []).append(rank)
    found: list[list[Shared]] = [[] for _ in groups]
    for key in sorted(k for k, ranks in holders.items() if len(ranks) > 1):
        name, _, numel, index = json.loads(key)
        here = island.rank in holders[key]
        first, *others = holders[key]
        apart = any(rosters[rank] != rosters[first] for rank in others)
        found[index].append(Shared(name if here else None, numel, first == island.rank, apart))
    return found


def borrowed_names(tensors: Roster, island: Island) -> set[str]:
    """Tensors of which a lower rank of the island holds the very part that this rank holds, and counts it."""
    [shared] = shared_parts(tensors, [list(tensors.trained)], island)
    return {s.name for s in shared if s.name is not None and not s.owner}


def reshard(model: nn.Module) -> None:
    """Puts FSDP2's sharded parameters back into the modules, whose root keeps the whole ones after an evaluation."""
    for module in model.modules():
        if hasattr(module, "reshard") and hasattr(module, "unshard"):
            module.reshard()


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
