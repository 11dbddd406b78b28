"""Sharded tensors: each rank writes what it owns, and any other sharding reads it from the same files.

pytest tests/checkpoint/test_shards.py
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from support.processes import run_ranks
from torch import nn

from diloco.checkpoint import Chunk, Store, Writer, load, own_part, read_tree
from diloco.checkpoint.pack import ABSENT
from diloco.checkpoint.saved import StoredTensor
from diloco.checkpoint.shards import chunk_of, is_owner
from diloco.errors import BadInput
from diloco.shards import local
from diloco.wire.island import gather_json

SHAPES = {"even": (8, 6), "uneven": (7, 5), "wide": (257, 3), "short": (1, 4), "cube": (3, 4, 5), "line": (5,)}
CHAIN = (1, 2, 3)


def meant(step: int) -> dict[str, torch.Tensor]:
    values = {n: torch.arange(torch.Size(s).numel(), dtype=torch.float32).view(s) / 7 for n, s in SHAPES.items()}
    return {name: value + step / 1000 for name, value in values.items()}


# -- boxes


@given(st.data(), st.integers(1, 3))
def test_overlap_is_what_both_mark(data, dims):
    pair = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=dims, max_size=dims)
    one, other = (Chunk(*zip(*data.draw(pair), strict=True)) for _ in range(2))
    grid = torch.zeros(2, *([8] * dims))
    for layer, chunk in zip(grid, (one, other), strict=True):
        layer[tuple(slice(o, o + s) for o, s in zip(chunk.offset, chunk.shape, strict=True))] = 1
    both = one.overlap(other)
    assert int((grid[0] * grid[1]).sum()) == (both.numel if both else 0)
    if both:
        assert one.numel == torch.zeros(one.shape)[both.inside(one)].numel() * one.numel // both.numel


def test_a_hole_is_named():
    tensor = StoredTensor(torch.float32, (4, 2), "x.0: 'w'")
    tensor.chunks[Chunk((0, 0), (1, 2))] = lambda: torch.ones(1, 2)
    assert torch.equal(tensor.read_part(Chunk((0, 1), (1, 1))), torch.ones(1, 1))
    with pytest.raises(BadInput, match="'w' has 2 of 8 elements in the checkpoint's parts"):
        tensor.read()


# -- over processes


def parts_of(trees: list[dict]) -> list[dict]:
    """What each rank of an island writes of its tree."""
    held: list[list] = []
    for place, tree in enumerate(trees):
        own_part(tree, place, lambda paths: held.append(paths) or [])
    return [own_part(tree, place, lambda _: held) for place, tree in enumerate(trees)]


def outer_of_torch(seed: int) -> dict:
    """As `DiLoCo` has it with a torch.optim class: the state of flat memory, by number."""
    flat = torch.nn.Parameter(torch.zeros(6))
    optimizer = torch.optim.SGD([flat], lr=0.7, momentum=0.9)
    flat.grad = torch.randn(6, generator=torch.Generator().manual_seed(seed))
    optimizer.step()
    return {"outer": {"torch": [optimizer.state_dict()]}, "gain": torch.ones(3)}


def test_state_by_number_that_differs_between_ranks_is_refused() -> None:
    """Only the first rank's would be written, and the other's shard lost."""
    with pytest.raises(BadInput, match=r"outer/torch/0/state/0/momentum_buffer is by number, .*another outer"):
        parts_of([outer_of_torch(0), outer_of_torch(1)])
    first, second = parts_of([outer_of_torch(0), outer_of_torch(0)])
    state = outer_of_torch(0)["outer"]["torch"][0]["state"][0]
    assert torch.equal(first["outer"]["torch"][0]["state"][0]["momentum_buffer"], state["momentum_buffer"])
    assert second["outer"]["torch"][0]["state"][0]["momentum_buffer"] is second["gain"] is ABSENT
    named = [{"model": {"w": torch.full((2,), float(rank))}} for rank in range(2)]
    assert parts_of(named)[1]["model"]["w"] is ABSENT  # by name it is the same parameter


def test_a_list_without_tensors_is_one_value_of_the_first_rank() -> None:
    """However many rounds a run has had, the ranks tell one another of one."""
    trees = [{"rounds": [{"s": float(rank)}] * 9, "mixed": [1, torch.ones(2), [2]], "none": []} for rank in range(2)]
    held: list[list] = []
    own_part(trees[0], 0, lambda paths: held.append(paths) or [])
    assert [path for path, _ in held[0]] == ["rounds", "mixed/0", "mixed/1", "mixed/2", "none"]
    first, second = parts_of(trees)
    assert first == trees[0] and second == {"rounds": ABSENT, "mixed": [ABSENT] * 3, "none": ABSENT}


def gather(value: object) -> list:
    """Every rank's JSON value."""

    def rows(row: torch.Tensor) -> torch.Tensor:
        found = [torch.empty_like(row) for _ in range(dist.get_world_size())]
        dist.all_gather(found, row)
        return torch.stack(found)

    return gather_json(rows, value)


