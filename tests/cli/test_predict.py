"""predict, advise and next-runs from end to end.

pytest tests/cli/test_predict.py
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.cli import answer, refusal, text
from support.ladders import ladder, write_rows

from diloco.cli import main
from diloco.errors import BadInput
from diloco.laws import load_law


def test_predict_has_the_fixed_keys_for_every_kind_of_law(law, capsys):
    keys = {"loss", "loss_low", "loss_high", "inner_lr", "outer_lr", "batch_tokens", "tokens", "law"}
    for name in ("paper", "article", law, "paper:table7:loss:replicas=4"):
        printed = answer(capsys, "predict", "--law", name, "--params", "10e9", "--replicas", 4)
        assert keys <= set(printed) and 1.5 < printed["loss"] < 3, name
    paper = answer(capsys, "predict", "--params", "10e9", "--replicas", 4)
    assert paper["tokens"] == 2e11 and paper["outer_lr"] == 0.6 and paper["loss_low"] < paper["loss"]


def test_every_prediction_carries_where_it_comes_from_report_142(law, capsys):
    known = load_law(law)
    printed = answer(capsys, "predict", "--law", law, "--params", "10e9", "--replicas", 4)
    assert printed["law"] == known.id and printed["data_hash"] == known.data_hash and printed["fixed"] == {}
    expected = known.predict(params=10e9, replicas=4)
    assert (printed["loss"], printed["loss_low"]) == (expected.value, expected.low)
    assert printed["form_low"] <= printed["loss"] <= printed["form_high"] and len(printed["forms"]) == 3
    assert "times the largest run's" in printed["warnings"][0]
    out = text(capsys, "predict", "--law", law, "--params", "10e9", "--replicas", 4)
    assert known.id in out and "95% of new runs between" in out and "times the largest run's" in out


@pytest.mark.parametrize("at", ["params=3", "replicas=2", "rule=3"])
def test_what_is_no_further_axis_is_refused(at, law, capsys):
    assert f"at is {at}" in refusal(capsys, "predict", "--law", law, "--params", "1e9", "--at", at)


def test_answers_beyond_any_number_are_refused(tmp_path, capsys):
    columns = ladder()
    columns["loss"] = columns["loss"] * np.exp(0.05 * np.cos(7 * np.arange(12)))
    rows, out = write_rows(tmp_path / "rows.csv", **columns), tmp_path / "law.json"
    answer(capsys, "fit", rows, "--form", "A*params^a+B*replicas^b+floor", "--out", out)
    for verb in ("predict", "advise"):
        assert "--params 1e+300 must be" in refusal(capsys, verb, "--law", out, "--params", "1e300")
    with pytest.raises(BadInput, match="no finite answer"):
        load_law(out).predict(params=1e300, replicas=1e300)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *((("level",), 2), (("dof",), -1), (("noise",), -1), (("noise",), 1e308), (("theta",), [1.0])),
        *((("theta", 0), {"number": "nan"}), (("theta", 0), "x"), (("covariance",), [[1.0]]), (("runs",), [])),
        *((("form", "expression"), "A*params^"), (("form", "name"), []), (("settings", "fixed", "A"), 3.0)),
        *((("settings", "fixed", "zeta"), 3.0), (("runs", "columns"), {}), (("runs", "labels"), ["a"])),
        *((("level",), {"number": "many"}), (("alternatives",), "x"), (("certificate",), None)),
    ],
)
def test_a_law_file_that_was_tampered_with_is_refused(place, value, law, tmp_path, capsys):
    record = json.loads(law.read_text())
    *path, last = place
    node = record
    for key in path:
        node = node[key]
    node[last] = value
    (tmp_path / "law.json").write_text(json.dumps(record))
    said = refusal(capsys, "predict", "--law", tmp_path / "law.json", "--params", "1e9")
    assert "law.json is" in said and "fit the law again" in said


def test_numbers_that_change_nothing_are_named(law, capsys):
    printed = answer(capsys, "predict", "--law", law, "--params", "1e9", "--tokens", "1e9", "--at", "H=100")
    said = " ".join(printed["warnings"])
    assert "tokens 1e+09 does not change the answer" in said and "sync_every 100 does not" in said
    assert printed["tokens"] == 1e9


def test_a_law_of_other_axes_or_another_target(tmp_path, capsys):
    flops = np.geomspace(1e18, 1e21, 6)
    path = write_rows(tmp_path / "rows.csv", flops=flops, accuracy=0.1 * flops**0.03)
    form = ("--form", "A*flops^a", "--target", "accuracy")
    answer(capsys, "fit", path, *form, "--out", tmp_path / "law.json")
    printed = answer(capsys, "predict", "--law", tmp_path / "law.json", "--at", "flops=1e22")
    assert printed["accuracy"] == pytest.approx(0.1 * 1e22**0.03) and printed["loss"] is None
    assert "accuracy 0.457" in text(capsys, "predict", "--law", tmp_path / "law.json", "--at", "flops=1e22")


@pytest.fixture
def long_trained(tmp_path: Path) -> Path:
    """A law without a token axis, of runs that had 50 tokens a parameter."""
    params = np.geomspace(1e7, 3e9, 8)
    loss = (1 + 40 * params**-0.16) * np.exp(0.003 * np.random.default_rng(2).standard_normal(8))
    rows, out = write_rows(tmp_path / "rows.csv", params=params, tokens=50 * params, loss=loss), tmp_path / "law.json"
    assert main(["fit", str(rows), "--form", "A*params^a + floor", "--out", str(out), "--json"]) == 0
    return out


def test_tokens_left_out_are_as_many_per_parameter_as_the_laws_runs_had(long_trained, law, capsys):
    out = text(capsys, "predict", "--law", long_trained, "--params", "1e9")
    assert "50B training tokens" in out and "note: tokens are taken as 50 per parameter, as in the law's runs" in out
    said = answer(capsys, "advise", "--law", long_trained, "--params", "1e9")["rules"]
    assert (said["fitted"]["tokens"], said["paper"]["tokens"]) == (5e10, 2e10)
    words = ("next-runs", "--law", long_trained, "--budget", "1e22", "--params", "1e10")
    for run in answer(capsys, *words)["runs"]:
        assert run["flops"] == pytest.approx(6 * 50 * run["axes"]["params"] ** 2)
    assert "note: tokens are taken as 50 per parameter" in text(capsys, *words)
    out = text(capsys, "predict", "--law", law, "--params", "1e9")
    assert "20B training tokens" in out and "as 20 per parameter, a rule of thumb" in out
    assert "rule of thumb" not in text(capsys, "predict", "--params", "1e9")  # the paper's runs had 20


def test_tokens_given_twice_or_unlike_the_runs_are_not_passed_over(long_trained, capsys):
    asked = ("predict", "--law", long_trained, "--params", "1e9")
    assert "the law holds at 50 tokens per parameter, not at 20" in text(capsys, *asked, "--tokens", "20e9")
    said = refusal(capsys, *asked, "--tokens", "20e9", "--at", "tokens_per_param=30")
    assert "--at is tokens_per_param=30 beside --tokens 2e+10: give one of them" in said


@pytest.mark.parametrize("verb", [("advise",), ("next-runs", "--budget", "1e22")])
def test_every_verb_names_the_numbers_that_change_nothing(verb, long_trained, capsys):
    out = text(capsys, *verb, "--law", long_trained, "--params", "1e9", "--replicas", 4, "--at", "H=100")
    assert "replicas 4 does not change the answer" in out and "sync_every 100 does not change the answer" in out


def test_a_law_without_params_says_what_it_extrapolates_over(tmp_path, capsys):
    flops = np.geomspace(1e17, 1e21, 8)
    rows, out = tmp_path / "rows.csv", tmp_path / "law.json"
    write_rows(rows, flops=flops, loss=1 + 300 * flops**-0.13 + 0.01 * np.tile([1, -1], 4))
    text(capsys, "fit", rows, "--form", "A*flops^a + floor", "--out", out)
    assert "1e+03 times the largest run's" in text(capsys, "predict", "--law", out, "--at", "flops=1e24")


def test_tokens_per_parameter_change_the_answer_of_a_law_of_tokens(tmp_path, capsys):
    params, ratio = (grid.ravel() for grid in np.meshgrid(np.geomspace(5e7, 2e9, 4), [20.0, 60.0, 200.0]))
    loss = (1.69 + 406.4 * params**-0.34 + 410.7 * (params * ratio) ** -0.28) * (1 + 0.001 * np.sin(np.arange(12)))
    rows, out = tmp_path / "rows.csv", tmp_path / "law.json"
    write_rows(rows, params=params, tokens=params * ratio, loss=loss)
    text(capsys, "fit", rows, "--form", "chinchilla", "--out", out)
    asked = ("predict", "--law", out, "--params", "1e9", "--at")
    assert "does not change" not in text(capsys, *asked, "tokens_per_param=40")
    assert answer(capsys, *asked, "tokens_per_param=40")["loss"] < answer(capsys, *asked, "tokens_per_param=30")["loss"]


def test_a_published_law_says_that_it_does_not_know_tokens(capsys):
    out = text(capsys, "predict", "--law", "paper:table7:loss:dp", "--params", "1e9", "--tokens", "1e9")
    assert "tokens 1e+09 does not change the answer: law paper:table7:loss:dp does not know tokens" in out


# -- advise


def test_advise_sets_three_rules_side_by_side_report_153(law, capsys):
    printed = answer(capsys, "advise", "--params", "10e9", "--replicas", 4, "--law", law)
    assert list(printed["rules"]) == ["article", "paper", "fitted"] and printed["params"] == 10e9
    assert printed["rules"]["article"]["outer_lr"] == pytest.approx(0.0015 * 4**-0.6)
    assert any(sentence.startswith("outer_lr: article") for sentence in printed["disagreements"])
    out = text(capsys, "advise", "--params", "10e9", "--replicas", 4, "--law", law)
    for words in ("article", "paper", "fitted", "they disagree", "ratio of learning rates", "reservations"):
        assert words in out


# -- next-runs


def test_next_runs_spend_the_budget_on_what_narrows_the_answer_report_150(law, capsys):
    words = ("next-runs", "--law", law, "--budget", "1e21", "--params", "10e9", "--replicas", 4)
    printed = answer(capsys, *words)
    assert printed["runs"] and printed["flops"] <= 1e21
    assert printed["half_width_after_pct"] < printed["half_width_before_pct"]
    out = text(capsys, *words)
    assert "known to" in out and "FLOPs" in out


def test_next_runs_take_candidates_with_their_own_cost(law, tmp_path, capsys):
    path = write_rows(tmp_path / "can.csv", N=["1B", "4B"], M=[4, 4], flops=[1e18, 1e20])
    words = ("next-runs", "--law", law, "--budget", "2e20", "--params", "10e9", "--replicas", 4, "--candidates", path)
    printed = answer(capsys, *words)
    assert {(run["axes"]["params"], run["flops"]) for run in printed["runs"]} <= {(1e9, 1e18), (4e9, 1e20)}
    assert printed["runs"]
    for flops in ("-1", "0", "nan", "many"):
        write_rows(path, N=["1B"], M=[4], flops=[flops])
        assert f"row 1 (line 2): flops is '{flops}'" in refusal(capsys, *words)
    write_rows(path, N=["1B"], M=["four"])
    assert "row 1 (line 2): replicas is 'four'" in refusal(capsys, *words)
