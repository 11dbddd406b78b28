"""How refusals name an argument, to Python and to the command line, and which numbers they refuse.

pytest tests/laws/test_arguments.py
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from diloco.errors import BadInput
from diloco.laws import advise, bootstrap, compare_forms, fit_law, next_runs, published_law, read_rows, recommend
from diloco.laws.arguments import counted, named, positive, sane_level, speaking_flags
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


CHINCHILLA = ROWS | {"tokens": [1e9, 3e9, 1e9, 3e9, 1e9]}
POINT = {"params": 1e9, "replicas": 2.0}


@pytest.mark.parametrize(
    "ask, says",
    [
        (
            lambda: paper_law().predict(params=[1e9, 2e9], replicas=1),
            "params holds 2 numbers .* law.curve takes arrays",
        ),
        (
            lambda: paper_law().predict(params=np.ones(3), replicas=1),
            "params holds 3 numbers .* law.curve takes arrays",
        ),
        (lambda: paper_law().predict(params=None, replicas=1), "params is None: give one number"),
        (lambda: paper_law().predict(params=True, replicas=1), "params is True: give one number"),
        (lambda: paper_law().predict(params="many", replicas=1), "params is 'many': give one number"),
        (lambda: paper_law().predict(params=1e9 + 0j, replicas=1), "give one number"),
        (lambda: paper_law().predict(params=10**400, replicas=1), "params=inf must be"),
        (lambda: paper_law().curve([1e9]), "columns is a list: give a dict"),
        (
            lambda: paper_law().curve({"params": [1e9, 2e9], "replicas": [1, 2, 3]}),
            r"params \(2,\), replicas \(3,\) do not",
        ),
        (lambda: paper_law().curve({"params": ["x"], "replicas": 1}), "params is 'x': give one number"),
        (lambda: paper_law().curve({"params": [1e9 + 1j], "replicas": 1}), "params holds values of type complex128"),
        (lambda: paper_law().at_level("high"), "level is 'high': give one number"),
        (lambda: fit_law(ROWS, None), "form is None: give a name, an expression or a Form"),
        (lambda: fit_law(ROWS, 5), "form is 5: give a name"),
        (lambda: fit_law(ROWS, target=3), "target is 3: give the name of a column"),
        (lambda: fit_law(ROWS, level=None), "level is None"),
        (lambda: fit_law(ROWS, seed=1.5), "seed is 1.5: give a whole number, 0 or more"),
        (lambda: fit_law(ROWS, seed=-1), "seed=-1 is below 0: give a whole number"),
        (lambda: fit_law(ROWS, delta="small"), "delta is 'small'"),
        (lambda: fit_law(ROWS, fixed=["floor"]), "fixed is a list: give a dict, as in fixed={'floor': 1.69}"),
        (lambda: fit_law(ROWS, fixed={"floor": "low"}), "fixed floor is 'low': give one number"),
        (lambda: fit_law(CHINCHILLA, "tied").optimal("much"), "flops is 'much': give one number"),
        (lambda: compare_forms(ROWS, [None]), "forms is None: give names"),
        (lambda: read_rows(ROWS, rename=["loss"]), "rename is a list: give a dict"),
        (lambda: read_rows(ROWS, where="params"), "where is 'params': give a dict"),
        (
            lambda: read_rows(ROWS | {"params": np.array(["a", "1", "2", "3", "4"])}),
            "params is 'a', which is no number",
        ),
        (lambda: read_rows(ROWS | {"replicas": 5}), "column replicas is int with no value per run"),
        (lambda: read_rows(ROWS | {"replicas": "abcde"}), "column replicas is str with no value per run"),
        (lambda: read_rows(ROWS | {"replicas": np.ones((5, 1))}), "column replicas is ndarray with no value per run"),
        (lambda: read_rows(ROWS | {"params": np.array(ROWS["params"]) + 0j}), "which is no number"),
        (lambda: read_rows(ROWS | {"loss": np.ma.masked_greater(ROWS["loss"], 3.5)}), "row 1: loss is empty"),
        (lambda: next_runs(paper_law(), None, POINT), "budget_flops is None"),
        (lambda: next_runs(paper_law(), 1e21, 5), "target is 5: give a dict"),
        (lambda: next_runs("law.json", 1e21, POINT), "law is 'law.json': give what fit_law or load_law returned"),
        (lambda: recommend("paper", None), "params is None"),
        (lambda: recommend("paper", [1e9]), "params is a list: give one number"),
        (lambda: advise("many", 4), "params is 'many'"),
        (lambda: advise(1e9, 4, law=5), "law is 5: give a law, or the file"),
        (lambda: advise(1e9, 4, law="none.json"), "none.json does not exist"),
        (lambda: advise(1e9, 4, hyperparameters=5), "hyperparameters is 5"),
        (lambda: bootstrap(None), "law is None"),
        (lambda: bootstrap(paper_law(), draws=0), "draws=0 is below 2"),
        (lambda: published_law("paper:table10:loss:joint").predict(None), "params is None"),
    ],
)
def test_arguments_of_another_type_are_refused_in_one_sentence(ask, says) -> None:
    with pytest.raises(BadInput, match=says) as refused:
        ask()
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400


def test_numbers_may_be_written_as_people_do() -> None:
    assert paper_law().predict(params="1B", replicas=np.float64(2)).value == paper_law().predict(**POINT).value
    assert read_rows(ROWS | {"tokenizer": list("aabbb")}, pool="tokenizer").texts["tokenizer"] == tuple("aabbb")


def test_advise_takes_the_file_of_a_law(tmp_path) -> None:
    paper_law().save(tmp_path / "law.json")
    told = advise(1e9, 2, law=str(tmp_path / "law.json")).recommendations[-1]
    assert told == advise(1e9, 2, law=paper_law()).recommendations[-1] and told.rule == "fitted"


def test_a_law_prints_as_one_line() -> None:
    shown = repr(paper_law())
    assert "loss = A*params^a*replicas^b" in shown and "28 runs" in shown and len(shown) < 200 and "\n" not in shown


@pytest.mark.parametrize(
    "count, shown", [(1, "1 run"), (2, "2 runs"), (0, "0 runs"), (1.5, "1.5 runs"), (12345678, "12345678 runs")]
)
def test_a_count_agrees_with_its_noun(count, shown) -> None:
    assert counted(count, "run") == shown


def test_counts_in_sentences_agree_with_their_nouns() -> None:
    rows = read_rows(ROWS | {"loss": [3.6, math.nan, 3.0, 2.8, 2.6]}, bad="drop")
    assert rows.notes[0].startswith("1 of 5 rows was left out")
    rows = read_rows(ROWS | {"loss": [math.nan, math.nan, 3.0, 2.8, 2.6]}, bad="drop")
    assert rows.notes[0].startswith("2 of 5 rows were left out")


# -- names that are no axis, and numbers that change nothing


def size_law():
    table = ROWS | {"tokens": [20 * params for params in ROWS["params"]]}
    return fit_law(table, "A*params^a + floor", holdout=False)


@pytest.mark.parametrize(
    "asked, says",
    [
        ({"banana": 3}, "banana is no axis: this law is .*, so give params"),
        ({"tokens": -1}, "tokens=-1.0 must be a finite number above 0"),
        ({"replicas": math.nan}, "replicas=nan must be"),
        ({"sync_every": "often"}, "sync_every is 'often'"),
    ],
)
def test_what_no_law_can_be_asked_is_refused(asked, says) -> None:
    law = size_law()
    for ask in (law.predict, lambda **point: recommend(law, **point)):
        with pytest.raises(BadInput, match=says.replace("-1.0", r"-1(\.0)?").replace("finite ", "(finite )?")):
            ask(params=1e9, **asked)
    with pytest.raises(
        BadInput, match=says.split(":")[0].replace("-1.0", r"-1(\.0)?").replace("finite ", "(finite )?")
    ):
        law.curve({"params": [1e8, 1e9], **asked})


def test_what_a_law_does_not_know_changes_nothing_and_it_says_so() -> None:
    law = size_law()
    assert law.predict(params=1e9, tokens=2e10).warnings == law.predict(params=1e9).warnings == ()
    (said,) = law.predict(params=1e9, tokens=4e10).warnings
    assert said == "the law holds at 20 tokens per parameter, not at 40"
    assert said in recommend(law, 1e9, tokens=4e10).warnings
    unknown = "sync_every 100 does not change the answer: the law, A*params^a + floor, does not know sync_every"
    assert law.predict(params=1e9, sync_every=100).warnings == (unknown,)
    assert unknown in recommend(law, 1e9, sync_every=100).warnings
    assert "the paper's rule does not know sync_every" in recommend("paper", 1e9, sync_every=100).warnings[-1]
    assert "the article's rule does not know tokens" in recommend("article", 1e9, tokens=4e10).warnings[-1]
    both = fit_law(ROWS, "A*params^a + floor", holdout=False)
    assert both.predict(params=1e9, tokens=4e10).warnings[0].startswith("tokens 4e+10 does not change the answer")


def test_tokens_are_given_once_and_as_a_number() -> None:
    for rule in ("paper", "article", size_law()):
        with pytest.raises(BadInput, match="tokens_per_param is 'x'"):
            recommend(rule, 1e9, tokens_per_param="x")
        with pytest.raises(BadInput, match="tokens=1000000000.0 beside tokens_per_param 20 is one too many"):
            recommend(rule, 1e9, tokens=1e9, tokens_per_param=20)
        with pytest.raises(BadInput, match="makes 1e\\+38 tokens, which no run has"):
            recommend(rule, 1e9, tokens_per_param=1e29)
        assert recommend(rule, 1e9, tokens_per_param=30).tokens == 3e10
    with pytest.raises(BadInput, match="banana is no axis"):
        recommend("paper", 1e9, banana=3)


@pytest.mark.parametrize("cell, says", [({"flops": "many"}, "flops is 'many'"), ({"tokens": None}, "tokens is None")])
def test_candidates_hold_numbers(cell, says) -> None:
    law, target = size_law(), {"params": 1e10}
    with pytest.raises(BadInput, match=says):
        next_runs(law, 1e21, target, candidates=[{"params": 1e9} | cell])
    (run,) = next_runs(law, 1e21, target, candidates=[{"params": "2B", "flops": "1e18"}])
    assert (run.axes["params"], run.flops) == (2e9, 1e18)


def test_predict_refuses_tokens_that_contradict_their_ratio() -> None:
    params = np.repeat(np.geomspace(1e7, 1e9, 5), 2)
    ratio = np.tile([20.0, 80.0], 5)
    rows = {"params": params, "tokens": params * ratio, "loss": 1 + 40 * params**-0.16 * ratio**-0.05}
    law = fit_law(rows, "A*params^a*tokens_per_param^b + floor", holdout=False)
    with pytest.raises(BadInput, match="tokens_per_param 40 beside tokens=1000000000.0, .* 10 per parameter: give one"):
        law.predict(params=1e8, tokens_per_param=40, tokens=1e9)
    assert law.predict(params=1e8, tokens_per_param=40, tokens=4e9).value == law.predict(params=1e8, tokens=4e9).value