def save(rank: int, folder: str, dim: int) -> None:
    """A chain of checkpoints whose tensors are sharded along `dim`, but for a norm that is replicated in both ways."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    world = dist.get_world_size()
    mesh, writer = init_device_mesh("cpu", (world,)), Writer(Store(folder), "run", full_every=2)
    everyone = [f"x.{i}" for i in range(world)]
    for step in CHAIN:
        tree = {
            "sharded": {n: distribute_tensor(t, mesh, [Shard(min(dim, t.dim() - 1))]) for n, t in meant(step).items()},
            "replicated": distribute_tensor(torch.full((100,), float(step)), mesh, [Replicate()]),
            "plain": torch.full((100,), float(step)),
            "counts": {"step": step, "list": [1, torch.ones(3), {"a": None}]},
        }
        tree = own_part(tree, rank, gather)
        base = gather(writer.next_base())[0]
        writer.save(step, {f"x.{rank}": tree}, everyone, {} if rank == 0 else None, base=base)
        writer.settle()
    dist.barrier()


def read(rank: int, folder: str, shape: tuple[int, ...], dims: tuple[int, ...]) -> list[str]:
    """What differs when every checkpoint is read under another mesh."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", shape)
    wrong = []
    for step in CHAIN:
        likes = {
            name: distribute_tensor(torch.zeros_like(t), mesh, [Shard(d) if d < t.dim() else Replicate() for d in dims])
            for name, t in meant(step).items()
        }
        tree = Store(folder).open(step).tree("x")
        found = read_tree(tree, lambda path, _, likes=likes: likes.get(path[-1]))
        for name, tensor in found["sharded"].items():
            if tensor.placements != likes[name].placements or not torch.equal(tensor.full_tensor(), meant(step)[name]):
                wrong.append(f"{name} at {step}")
        if found["counts"]["step"] != step or found["replicated"][0] != step or found["plain"][0] != step:
            wrong.append(f"values at {step}")
    return wrong


def save_and_read(rank: int, folder: str) -> list[str]:
    """fsdp 2 -> tp 2, and the other way round."""
    save(rank, f"{folder}/rows", 0)
    save(rank, f"{folder}/columns", 1)
    return read(rank, f"{folder}/rows", (2,), (1,)) + read(rank, f"{folder}/columns", (2,), (0,))


def read_over_four(rank: int, folder: str) -> list[str]:
    """fsdp 2 -> fsdp 4, fsdp 2 x tp 2 and two copies of fsdp 2."""
    wrong = []
    for kind in ("rows", "columns"):
        for mesh, dims in (((4,), (0,)), ((2, 2), (0, 1)), ((2, 2), (9, 0))):
            wrong += [f"{name} of {kind} over {mesh}" for name in read(rank, f"{folder}/{kind}", mesh, dims)]
    return wrong


@pytest.mark.slow
def test_saved_under_one_mesh_read_under_another(tmp_path: Path) -> None:
    assert run_ranks(2, save_and_read, str(tmp_path)) == [[], []]
    assert run_ranks(4, read_over_four, str(tmp_path)) == [[]] * 4
    for kind in ("rows", "columns"):
        for step in CHAIN:
            found, _ = load(tmp_path / kind / f"step-{step:08d}")
            assert all(torch.equal(found["x"]["sharded"][n], t) for n, t in meant(step).items())
        # What both ranks hold is stored once.
        parts = Store(tmp_path / kind).manifest(1).parts
        numel = sum(t.numel() for t in meant(1).values()) + 203
        assert sum(p.raw_bytes for p in parts.values()) == 4 * numel


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, width, bias=False), nn.Linear(width, 4, bias=False)

    def forward(self, x_BD: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x_BD))


def fsdp_over_tp(rank: int) -> list[str]:
    """FSDP2 cuts what tensor parallelism left, although its mesh dimension comes first."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    wrong = []
    for width in (8, 10, 6):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
        torch.manual_seed(0)
        model = Block(width)
        whole = {name: p.detach().clone() for name, p in model.named_parameters()}
        parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(model, mesh=mesh["fsdp"])
        for name, parameter in model.named_parameters():
            chunk = chunk_of(parameter)
            index = tuple(slice(o, o + s) for o, s in zip(chunk.offset, chunk.shape, strict=True))
            if not torch.equal(local(parameter), whole[name][index]) or not is_owner(parameter):
                wrong.append(f"{name} of width {width}: {parameter.placements} {chunk}")
    return wrong


@pytest.mark.slow
def test_chunks_of_fsdp_over_tensor_parallelism() -> None:
    assert run_ranks(4, fsdp_over_tp) == [[]] * 4
