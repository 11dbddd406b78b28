"""How refusals name an argument, to Python and to the command line, and which numbers they refuse.

pytest tests/laws/test_arguments.py
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from diloco.errors import BadInput
from diloco.laws import fit_law, next_runs, published_law, read_rows, recommend
from diloco.laws.arguments import named, positive, sane_level, speaking_flags
from diloco.laws.published import paper_law

ROWS = {"params": [1e7, 3e7, 1e8, 3e8, 1e9], "loss": [3.6, 3.28, 3.0, 2.79, 2.63]}


@pytest.mark.parametrize(
    "argument, value, python, flag",
    [
        ("bad", "drop", "bad='drop'", "--bad drop"),
        ("rename", {"loss": "val bpb"}, "rename={'loss': 'val bpb'}", "--map loss='val bpb'"),
        ("where", {"replicas": ["1", "2"]}, "where={'replicas': ['1', '2']}", "--where replicas=1 replicas=2"),
        ("pool", ["tokenizer"], "pool=['tokenizer']", "--pool tokenizer"),
        ("budget_flops", np.float64(1e21), "budget_flops=1e+21", "--budget 1e+21"),
        ("fixed", {"floor": 1.69}, "fixed={'floor': 1.69}", "--fixed floor=1.69"),
        ("candidates", None, "candidates", "--candidates"),
    ],
)
def test_an_argument_is_named_as_its_user_wrote_it(argument, value, python, flag) -> None:
    assert named(argument, value) == python
    with speaking_flags():
        assert named(argument, value) == flag
    assert named(argument, value) == python


@pytest.mark.parametrize(
    "rows, options, python, flags",
    [
        (ROWS | {"loss": [3.6, math.nan, 3.0, 2.8, 2.6]}, {}, "bad='drop'", "--bad drop"),
        ({"N": [1e8], "bpb": [1.0]}, {}, "rename={'loss': ", "--map loss="),
        (ROWS, {"rename": {"loss": "bpb"}}, "rename={'loss': 'bpb'}", "--map loss=bpb"),
        (ROWS, {"where": {"method": "dp"}}, "where={'method': 'dp'}", "--where method=dp"),
        (ROWS, {"pool": ["colour"]}, "pool=['colour']", "--pool colour"),
        (ROWS | {"method": list("aabbb")}, {}, "where={'method': 'a'}", "--where method=a"),
    ],
)
def test_no_refusal_of_rows_speaks_python_to_the_command_line(rows, options, python, flags) -> None:
    with pytest.raises(BadInput) as to_python:
        read_rows(rows, **options)
    with speaking_flags(), pytest.raises(BadInput) as to_shell:
        read_rows(rows, **options)
    assert python in str(to_python.value) and flags in str(to_shell.value)
    assert "{" not in str(to_shell.value) and "='" not in str(to_shell.value)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 0.0, -1.0])
def test_every_number_of_a_question_is_finite_and_above_0(value) -> None:
    target = {"params": 1e10, "replicas": 4.0}
    asked = (
        lambda: next_runs(paper_law(), value, target),
        lambda: recommend("paper", value),
        lambda: recommend("article", 1e9, value),
        lambda: recommend("paper", 1e9, 1, value),
        lambda: published_law("paper:table10:loss:joint").predict(value),
        lambda: published_law("paper:table10:loss:joint").predict(1e9, value),
        lambda: paper_law().predict(params=value, replicas=1.0),
        lambda: fit_law(ROWS | {"tokens": [1e9, 3e9, 1e9, 3e9, 1e9]}, "tied").optimal(value),
    )
    for ask in asked:
        with pytest.raises(BadInput, match=f"={value}".replace("+", "") + " must be a "):
            ask()


def test_numbers_beyond_any_run_are_a_slip() -> None:
    assert positive("params", 1e30) == 1e30
    with pytest.raises(BadInput, match=r"params=1e\+31 must be a number above 0 and at most 1e\+30"):
        positive("params", 1e31)


@pytest.mark.parametrize("level", [0.99999999999, 0.49, 0, 1, 95, math.nan, -1])
def test_levels_that_say_nothing_are_refused(level) -> None:
    for ask in (sane_level, paper_law().at_level, lambda level: fit_law(ROWS, level=level)):
        with pytest.raises(BadInput, match="must lie between 0.5 and 0.9999"):
            ask(level)


@pytest.mark.parametrize("points", [[], [{"params": 1e9}]])
def test_candidates_without_an_axis_are_refused(points) -> None:
    with pytest.raises(BadInput, match="candidates .*replicas"):
        next_runs(paper_law(), 1e21, {"params": 1e10, "replicas": 4.0}, candidates=points)
