"""Tensors of which this process holds a part: parameters sharded by FSDP2 or tensor parallelism are DTensors.

A sync works on each rank's own part alone: its counterparts in the other replicas hold the same part, so nothing is
ever gathered inside an island. A checkpoint is written likewise.
"""

from __future__ import annotations

import torch
from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor, in its own memory: all of it, unless it is sharded.

    To be asked for anew each time, since FSDP2 moves the memory of uneven shards in its first forward pass.
    """
    if not is_sharded(tensor):
        return tensor.detach()
    with torch.no_grad():  # a plain view of the part's memory; with autograd it would be a copy
        return tensor.to_local().detach()


def like(part: Tensor, tensor: Tensor) -> Tensor:
    """`part` as a tensor that is sharded as `tensor` is, without a copy; itself, where `tensor` is not."""
    if not is_sharded(tensor):
        return part
    return type(tensor).from_local(
        part, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def piece(tensor: Tensor) -> list[list]:
    """Which part it is: equal on two ranks of an island exactly where they hold the same part of the same tensor."""
    if not is_sharded(tensor):
        return []
    mesh = tensor.device_mesh
    names = mesh.mesh_dim_names or range(mesh.ndim)
    dims = zip(names, mesh.get_coordinate(), tensor.placements, strict=True)
    return [[dim, place] for dim, place, placement in dims if not placement.is_replicate()]
