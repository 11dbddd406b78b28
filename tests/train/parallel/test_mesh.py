"""Meshes: what is inferred, what is refused and with which nearest, who is where, and how a batch is shared out.

pytest tests/train/parallel/test_mesh.py
"""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diloco.errors import BadInput
from diloco.train.config import TrainConfig
from diloco.train.data.config import DataConfig
from diloco.train.parallel.mesh import NAMES, MeshShape, parse_mesh, parse_sizes, picture


@pytest.mark.parametrize(
    "text, world, expected",
    [
        ("", 1, MeshShape()),
        ("", 4, MeshShape(replica=4)),
        ("replica=4", 4, MeshShape(replica=4)),
        ("replica=2", 4, MeshShape(replica=2, fsdp=2)),
        ("fsdp=2", 4, MeshShape(replica=2, fsdp=2)),
        ("tp=2,pp=2", 8, MeshShape(replica=2, pp=2, tp=2)),
        ("replica=2,tp=2", 8, MeshShape(replica=2, fsdp=2, tp=2)),
        (" replica = 2 , fsdp=2,tp=2,pp=1 ", 8, MeshShape(replica=2, fsdp=2, tp=2)),
        ("replica=1,dp=2,fsdp=3", 6, MeshShape(dp=2, fsdp=3)),
        ("replica=2,pp=2,dp=2,fsdp=2,tp=2", 32, MeshShape(2, 2, 2, 2, 2)),
    ],
)
def test_what_is_left_out_is_inferred(text: str, world: int, expected: MeshShape) -> None:
    assert parse_mesh(text, world) == expected


@pytest.mark.parametrize(
    "text, world, sentence",
    [
        (
            "replica=5",
            12,
            "mesh is 'replica=5', which 12 processes cannot make: the nearest possible is replica=6,fsdp",
        ),
        ("tp=5", 12, "which 12 processes cannot make: the nearest possible is replica=2,tp=6"),
        ("replica=2,fsdp=4", 12, "the nearest possible is replica=2,fsdp=6"),
        ("replica=2,fsdp=2", 2, "which 2 processes cannot make: the nearest possible is"),
        ("fsdp=2", 1, "which 1 process cannot make: the nearest possible is replica=1"),
        ("fdsp=2", 2, "'fdsp' is no dimension: did you mean fsdp? give any of replica, pp, dp, fsdp, tp"),
        ("2", 2, "'2' is no dimension: give any of"),
        ("tp", 2, "mesh is 'tp': give tp a whole number of 1 or more, as in tp=2"),
        ("tp=two", 2, "give tp a whole number of 1 or more"),
        ("tp=0", 2, "give tp a whole number of 1 or more"),
        ("tp=-1", 2, "give tp a whole number of 1 or more"),
        ("tp=2.0", 2, "give tp a whole number of 1 or more"),
        ("tp=2,tp=2", 4, "which names tp twice: give it once"),
    ],
)
def test_impossible_meshes_are_refused_with_the_nearest_possible(text: str, world: int, sentence: str) -> None:
    with pytest.raises(BadInput, match=re.escape(sentence)):
        parse_mesh(text, world)


sizes = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 6))


@given(sizes, st.integers(1, 64))
def test_a_mesh_has_all_processes_and_the_given_sizes_or_names_one_that_could_be(given: dict, world: int) -> None:
    text = ",".join(f"{name}={size}" for name, size in given.items())
    try:
        shape = parse_mesh(text, world)
    except BadInput as error:
        nearest = str(error).rpartition(" ")[2]
        assert math.prod(parse_sizes(nearest).values()) == world
        assert parse_mesh(nearest, world).world == world
        return
    assert shape.world == world == math.prod(shape.sizes)
    assert all(getattr(shape, name) == size for name, size in given.items())
    assert parse_mesh(str(shape), world) == shape


