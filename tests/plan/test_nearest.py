"""A value that a refusal suggests is accepted.

OMP_NUM_THREADS=1 pytest tests/plan/test_nearest.py
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diloco.errors import BadInput
from diloco.plan.asked import Asked, read_question

BASE = {"params": "350m", "tokens": "7b", "between": "1gbit,20ms"}
INTEGERS = ("replicas", "tensor", "pipeline", "fragments", "overlap", "sync_every", "microbatches", "seq_len", "spares")


def refusal_of(asked: Asked) -> str | None:
    try:
        read_question(asked)
    except BadInput as error:
        return str(error)
    return None


def followed(asked: Asked, refusal: str) -> Asked:
    """The question with what the refusal says in place: "give --tensor 2", "give 4", "give 4 and 4"."""
    head, _, advice = refusal.rpartition(": ")
    flags = {name: int(value) for name, value in re.findall(r"--(\w+) (\d+)", advice)}
    named = [name.replace("-", "_") for name in re.findall(r"--([\w-]+) (?:is|\d)", head)] or ["sites"]
    if advice.startswith("leave"):
        return replace(asked, **dict.fromkeys(re.findall(r"--(\w+)", advice)))
    if not flags:
        numbers = [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", advice)]
        flags = dict(zip(named, numbers, strict=False))
    assert flags, refusal
    return replace(asked, **{n: str(v) if isinstance(getattr(asked, n), str) else v for n, v in flags.items()})


@pytest.mark.parametrize(
    "given, says",
    [
        ({"sites": "2xb200+1xh100", "tensor": 4}, "does not divide a replica's 2 chips: give 1"),
        ({"sites": "3x1024xa100", "replicas": 16}, "which 3 sites cannot share alike: give 12"),
        ({"sites": "2x64xh100", "replicas": 256}, "a site's 64 chips cannot hold: give 128"),
        ({"params": "7b", "sites": "2x64xh100", "replicas": 256}, "a site's 64 chips cannot hold: give 64"),
        ({"sites": "2x1xh100", "replicas": 4}, "a site's 1 chip cannot hold: give 2"),
        (
            {"sites": "2xb200+1xh100", "replicas": 1, "tensor": 2},
            "which 2 sites cannot share alike: give --replicas 2 and --tensor 1",
        ),
        ({"sites": "2x64xh100", "sync_every": 50, "fragments": 99}, "give at most 15 fragments"),
    ],
)
def test_a_suggestion_is_the_nearest_that_is_accepted(given, says) -> None:
    asked = Asked(**{**BASE, **given})
    said = refusal_of(asked)
    assert said is not None and said.endswith(says)
    assert refusal_of(followed(asked, said)) is None


def test_where_no_value_would_do_the_question_without_the_option_is_answered() -> None:
    alone = Asked(**{**BASE, "params": "500b", "sites": "2x8xh100"})
    assert refusal_of(replace(alone, tensor=3)) == refusal_of(alone)


@st.composite
def questions(draw) -> Asked:
    sites = draw(st.sampled_from(
        ["2x64xh100", "3x1024xa100", "2xb200+1xh100", "16xh100+24xa100", "8xh100+6xtpu-v5e", "4x1xrtx4090", "64xh100"]
    ))  # fmt: skip
    names = draw(st.lists(st.sampled_from(("replicas", "tensor", "pipeline")), min_size=1, max_size=2, unique=True))
    values = {name: draw(st.integers(1, 300) | st.sampled_from([2, 4, 8, 1000])) for name in names}
    return Asked(**{**BASE, "sites": sites, "params": draw(st.sampled_from(["350m", "7b", "70b"])), **values})


@settings(max_examples=30, deadline=None)
@given(questions())
def test_a_suggested_split_is_never_refused_in_turn(asked) -> None:
    said = refusal_of(asked)
    if said is None or not said.startswith(("--replicas", "--tensor", "--pipeline")):
        return
    again = refusal_of(followed(asked, said))
    assert again is None, (asked, said, again)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(INTEGERS), st.integers(-2, 10**6), st.integers(1, 60) | st.none())
def test_a_suggested_number_is_never_refused_in_turn(name, value, every) -> None:
    asked = Asked(**{**BASE, "sites": "2x64xh100", "sync_every": every, name: value})
    said = refusal_of(asked)
    if said is None or " or more" in said or "without --pipeline" in said:
        return
    again = refusal_of(followed(asked, said))
    assert again is None, (asked, said, again)
