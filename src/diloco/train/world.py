"""Which replicas this process runs, and how it reaches the others: all of them in one process, or under torchrun one,
or a part of one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from diloco.errors import BadInput
from diloco.train.config import TrainConfig
from diloco.train.parallel.mesh import MeshShape, build_mesh, parse_mesh
from diloco.train.parallel.place import Place
from diloco.wire.collective import Collective
from diloco.wire.hierarchical import Hierarchical
from diloco.wire.local import Local

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    exchange: Collective | Local
    mine: tuple[int, ...]
    """Ranks of the replicas that run in this process."""
    device: torch.device
    place: Place | None = None
    """This process's place in its replica, where that is spread over several."""

    @property
    def shape(self) -> MeshShape:
        return self.place.shape if self.place else MeshShape(replica=self.replicas if self.distributed else 1)

    @property
    def replicas(self) -> int:
        return self.exchange.replicas

    @property
    def distributed(self) -> bool:
        return isinstance(self.exchange, Collective)

    @property
    def main(self) -> bool:
        """Whether this process writes the run folder."""
        return 0 in self.mine and self.exchange.island.rank == 0

    @property
    def virtual_s(self) -> float | None:
        """What the run would have taken so far over the link it simulates; None where it simulates none."""
        return self.exchange.clock.elapsed_s if isinstance(self.exchange, Local) and self.exchange.clock else None

    def gather(self, rows: Tensor) -> Tensor:
        """[len(mine), ...] in each process -> [M, ...] in all."""
        return self.exchange.gather(rows[0]) if isinstance(self.exchange, Collective) else rows

    def gather_json(self, values: list) -> list:
        """One JSON value for each of this process's replicas -> one for every replica."""
        return self.exchange.gather_json(values[0]) if isinstance(self.exchange, Collective) else values

    def together(self, work: Callable[[], T]) -> T:
        """The result of `work()`, which every process must call: what one refuses with BadInput, all refuse.

        Otherwise the others would begin to train and learn of it at the first sync.
        """
        result, own = None, None
        try:
            result = work()
        except BadInput as error:
            own = error
        # Counterparts in the replicas first, then within each replica: so it reaches all.
        counterparts = self.gather_json([own and str(own)] * len(self.mine))
        refusals = self.exchange.island.gather_json(next(filter(None, counterparts), None))
        if refusal := next(filter(None, refusals), None):
            raise own or BadInput(refusal)
        return result

    def gather_all(self, value: object) -> list:
        """One JSON value for each process -> those of all: a replica's together, the replicas in rank order."""
        if not isinstance(self.exchange, Collective):
            return [value]
        columns = self.exchange.island.gather_json(self.exchange.gather_json(value))
        return [own for replica in zip(*columns, strict=True) for own in replica]


def world_size() -> int | None:
    """Number of processes torchrun started, None without torchrun."""
    return _from_environment("WORLD_SIZE", 1) if os.environ.get("WORLD_SIZE") and "RANK" in os.environ else None


def _from_environment(name: str, default: int) -> int:
    """A whole number that torchrun sets. Raises BadInput where it is something else."""
    value = os.environ.get(name, "")
    if value and not value.isdecimal():
        raise BadInput(
            f"environment variable {name} is {value!r}, not a whole number: start with torchrun, which sets it"
        )
    return int(value) if value else default


@contextlib.contextmanager
def enter_world(config: TrainConfig) -> Iterator[World]:
    """Raises BadInput where torchrun's processes are not the configured replicas, or the device or port cannot be
    had."""
    processes = world_size()
    device = pick_device(config.device)
    if config.threads > (os.cpu_count() or 1):
        raise BadInput(f"threads is {config.threads}: this machine has {os.cpu_count()} cores, so give at most that")
    set_threads(config.threads)
    if processes is None:
        if config.mesh:
            raise BadInput(
                f"mesh is {config.mesh!r}, which lays out processes: start them with torchrun --nproc-per-node N -m "
                "diloco train, or leave it out"
            )
        local = _in_sites(Local(config.replicas, config.build_link()), config)
        yield World(local, tuple(range(config.replicas)), device)
        return
    shape = parse_mesh(config.mesh, processes)
    if config.mesh and shape.replica != config.replicas:
        raise BadInput(
            f"replicas is {config.replicas}, but mesh {config.mesh!r} makes {shape.replica} of {processes} processes: "
            "leave --replicas out"
        )
    if not config.mesh and processes != config.replicas:
        raise BadInput(
            f"replicas is {config.replicas}, but torchrun started {processes} processes and each is a replica: leave "
            "--replicas out"
        )
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise BadInput(f"environment variable {missing[0]} is not set: start with torchrun, which sets it")
    try:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise BadInput(
            f"the processes cannot meet at {address} ({error}): choose a free port with torchrun --master-port"
        ) from error
    try:
        mesh = build_mesh(shape, device) if shape.island > 1 else None
        exchange = _in_sites(Collective(mesh, link=config.build_link()), config)
        yield World(exchange, (exchange.rank,), device, Place(shape, mesh, device, exchange.island) if mesh else None)
    finally:
        dist.destroy_process_group()


def _in_sites(exchange: Local | Collective, config: TrainConfig) -> Local | Collective:
    if config.sites == 1:
        return exchange
    return Hierarchical(exchange, sites=config.sites, every=config.site_every)


def pick_device(name: str) -> torch.device:
    """The device called `name`; auto takes CUDA where there is one. Raises BadInput where this machine lacks it."""
    local_rank = _from_environment("LOCAL_RANK", 0)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise RuntimeError("it holds no values")
        if device.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("no CUDA device")
        if device.type == "cuda":
            device = torch.device("cuda", local_rank if device.index is None else device.index)
            torch.cuda.set_device(device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise BadInput(f"device is {name!r}, which this machine cannot give: use auto or cpu") from error
    return device


def set_threads(threads: int) -> None:
    """CPU threads of torch; 0 leaves its own choice, or under torchrun this process's share."""
    if threads:
        torch.set_num_threads(min(threads, os.cpu_count() or 1))
    elif local := _from_environment("LOCAL_WORLD_SIZE", 0):
        # The affinity mask, since a container's share of the machine is smaller than the machine.
        torch.set_num_threads(max(len(os.sched_getaffinity(0)) // local, 1))
