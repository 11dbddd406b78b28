"""The ranks of one replica as a torch.distributed group, beside the groups that join the replicas."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from diloco.errors import BadInput
from diloco.outer.island import Alone, Island

SHORT_BYTES = 248
"""Of a JSON text, what travels with its length."""
_LENGTH_BYTES = 8

all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before torch 2.13


class Shore:
    """An island of several ranks. `new_group(ranks)` is called twice: rounds may be under way in another thread."""

    def __init__(self, ranks: list[int], device: torch.device, new_group: Callable[[list[int]], object]) -> None:
        self.size, self.rank, self.device = len(ranks), ranks.index(dist.get_rank()), device
        self._groups = {apart: new_group(ranks) for apart in (False, True)}
        weakref.finalize(self, self._groups.clear)  # gloo aborts the process when a group outlives it

    def gather(self, row: Tensor, apart: bool = True) -> Tensor:
        """See `outer/island.py`."""
        return self.gather_on_device(row, apart).cpu()

    def gather_on_device(self, row: Tensor, apart: bool = True) -> Tensor:
        """`gather` on the device that carries it, for which the caller does not wait."""
        sent = row.to(self.device).reshape(-1)
        received = sent.new_empty(self.size * sent.numel())
        all_gather(received, sent, group=self._groups[apart])
        return received.view(self.size, *row.shape)

    def sum(self, values: Tensor) -> Tensor:
        """See `outer/island.py`."""
        travelling = values.to(self.device)
        dist.all_reduce(travelling, group=self._groups[False])
        return values.copy_(travelling)

    def gather_json(self, value: object) -> list:
        """Every rank's JSON value on all of them, in rank order."""
        return gather_json(self.gather, value)


def gather_json(gather: Callable[[Tensor], Tensor], value: object) -> list:
    """JSON values through a gather of tensors: one message, or two where some text is longer than SHORT_BYTES. (torch's
    own object collectives unpickle what arrives.)"""
    text = json.dumps(value).encode()
    rows = gather(_row(len(text).to_bytes(_LENGTH_BYTES, "little") + text[:SHORT_BYTES], _LENGTH_BYTES + SHORT_BYTES))
    lengths = rows[:, :_LENGTH_BYTES].contiguous().view(torch.int64).flatten().tolist()
    rows = rows[:, _LENGTH_BYTES:]
    if (rest := max(lengths) - SHORT_BYTES) > 0:
        rows = torch.cat([rows, gather(_row(text[SHORT_BYTES:], rest))], dim=1)
    return [json.loads(row[:length].numpy().tobytes()) for row, length in zip(rows, lengths, strict=True)]


def _row(content: bytes, size_bytes: int) -> Tensor:
    return torch.frombuffer(bytearray(content.ljust(size_bytes, b"\0")), dtype=torch.uint8)


def split_mesh(mesh: DeviceMesh, dim: str) -> tuple[list[int], list[int]]:
    """Global ranks of this rank's counterparts in the replicas, along `dim`, and of its island, along all others.

    Raises BadInput where the mesh has no such dimension, or does not hold this rank.
    """
    names, rank = mesh.mesh_dim_names or (), dist.get_rank()
    if mesh.ndim > 1 and dim not in names:
        raise BadInput(f"dim is {dim!r}, which the mesh has not: give one of {', '.join(names) or 'named dimensions'}")
    ranks = (
        mesh.mesh.movedim(names.index(dim) if dim in names else 0, 0).flatten(1)
        if mesh.ndim > 1
        else mesh.mesh[:, None]
    )
    place = (ranks == rank).nonzero().tolist()
    if not place:
        raise BadInput(f"rank {rank} is not in the mesh of ranks {ranks.flatten().tolist()}: make it over all ranks")
    replica, member = place[0]
    return ranks[:, member].tolist(), ranks[replica].tolist()


def make_island(ranks: list[int], device: torch.device, new_group: Callable[[list[int]], object]) -> Island:
    return Shore(ranks, device, new_group) if len(ranks) > 1 else Alone()
