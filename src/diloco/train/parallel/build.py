"""From a whole model to what this rank runs of it.

Torch's engines are imported where they are used: they take half a second that a run on one device can do without.
"""

from __future__ import annotations

import torch
from torch import nn

from diloco.errors import BadInput
from diloco.train.parallel.engine import Engine, ManyDevices, OneDevice
from diloco.train.parallel.layers import Options, blocks_of, prepare_layers
from diloco.train.parallel.place import Place


def build_engine(
    model: nn.Module,
    place: Place | None,
    device: torch.device,
    options: Options,
    *,
    z_loss: float = 0.0,
    microbatches: int = 1,
    schedule: str = "1f1b",
) -> Engine:
    """`model` has the same weights on all ranks; this rank keeps its part of it, and the engine's own `model` is that.

    `place` is None where the replica is this device alone. `microbatches` and `schedule` are those of a pipeline.
    Raises BadInput where the model cannot be spread over its island.
    """
    if options.cpu_offload and (place is None or place.shape.data == 1):
        raise BadInput("cpu_offload is on, which only fsdp can do: give a mesh with fsdp=2 or more, or leave it out")
    if place is None:
        if options.activation_checkpointing or options.compile:
            prepare_layers(list(blocks_of(model)), options)
        return OneDevice(model, device, options.precision, z_loss)
    from diloco.train.parallel.shard import parallelize

    pipeline = None
    if place.shape.pp > 1:
        from diloco.train.parallel.pipeline import Pipeline, cut_into_stage

        model = cut_into_stage(model, place, options.precision)
        pipeline = Pipeline(model, place, schedule, microbatches, z_loss)
        layers = list(model.blocks.values())
    else:
        layers = list(blocks_of(model))
    summed = parallelize(model, layers, place, options)
    return ManyDevices(model, place, options.precision, z_loss, pipeline, summed)
