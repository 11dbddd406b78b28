"""fit, predict, advise and next-runs from end to end, on the paper's rows and on made ones.

pytest tests/cli/test_laws.py
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.cli import answer, refusal, text

from diloco.cli import main
from diloco.cli.fit_text import coefficients_table
from diloco.cli.law_input import gather_pairs
from diloco.errors import BadInput
from diloco.laws import fit_law, load_law
from diloco.laws.published import paper_rows


def write_rows(path: Path, **columns: object) -> Path:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def ladder(loss_name: str = "loss") -> dict[str, np.ndarray]:
    """Twelve exact runs of 2 + 40 params^-0.2 replicas^0.05."""
    params, replicas = (grid.ravel() for grid in np.meshgrid([1e7, 3e7, 1e8, 3e8], [1, 2, 4]))
    return {"params": params, "replicas": replicas, loss_name: 2 + 40 * params**-0.2 * replicas**0.05}


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The paper's Table 4 as a file."""
    rows = paper_rows()
    names = ("params", "replicas", "loss")
    path = tmp_path_factory.mktemp("laws") / "paper.csv"
    return write_rows(path, **{name: rows.column(name) for name in names})


@pytest.fixture(scope="module")
def law(paper: Path) -> Path:
    out = paper.parent / "law.json"
    assert main(["fit", str(paper), "--compare-forms", "--out", str(out), "--json"]) == 0
    return out


# -- fit


def test_fit_json_has_the_fixed_keys(paper, capsys):
    printed = answer(capsys, "fit", paper, "--form", "A*params^a*replicas^b")
    assert printed["form"] == "expression" and printed["expression"] == "A*params^a*replicas^b"
    coefficients = printed["coefficients"]
    assert coefficients["A"] == pytest.approx(19.226, rel=0.01)  # Table 10
    assert coefficients["params"] == pytest.approx(-0.0985, abs=1e-3)
    assert coefficients["replicas"] == pytest.approx(0.0116, abs=1e-3) and coefficients["floor"] == 0
    low, high = printed["intervals"]["params"]
    assert low < coefficients["params"] < high
    assert printed["holdout"]["splits"][0]["tested"] == 4


def test_fit_always_prints_hold_out_baselines_starts_and_pulls_report_138_139_146(paper, capsys):
    out = text(capsys, "fit", paper)
    assert "loss = A*params^a*replicas^b + floor" in out and "random starts end at this optimum" in out
    assert "params to 1.273e+09" in out and "carried over" in out and "no floor" in out and "inside" in out
    assert "leaving one run out" in out and "moves params, se" in out and "row 4" in out


def test_fit_names_bad_rows_and_leaves_them_out_on_request_report_143(tmp_path, capsys):
    columns = {name: values.tolist() for name, values in ladder().items()}
    columns["status"] = ["finished"] * 12
    columns["loss"][2], columns["status"][5] = "nan", "crashed"
    path = write_rows(tmp_path / "rows.csv", **columns)
    said = refusal(capsys, "fit", path)
    assert "2 of 12 rows" in said and "row 3" in said and "row 6" in said and "crashed" in said
    out = text(capsys, "fit", path, "--bad", "drop")
    assert "10 runs" in out and "note: 2 of 12 rows were left out" in out


def test_columns_are_mapped_chosen_and_pooled_in_any_order(tmp_path, capsys):
    columns = ladder("val_loss_nats") | {"method": ["diloco"] * 12, "tokenizer": ["a"] * 6 + ["b"] * 6}
    path = write_rows(tmp_path / "rows.csv", **columns)
    chosen = ["--where", "method=diloco", path, "--where", "replicas=1", "--pool", "tokenizer"]
    printed = answer(capsys, "fit", "--map", "loss=val_loss_nats", *chosen, "--form", "A*params^a", "--fixed", "A=40")
    assert printed["certificate"]["rows"] == 4 and printed["coefficients"]["A"] == 40
    assert "mix tokenizer" in refusal(capsys, "fit", path, "--map", "loss=val_loss_nats")


def test_pairs_belong_to_their_flag_wherever_it_stands():
    flags = ("--map", "--where")
    words = ["--map", "a=1", "rows.csv", "--where=b=2", "--out", "x=y", "--map", "c=3", "d=4"]
    assert gather_pairs(words, flags) == ["rows.csv", "--out", "x=y", "--map", "a=1", "c=3", "d=4", "--where", "b=2"]
    assert gather_pairs(["rows.csv", "--map", "loss"], flags) == ["rows.csv", "--map", "loss"]


