"""Tensor parallelism: which matrices are cut, and how (Megatron-LM, arXiv:1909.08053 section 3).

The first matrix of attention and of the feed-forward is cut by output (each rank has some heads or channels), the
second by input, and one sum a pair brings the residual stream back to all ranks. Embedding, head and norms are whole on
every rank: they see the same activations everywhere, so their gradients are equal. A norm between the two matrices sees
its rank's heads alone; its gradients have to be summed.

Shapes: B sequences, T positions, D width, N heads of this rank, H channels a head.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from diloco.errors import BadInput
from diloco.train.hf import HFModel
from diloco.train.model import Block

BY_OUTPUT = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
BY_INPUT = ("o_proj", "down_proj")
HEAD_NORMS = ("q_norm", "k_norm")
_FAMILIES = "llama, mistral, qwen2, qwen3, gemma and the like"


class FusedHeads(nn.Module):
    """The query, key and value matrices in one, cut by heads.

    Its weight is the fused matrix as (3, N H, D), of which a rank's heads are one block; the fused (3 N H, D) would
    come apart in three. The memory is the same.
    """

    def __init__(self, fused: nn.Linear, mesh: DeviceMesh) -> None:
        super().__init__()
        whole_3DD = fused.weight.detach().unflatten(0, (3, -1))
        self.weight = nn.Parameter(
            distribute_tensor(whole_3DD, mesh, [Shard(1)]), requires_grad=fused.weight.requires_grad
        )

    def forward(self, x_BTD: Tensor) -> Tensor:
        mesh = self.weight.device_mesh
        # Each rank's part of the gradient to x comes from its own heads: there and back, it is summed.
        x_BTD = DTensor.from_local(x_BTD, mesh, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])
        return nn.functional.linear(x_BTD, self.weight.to_local().flatten(0, 1))


def apply_tensor_parallel(model: nn.Module, layers: list[nn.Module], mesh: DeviceMesh) -> list[str]:
    """Cuts the model's `layers` over `mesh`, in place. Returns the names of parameters that are whole on every rank but
    whose gradients are sums over the ranks.

    Raises:
        BadInput: a model with layers this does not know, or numbers of heads or channels that do not divide.
    """
    if isinstance(model, HFModel):
        _cut_hf(model, layers, mesh)
    elif all(isinstance(layer, Block) for layer in layers):
        _cut_ours(layers, mesh)
    else:
        raise BadInput(f"mesh has tp={mesh.size()}, which cannot cut a {type(model).__name__}: use fsdp")
    return [n for n, p in model.named_parameters() if _is_head_norm(n) and not isinstance(p, DTensor)]


def _is_head_norm(name: str) -> bool:
    return any(part in HEAD_NORMS for part in name.split("."))


def _cut_ours(layers: list[Block], mesh: DeviceMesh) -> None:
    for block in layers:
        attention = block.attention
        check_divides(mesh.size(), "heads", attention.heads)
        attention.qkv = FusedHeads(attention.qkv, mesh)
        attention.heads //= mesh.size()
        parallelize_module(
            block,
            mesh,
            {"attention.out": RowwiseParallel(), "ffn.up": ColwiseParallel(), "ffn.down": RowwiseParallel()},
        )


def _cut_hf(model: HFModel, layers: list[nn.Module], mesh: DeviceMesh) -> None:
    config = model.hf.config
    check_divides(mesh.size(), "attention heads", config.num_attention_heads)
    check_divides(mesh.size(), "key-value heads", getattr(config, "num_key_value_heads", config.num_attention_heads))
    for layer in layers:
        plan: dict[str, ColwiseParallel | RowwiseParallel] = {}
        for name, module in layer.named_modules():
            if next(module.parameters(recurse=False), None) is None:
                continue
            last = name.rpartition(".")[2]
            if last in BY_OUTPUT and isinstance(module, nn.Linear):
                check_divides(mesh.size(), f"{last} outputs", module.out_features)
                plan[name] = ColwiseParallel()
            elif last in BY_INPUT and isinstance(module, nn.Linear):
                plan[name] = RowwiseParallel()
            elif not _may_stay_whole(module, last, layer):
                known = ", ".join((*BY_OUTPUT, *BY_INPUT))
                raise BadInput(
                    f"mesh has tp={mesh.size()}, but the layers of a {config.model_type} have {name!r}, which is none "
                    f"of what it can cut, {known} ({_FAMILIES}): use fsdp"
                )
        parallelize_module(layer, mesh, plan)


def _may_stay_whole(module: nn.Module, name: str, layer: nn.Module) -> bool:
    """Norms of the residual stream, and norms of single heads."""
    parameters = list(module.parameters(recurse=False))
    if not name.endswith("norm") or any(p.dim() != 1 for p in parameters):
        return False
    if name not in HEAD_NORMS:
        return True
    head_dim = next((m.head_dim for m in layer.modules() if hasattr(m, "head_dim")), None)
    return all(p.numel() == head_dim for p in parameters)


def check_divides(ranks: int, what: str, count: int) -> None:
    """Raises BadInput where `ranks` tensor ranks cannot share `count` of something, with the nearest that can."""
    if count % ranks:
        works = min((d for d in range(1, count + 1) if count % d == 0), key=lambda d: (abs(d - ranks), d))
        raise BadInput(
            f"mesh has tp={ranks}, which cannot share the model's {count} {what}: the nearest that can is tp={works}"
        )