@given(sizes.filter(lambda s: math.prod(s.values()) <= 200))
def test_a_picture_shows_every_rank_once_in_order(given: dict) -> None:
    shape = MeshShape(**given)
    head, *lines = picture(shape).splitlines()
    assert f"{shape.world} process" in head and all(len(line) <= 140 for line in lines)
    unlabelled = re.sub(r"(replica|pp|dp|fsdp|tp) \d+", "", "\n".join(lines))
    ranks = [int(n) for n in re.findall(r"\d+", unlabelled)]
    assert sorted(ranks) == list(range(shape.world)) or "..." in lines[0]


def test_the_picture_of_two_by_two_by_two() -> None:
    assert picture(MeshShape(replica=2, fsdp=2, tp=2)) == (
        "mesh replica=2 x fsdp=2 x tp=2: 8 processes, by rank\n"
        "         replica 0   replica 1\n"
        "        tp 0  tp 1  tp 0  tp 1\n"
        "fsdp 0     0     1     4     5\n"
        "fsdp 1     2     3     6     7"
    )


def test_a_picture_of_many_replicas_leaves_some_out() -> None:
    lines = picture(MeshShape(replica=512, tp=2)).splitlines()
    assert "replica 0" in lines[1] and "... " in lines[1] and lines[1].endswith("replica 511")
    assert lines[3].split()[-2:] == ["1022", "1023"]


@pytest.mark.parametrize(
    "sequences, shape, microbatches, expected",
    [
        (8, MeshShape(), 0, 1),
        (8, MeshShape(fsdp=2), 0, 1),
        (8, MeshShape(pp=2), 0, 4),
        (8, MeshShape(pp=2, fsdp=2), 0, 4),
        (6, MeshShape(pp=2), 0, 3),
        (16, MeshShape(pp=2), 8, 8),
        (7, MeshShape(pp=4), 0, 7),
        (7, MeshShape(tp=2), 4, 1),
    ],
)
def test_microbatches_are_about_two_a_stage(sequences: int, shape: MeshShape, microbatches: int, expected: int) -> None:
    assert TrainConfig(microbatches=microbatches).share_out(sequences, shape) == expected


@pytest.mark.parametrize(
    "sequences, shape, microbatches, sentence",
    [
        (7, MeshShape(fsdp=2), 0, "7 sequences, which 2 data ranks cannot share: the nearest that works is 8"),
        (3, MeshShape(dp=2, fsdp=2), 0, "which 4 data ranks cannot share: the nearest that works is 4"),
        (8, MeshShape(pp=2), 3, "8 sequences, which 3 microbatches cannot share: the nearest that works is 9"),
        (1, MeshShape(pp=2), 0, "1 sequence, which 2 microbatches cannot share: the nearest that works is 2"),
        (8, MeshShape(pp=4), 2, "microbatches is 2, fewer than the 4 stages of the pipeline: give at least as many"),
    ],
)
def test_a_batch_that_cannot_be_shared_is_refused(
    sequences: int, shape: MeshShape, microbatches: int, sentence: str
) -> None:
    with pytest.raises(BadInput, match=re.escape(sentence)):
        TrainConfig(microbatches=microbatches).share_out(sequences, shape)


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"mesh": "replica=2,fsdp=2"}, "mesh is 'replica=2,fsdp=2', but replicas is 4: leave --replicas out"),
        ({"mesh": "fspd=2"}, "'fspd' is no dimension: did you mean fsdp"),
        ({"pipeline_schedule": "zero"}, "pipeline_schedule is 'zero': give one of 1f1b, gpipe"),
        ({"microbatches": -1}, "microbatches is -1: give 0 or more"),
    ],
)
def test_options_that_cannot_work_are_refused_at_once(options: dict, sentence: str) -> None:
    with pytest.raises(BadInput, match=re.escape(sentence)):
        TrainConfig(**options)


def test_options_without_effect_are_said() -> None:
    config = TrainConfig(microbatches=4, pipeline_schedule="gpipe", data=DataConfig(seq_len=32))
    assert [s for s in config.ignored() if "without pp" in s] == [
        "microbatches has no effect without pp in the mesh",
        "pipeline_schedule has no effect without pp in the mesh",
    ]