def test_compared_forms_come_best_first_and_the_best_is_kept(paper, law, capsys):
    out = text(capsys, "fit", paper, "--compare-forms")
    kept = load_law(law)
    assert f"({kept.form.name}, law {kept.id})" in out and "as good as the best" in out and kept.alternatives
    printed = answer(capsys, "fit", paper, "--compare-forms")
    errors = [line["holdout_error_pct"] for line in printed["comparison"]]
    assert errors == sorted(errors) and printed["comparison"][0]["form"] == printed["form"]


def test_ways_to_count_parameters_are_compared_by_themselves_report_141(tmp_path, capsys):
    body = np.geomspace(1e6, 1e9, 8)
    columns = {"params": body + 3e6 * (body / 1e6) ** 0.4, "params_body": body, "loss": 1.5 + 30 * body**-0.2}
    out = text(capsys, "fit", write_rows(tmp_path / "rows.csv", **columns), "--form", "A*params^a + floor")
    assert "between ways to count parameters" in out


def test_report_and_law_are_written_where_asked(paper, tmp_path, capsys):
    page, out = tmp_path / "a" / "law.html", tmp_path / "b" / "law.json"
    printed = answer(capsys, "fit", paper, "--report", page, "--out", out)
    assert printed["files"] == {"law": str(out), "report": str(page)}
    assert load_law(out).id == printed["law"] and printed["law"] in page.read_text()


def test_outliers_set_aside_are_columns_of_text_and_page(tmp_path, capsys):
    columns = ladder()
    columns["loss"] = columns["loss"] * np.exp(0.002 * np.cos(7 * np.arange(12)))
    columns["loss"][7] *= 1.4
    rows, page = write_rows(tmp_path / "rows.csv", **columns), tmp_path / "law.html"
    words = ("fit", rows, "--form", "A*params^a*replicas^b + floor", "--report", page)
    split = answer(capsys, *words)["holdout"]["splits"][0]
    assert (split["tested"], split["set_aside"]) == (2, 1)
    assert split["mean_error_with_all_pct"] > 5 > split["mean_error_pct"]
    out, said = text(capsys, *words), page.read_text()
    assert "set aside" in out and "error with those" in out and "the hold-out sets aside 1 of 12 rows" in out
    assert "Set aside as outliers to the fit: 1 more of these runs" in said and "with those" in said
    assert "Hollow markers are outliers" in said and "-open" in said


