"""How the processes of a run are laid out: replicas, and inside each an island of pipeline, data and tensor ranks.

Ranks count through tp first, then fsdp, dp, pp and replica, so that an island is a block of neighbouring ranks and the
dimensions that talk most are on the shortest wires.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from diloco.errors import BadInput

INFERRED = ("replica", "fsdp")
"""What takes the processes that no given size accounts for: the first of these that was left out."""
WIDEST = 100
"""Characters that a picture of many replicas is kept to."""


@dataclass(frozen=True)
class MeshShape:
    """Processes along each dimension."""

    replica: int = 1
    """Replicas of DiLoCo, which seldom talk."""
    pp: int = 1
    """Pipeline stages."""
    dp: int = 1
    """Copies that hold the same shards and train on different sequences."""
    fsdp: int = 1
    """Ranks that hold a share of each parameter and train on different sequences."""
    tp: int = 1
    """Ranks that hold a share of each matrix and train on the same sequences."""

    @property
    def world(self) -> int:
        return math.prod(self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(getattr(self, name) for name in NAMES)

    @property
    def island(self) -> int:
        """Processes in one replica."""
        return self.world // self.replica

    @property
    def data(self) -> int:
        """Shares that a replica's batch is cut into."""
        return self.dp * self.fsdp

    def __str__(self) -> str:
        """As `parse_mesh` reads it, without what is 1."""
        return ",".join(self.named()) or "replica=1"

    def named(self) -> list[str]:
        return [f"{name}={size}" for name, size in zip(NAMES, self.sizes, strict=True) if size > 1]


NAMES: tuple[str, ...] = tuple(f.name for f in fields(MeshShape))


def parse_sizes(text: str) -> dict[str, int]:
    """`replica=2,fsdp=2` as a dict. Raises BadInput for an unknown or repeated name, or a size below 1."""
    sizes: dict[str, int] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (part.strip() for part in entry.partition("="))
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise BadInput(f"mesh is {text!r}, and {name!r} is no dimension: {hint}give any of {', '.join(NAMES)}")
        if not equals or not value.isdecimal() or not value.isascii() or int(value) < 1:
            raise BadInput(f"mesh is {text!r}: give {name} a whole number of 1 or more, as in {name}=2")
        if name in sizes:
            raise BadInput(f"mesh is {text!r}, which names {name} twice: give it once")
        sizes[name] = int(value)
    return sizes


def parse_mesh(text: str, world: int) -> MeshShape:
    """The shape of a mesh of `world` processes, from any subset of its sizes.

    Processes that these do not account for become replicas; where the number of replicas is given, they shard the model
    (fsdp). Whatever else is left out is 1.

    Raises:
        BadInput: as `parse_sizes`; or so many processes cannot make this mesh, with the nearest that they can.
    """
    sizes = parse_sizes(text)
    free = next((name for name in INFERRED if name not in sizes), None)
    given = math.prod(sizes.values())
    if world % given or (free is None and given != world):
        names = [*sizes, *([free] if free else [])]
        nearest = min(_shapes(world, names), key=lambda shape: _distance(shape, sizes))
        raise BadInput(f"mesh is {text!r}, which {_processes(world)} cannot make: the nearest possible is {nearest}")
    return MeshShape(**{**sizes, free: world // given} if free else sizes)


def _shapes(world: int, names: list[str]) -> Iterator[MeshShape]:
    """All meshes of so many processes along these dimensions."""

    def sizes(rest: int, count: int) -> Iterator[tuple[int, ...]]:
        if count == 1:
            yield (rest,)
            return
        for size in range(1, rest + 1):
            if rest % size == 0:
                yield from ((size, *others) for others in sizes(rest // size, count - 1))

    for found in sizes(world, len(names)):
        yield MeshShape(**dict(zip(names, found, strict=True)))


def _distance(shape: MeshShape, sizes: dict[str, int]) -> tuple[float, float]:
    """By what factors the given sizes would have to change; then, how few dimensions have to be more than 1."""
    factors = sum(abs(math.log(getattr(shape, name) / size)) for name, size in sizes.items())
    return round(factors, 9), sum(size > 1 for size in shape.sizes)


def build_mesh(shape: MeshShape, device: torch.device) -> DeviceMesh:
    """The DeviceMesh of all ranks; its five dimensions have the names of `MeshShape`. Every rank must call it."""
    return init_device_mesh(device.type, shape.sizes, mesh_dim_names=NAMES)


def picture(shape: MeshShape) -> str:
    """Who is where: a row for each place in pipeline and data, a column for each replica and tensor rank; the numbers
    are ranks."""
    rows = list(itertools.product(*(range(getattr(shape, name)) for name in ("pp", "dp", "fsdp"))))
    labels = [_label(row, shape) for row in rows]
    left, cell = max(map(len, labels)), max(len(f"tp {shape.tp - 1}") if shape.tp > 1 else 0, len(str(shape.world)))
    group = max(shape.tp * (cell + 2), len(f"replica {shape.replica - 1}") + 2)

    replicas, cut = _shown(shape.replica, max(WIDEST // group, 2))

    def line(label: str, groups: list[str]) -> str:
        drawn = [text.rjust(group) for text in groups]
        return (label.ljust(left) + "".join(drawn[:cut] + ["  ..."] * (cut < len(drawn)) + drawn[cut:])).rstrip()

    heads = [line("", [f"replica {m}" for m in replicas])]
    if shape.tp > 1:
        heads.append(line("", ["".join(f"tp {t}".rjust(cell + 2) for t in range(shape.tp))] * len(replicas)))
    body = [
        line(label, ["".join(str(r).rjust(cell + 2) for r in _ranks(shape, m, index)) for m in replicas])
        for index, label in enumerate(labels)
    ]
    named = " x ".join(shape.named()) or "replica=1"
    return "\n".join([f"mesh {named}: {_processes(shape.world)}, by rank", *heads, *body])


def _processes(count: int) -> str:
    return f"{count} process{'es' * (count > 1)}"


def _label(row: tuple[int, ...], shape: MeshShape) -> str:
    named = zip(("pp", "dp", "fsdp"), row, strict=True)
    return " ".join(f"{name} {place}" for name, place in named if getattr(shape, name) > 1)


def _ranks(shape: MeshShape, replica: int, row: int) -> range:
    first = replica * shape.island + row * shape.tp
    return range(first, first + shape.tp)


def _shown(replicas: int, most: int) -> tuple[list[int], int]:
    """The replicas that are drawn, and after how many of them some are left out."""
    if replicas <= most:
        return list(range(replicas)), replicas
    return [*range(most - 1), replicas - 1], most - 1
