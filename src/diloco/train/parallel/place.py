"""Where this process is in its replica's island, and small messages among all of the island."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from diloco.train.parallel.mesh import NAMES, MeshShape
from diloco.wire.island import all_gather, gather_json


class Place:
    """Every rank of the mesh must make one at the same time: a group is made from it."""

    def __init__(self, shape: MeshShape, mesh: DeviceMesh, device: torch.device) -> None:
        self.shape, self.mesh, self.device = shape, mesh, device
        coordinate = mesh.get_coordinate()
        assert coordinate is not None, "this rank is not in the mesh"
        self.at: dict[str, int] = dict(zip(NAMES, coordinate, strict=True))
        ranks = mesh.mesh.view(shape.replica, shape.island)[self.at["replica"]].tolist()
        self.group = dist.new_group(ranks, use_local_synchronization=shape.replica > 1)
        self.rank, self.size = dist.get_rank(self.group), shape.island

    @property
    def data_rank(self) -> int:
        """Which share of the replica's batch this rank trains on; tp and pp ranks have theirs in common."""
        return self.at["dp"] * self.shape.fsdp + self.at["fsdp"]

    @property
    def speaks(self) -> bool:
        """Whether this rank is the one of its data rank that knows the loss: the last stage's, and one of tp alike."""
        return self.at["pp"] == self.shape.pp - 1 and self.at["tp"] == 0

    def share(self, batch_BT: Tensor) -> Tensor:
        """This data rank's sequences of a replica's batch."""
        count = len(batch_BT) // self.shape.data
        return batch_BT[self.data_rank * count : (self.data_rank + 1) * count]

    def gather(self, row: Tensor, apart: bool = True) -> Tensor:
        """A tensor of the same shape on each rank -> all of them in rank order, [island, *shape], on its own device:
        unlike an exchange's own, without waiting for the device."""
        gathered = torch.empty(self.size * row.numel(), dtype=row.dtype, device=self.device)
        all_gather(gathered, row.reshape(-1).to(self.device), group=self.group)
        return gathered.view(self.size, *row.shape).to(row.device)

    def sum(self, values: Tensor) -> Tensor:
        """Added up in rank order, so that all ranks have the same bits."""
        return self.gather(values).sum(dim=0)

    def gather_json(self, value: object) -> list:
        """Every rank's JSON value on all of them, in rank order."""
        return gather_json(self.gather, value)
