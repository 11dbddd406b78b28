"""A model over the ranks of an island, by torch's own engines: DTensor, activation checkpointing, compile, FSDP2."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import Shard

from diloco.train.parallel.layers import Options, prepare_layers
from diloco.train.parallel.place import Place
from diloco.train.parallel.plans import apply_tensor_parallel


def apply_data_parallel(model: nn.Module, layers: list[nn.Module], place: Place, options: Options) -> None:
    """FSDP2 over the fsdp dimension, and over dp as copies of it; each layer is gathered when it is needed.

    Parameters, gradients and their sums stay fp32; with bf16 the layers compute and are gathered in bf16.
    """
    shape = place.shape
    if shape.data == 1:
        model.to(place.device)
        return
    mesh = place.mesh["dp", "fsdp"] if shape.dp > 1 else place.mesh["fsdp"]
    # Activations keep the types that autocast gives them, as on one device.
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    whole = MixedPrecisionPolicy(cast_forward_inputs=False)
    offload = CPUOffloadPolicy(pin_memory=place.device.type == "cuda") if options.cpu_offload else OffloadPolicy()
    shard = functools.partial(
        fully_shard, mesh=mesh, offload_policy=offload, shard_placement_fn=functools.partial(_dimension, shape.fsdp)
    )
    for layer in layers:
        shard(layer, mp_policy=half if options.precision == "bf16" else whole)
    shard(model, mp_policy=whole)


def _dimension(ranks: int, parameter: nn.Parameter) -> Shard | None:
    """Along which dimension a parameter is cut: the first, but a fused (3, N H, D) along its last if that is even."""
    return Shard(2) if parameter.dim() == 3 and parameter.shape[2] % ranks == 0 else None


def parallelize(model: nn.Module, layers: list[nn.Module], place: Place, options: Options) -> list[nn.Parameter]:
    """Spreads a model of these layers, or a stage of one, over the island's tensor and data ranks, in place.

    Returns the parameters whose gradients are to be summed over the tensor ranks. Raises BadInput where the model
    cannot be spread like this.
    """
    summed = apply_tensor_parallel(model, layers, place.mesh["tp"]) if place.shape.tp > 1 else []
    prepare_layers(layers, options)
    apply_data_parallel(model, layers, place, options)
    named = dict(model.named_parameters())
    return [named[name] for name in summed]