def test_png_needs_matplotlib_and_says_so(paper, tmp_path, capsys, monkeypatch):
    """Before the fit, and before anything else is written."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = refusal(capsys, "fit", paper, "--png", tmp_path / "png", "--out", tmp_path / "law.json")
    assert f"--png {tmp_path / 'png'} needs" in said and "diloco[plots]" in said and "take --report" in said
    assert not list(tmp_path.iterdir())


def test_a_sweep_gives_laws_of_learning_rate_and_batch(tmp_path, capsys):
    """Grids around known optima: inner lr 30 params^-0.5, batch 100 params^0.5, outer lr 0.6."""
    columns: dict[str, list[float]] = {
        name: [] for name in ("params", "replicas", "inner_lr", "batch_tokens", "outer_lr", "loss")
    }
    for params in (1e7, 4e7, 16e7, 64e7):
        for lr in (0.5, 1, 2):
            for batch in (0.5, 1, 2):
                for outer in (0.4, 0.6, 0.8):
                    off = np.log2(lr) ** 2 + np.log2(batch) ** 2 + (outer - 0.6) ** 2
                    loss = (2 + 40 * params**-0.2) * (1 + 0.01 * off)
                    row = (params, 2, lr * 30 * params**-0.5, batch * 100 * params**0.5, outer, loss)
                    for name, value in zip(columns, row, strict=True):
                        columns[name].append(value)
    sweep, rates, out = write_rows(tmp_path / "sweep.csv", **columns), tmp_path / "rates.json", tmp_path / "law.json"
    form = ("--form", "A*params^a + floor")
    printed = answer(capsys, "fit", sweep, *form, "--hyperparameters", rates, "--out", out)
    assert printed["coefficients"]["floor"] == pytest.approx(2, rel=1e-3) and printed["certificate"]["rows"] == 4
    assert printed["hyperparameters"]["laws"]["inner_lr"]["params"] == pytest.approx(-0.5, rel=1e-3)
    asked = ("--params", "256e7", "--replicas", 2, "--level", 0.9)
    said = answer(capsys, "predict", "--law", out, "--hyperparameters", rates, *asked)
    assert said["inner_lr"] == pytest.approx(30 * 256e7**-0.5, rel=1e-3) and said["outer_lr"] == 0.6
    assert said["batch_tokens"] == pytest.approx(100 * 256e7**0.5, rel=1e-3) and said["level"] == 0.9
    assert "outer_lr = 0.6 at 2 replicas" in text(capsys, "fit", sweep, *form, "--hyperparameters", rates)
    # The runs of the loss law go by the rows of the user's file, not by those of the table of optima.
    best = [14 + 27 * i for i in range(4)]
    assert [run["run"] for run in printed["runs"]] == [f"row {row} (line {row + 1})" for row in best]


def test_rows_that_fit_exactly_are_said_to_and_nothing_is_made_of_rounding(tmp_path, capsys):
    out = text(capsys, "fit", write_rows(tmp_path / "rows.csv", **ladder()))
    assert "noise 0%, which is an exact fit" in out and "fit this law exactly" in out
    assert "random starts" not in out and "standard deviations)" not in out and "leaving one run out" not in out
    assert "0.00%" not in out and max(map(len, out.splitlines())) < 200


def test_numbers_that_json_has_no_word_for_are_shown():
    found = {
        "coefficients": {"A": None, "params": -0.2},
        "intervals": {"A": [0.0, None], "params": None},
        "level": 0.95,
    }
    _, values, intervals = coefficients_table(found).columns
    assert list(values.cells) == ["beyond any number", "-0.2"]
    assert list(intervals.cells) == ["0 to no upper limit", "\N{EN DASH}"]


def test_a_name_given_twice_means_either_value(tmp_path, capsys):
    path = write_rows(tmp_path / "rows.csv", **ladder())
    assert answer(capsys, "fit", path, "--where", "replicas=1", "replicas=2")["certificate"]["rows"] == 8


def test_notes_speak_of_flags_to_the_command_line(tmp_path, capsys):
    path = write_rows(tmp_path / "rows.csv", **ladder())
    assert "--where replicas=4" in text(capsys, "fit", path, "--form", "A*params^a + floor")


# -- predict


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


# -- all of them


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("fit", ("ROWS is missing", "diloco fit rows.csv")),
        ("fit {tmp}/no.csv", ("{tmp}/no.csv does not exist",)),
        ("fit {rows} --form chinchila", ("--form chinchila is not known", "the nearest are chinchilla, ")),
        ("fit {rows} --form A*size^a", ("size", "columns are")),
        ("fit {rows} --map loss", ("map is loss", "loss=val_bpb")),
        ("fit {rows} --map loss=bpb", ("map loss=bpb", "no column 'bpb'")),
        ("fit {rows} --where method=dp", ("where method=dp", "no column 'method'")),
        ("fit {rows} --fixed floor=low", ("fixed floor is low", "floor=1.69")),
        ("fit {rows} --level 95", ("--level 95", "0.95")),
        ("fit {rows} --level 0.99999999999", ("--level 1 ", "0.9999")),
        ("fit {rows} --form floor", ("--form floor is not known", "nearest are sum-floor, power-floor, coupled-floor")),
        ("fit {rows} --fixed floor=1 --fixed floor=2", ("--fixed gives floor both 1 and 2",)),
        ("fit {rows} --fixed a=100", ("--fixed a=100", "-4 to 4")),
        ("fit {rows} --pool colour", ("--pool colour has no effect", "tokenizer")),
        ("fit {rows} --where replicas=8 replicas=9", ("--where replicas=8 replicas=9 leaves no row",)),
        ("fit {rows} --target bpb", ("--map bpb=",)),
        ("fit {rows} --out {tmp}", ("--out {tmp} is a folder: name a file",)),
        ("fit {rows} --report {tmp}", ("--report {tmp} is a folder: name a file",)),
        ("fit /dev/null", ("/dev/null is a device",)),
        ("fit {tmp}", ("folder {tmp} holds no runs",)),
        ("predict --params 1e9 --law {tmp}", ("--law is {tmp}, which is no file",)),
        ("predict --params 1e9 --level 0", ("--level is 0.0 and law is paper",)),
        ("predict --params 1e9 --replicas nan", ("--replicas nan must be a number above 0",)),
        ("predict --params 1e9 --tokens 0", ("--tokens 0 must be",)),
        ("predict --law paper:table10:loss:joint --params 1e9 --replicas -1", ("--replicas -1 must be",)),
        ("advise --params 1e9 --tokens inf", ("--tokens inf must be",)),
        (
            "advise --params 1e9 --law paper --hyperparameters h.json",
            ("--hyperparameters is h.json, which is no file",),
        ),
        ("advise --params 1e9 --law paper --at H=0", ("--at is sync_every=0",)),
        ("next-runs --law paper --params 1e10 --budget inf", ("--budget inf must be a finite number above 0",)),
        ("next-runs --law paper --params 1e10 --budget nan", ("--budget nan must be a finite number above 0",)),
        ("next-runs --law paper --params 1e10 --budget -1", ("--budget -1 must be a finite number above 0",)),
        ("next-runs --law paper --params 1e10 --budget 1e21 --tokens nan", ("--tokens nan must be",)),
        ("fit {rows} --loss l1", ("--loss is l1", "robust, mse, huber")),
        ("fit {rows} --out {rows}/law.json", ("{rows}", "cannot be written")),
        ("fit {rows} --hyperparameters {tmp}/h.json", ("batch_tokens",)),
        ("predict", ("params is missing", "10e9")),
        ("predict --law papper --params 1e9", ("law is papper", "diloco fit --out")),
        ("predict --law {rows} --params 1e9", ("{rows} is not JSON",)),
        ("predict --law paper:table7 --params 1e9", ("'paper:table7' is not known",)),
        ("predict --law paper:table7:loss:replicas=4 --params 1e9", ("replicas is 1", "--replicas 4")),
        ("predict --law papr --params 1e9", ("did you mean paper", "article", "paper:table7:loss:dp")),
        ("advise --law papr --params 1e9", ("did you mean paper", "or paper")),
        ("predict --law {rows}.json --params 1e9 --at tokens_per_param=1e308", ("--at is tokens_per_param=1e+308",)),
        ("fit {status}", ("no numeric column 'loss'", "--map loss=final_bpb")),
        ("predict --params 1e9 --at H=3", ("at is H=3", "law is paper")),
        ("predict --params -1", ("params -1", "above 0")),
        ("predict --params inf", ("params inf", "above 0")),
        ("predict --law paper:table10:loss:joint --params -1", ("params -1", "above 0")),
        ("fit {rows} --seed -1", ("seed -1", "below 0")),
        ("fit {rows} --form A*loss^a", ("target loss", "axis")),
        ("predict --params ten", ("--params is ten", "a number")),
        ("advise", ("params is missing",)),
        ("advise --params 1e9 --at H=3", ("at is H=3 without a law",)),
        ("advise --params 1e9 --hyperparameters h.json", ("hyperparameters is h.json without a law",)),
        ("next-runs --budget 1e20", ("law is missing", "law.json")),
        ("next-runs --law paper --params 1e10", ("budget is missing", "1e21")),
        ("next-runs --law paper --budget 1e21", ("params is missing", "--params 10e9")),
        ("next-runs --law paper --budget 1e3 --params 1e10", ("--budget 1000", "cheapest")),
    ],
)
def test_bad_input_ends_in_one_sentence(words, says, tmp_path, capsys):
    rows = write_rows(tmp_path / "rows.csv", **ladder())
    status = write_rows(tmp_path / "status.csv", params=[1e7, 1e8], final_bpb=[3.0, 2.5], status=["full text"] * 2)
    if "{rows}.json" in words:
        fit_law(str(rows), "A*params^a + floor", holdout=False).save(f"{rows}.json")
    said = refusal(capsys, *words.format(tmp=tmp_path, rows=rows, status=status).split())
    for part in says:
        assert part.format(tmp=tmp_path, rows=rows) in said


@pytest.mark.parametrize("words", ["fit {rows}", "predict --params 10e9 --replicas 4", "advise --params 10e9"])
def test_answers_import_neither_torch_nor_plotly(words, paper):
    code = (
        f"import sys, diloco.cli as c; code = c.main({words.format(rows=paper).split()!r}); "
        "sys.exit(code or bool({'torch', 'plotly', 'pandas', 'diloco.train'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_python_has_the_same_names():
    import diloco

    law = diloco.fit_law(ladder(), "A*params^a*replicas^b + floor")
    assert law.coefficients["floor"] == pytest.approx(2) and law.report()["form"] == "expression"
    assert law.predict(params=1e9, replicas=4).value == pytest.approx(2 + 40 * 1e9**-0.2 * 4**0.05)
