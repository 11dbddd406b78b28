"""Where this process is in its replica's island, and what it has in common with the island's other ranks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from diloco.train.parallel.mesh import NAMES, MeshShape
from diloco.wire.island import Shore


class Place:
    """`island`: the exchange's own, over the same ranks in the same order."""

    def __init__(self, shape: MeshShape, mesh: DeviceMesh, device: torch.device, island: Shore) -> None:
        self.shape, self.mesh, self.device, self.island = shape, mesh, device, island
        coordinate = mesh.get_coordinate()
        assert coordinate is not None, "this rank is not in the mesh"
        self.at: dict[str, int] = dict(zip(NAMES, coordinate, strict=True))

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

    def gather(self, row: Tensor) -> Tensor:
        """A tensor of the same shape on each rank -> all of them in rank order, [island, *shape], on its own device."""
        return self.island.gather_on_device(row).to(row.device)

    def sum(self, values: Tensor) -> Tensor:
        """Added up in rank order, so that all ranks have the same bits."""
        return self.gather(values).sum(dim=0)
