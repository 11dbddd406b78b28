"""`diloco fit` from end to end, on the paper's rows and on made ones.

pytest tests/cli/test_fit.py
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
from support.cli import answer, refusal, text
from support.ladders import ladder, write_rows

from diloco.cli.fit_text import coefficients_table
from diloco.cli.law_input import gather_pairs
from diloco.laws import load_law


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
