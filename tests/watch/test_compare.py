"""Comparisons say seeds, spread and baseline, and never mix settings.

pytest tests/watch/test_compare.py
"""

from __future__ import annotations

import json
import math
from statistics import fmean, stdev

import pytest

from diloco.errors import BadInput
from diloco.watch import compare, comparison_table, read_row, write_row
from diloco.watch.compare_page import comparison_headline, group_name


@pytest.fixture
def runs(tmp_path, make_run):
    paths = []
    for seed in range(3):
        paths.append(make_run(tmp_path / f"dp-{seed}", method="dp", sync_every=1, steps=60, seed=seed))
        paths.append(make_run(tmp_path / f"m4-{seed}", steps=60, seed=seed, worse=1.1))
    return paths


def edit_row(path, **changes):
    write_row(path / "row.csv", {**read_row(path / "row.csv"), **changes})


def test_seeds_are_summarised_report_122(runs):
    """A comparison prints mean, spread and an interval over seeds, not one curve."""
    losses = {kind: [read_row(run / "row.csv")["loss"] for run in runs if kind in run.name] for kind in ("dp", "m4")}
    baseline, diloco = comparison_table(runs)
    assert baseline["is_baseline"] and baseline["difference_percent"] is None and baseline["note"] == "baseline"
    assert diloco["n"] == 3 and diloco["seeds"] == [0, 1, 2] and diloco["runs"] == ["m4-0", "m4-1", "m4-2"]
    assert diloco["loss_mean"] == pytest.approx(fmean(losses["m4"]))
    assert diloco["loss_sd"] == pytest.approx(stdev(losses["m4"]))
    assert diloco["difference_percent"] == pytest.approx(100 * (fmean(losses["m4"]) / fmean(losses["dp"]) - 1))
    assert diloco["difference_low_percent"] < diloco["difference_percent"] < diloco["difference_high_percent"]
    json.dumps([baseline, diloco], allow_nan=False)


def test_one_seed_says_so(runs):
    comparison = compare(runs[:2])
    (note,) = comparison.notes
    assert note.startswith("One seed: no spread.")
    diloco = comparison.table()[1]
    assert diloco["note"] == "one seed: no spread"
    assert diloco["loss_sd"] is None and diloco["difference_low_percent"] is None
    assert diloco["difference_percent"] is not None
    assert "one seed: no spread" in comparison_headline(comparison)


def test_some_settings_with_one_seed_are_counted(runs):
    assert compare(runs).notes == []
    assert compare(runs[:3]).notes == ["1 of 2 settings have one seed: no spread, no interval."]


def test_other_settings_are_no_seeds(runs):
    edit_row(runs[1], inner_lr=0.001)
    comparison = compare(runs)
    assert sorted(line["n"] for line in comparison.table()) == [1, 2, 3]
    assert comparison.shown_settings == ["method", "replicas", "sync_every", "inner_lr"]
    assert {group_name(comparison, group) for group in comparison.groups} >= {
        "diloco M=4 H=30 inner_lr=0.001",
        "diloco M=4 H=30 inner_lr=0.003",
    }


@pytest.mark.parametrize("change", [{"overlap": "5"}, {"mixing": "0.5"}, {"merge": "rda"}, {"link": "1mbit"}])
def test_settings_on_the_wire_are_no_seeds(runs, change):
    """They are in the configuration alone; a run from before them has their defaults."""
    ((name, value),) = change.items()
    config = json.loads((runs[1] / "config.json").read_text())["config"]
    (runs[1] / "config.json").write_text(json.dumps({"config": {**config, **change}}))
    comparison = compare(runs)
    assert sorted(line["n"] for line in comparison.table()) == [1, 2, 3]
    assert comparison.shown_settings == ["method", "replicas", "sync_every", name]
    assert {line[name] for line in comparison.table() if line["n"] == 1} == {value}
    names = {group_name(comparison, group) for group in comparison.groups}
    assert names == {"dp", "diloco M=4 H=30", f"diloco M=4 H=30 {name}={value}"}


def test_the_same_seed_twice_is_one_seed(runs):
    edit_row(runs[3], seed=0)
    group = next(line for line in comparison_table(runs) if line["method"] == "diloco")
    assert group["n"] == 2 and len(group["runs"]) == 3


def test_baseline_is_the_best_data_parallel_of_the_same_budget(runs):
    edit_row(runs[0], inner_lr=0.001, loss=1.0)
    edit_row(runs[1], tokens=7)
    lines = comparison_table(runs)
    assert [line["loss_mean"] for line in lines if line["is_baseline"]] == [1.0]
    assert next(line for line in lines if line["tokens"] == 7)["difference_percent"] is None
    assert any("Token budgets differ" in note for note in compare(runs).notes)


def test_diverged_seed_is_not_left_out_of_the_mean(runs):
    edit_row(runs[1], loss=math.nan)
    diloco = comparison_table(runs)[-1]
    assert diloco["loss_mean"] is None and diloco["loss_sd"] is None and diloco["difference_percent"] is None
    assert diloco["note"] == "1 of 3 seeds diverged"


def test_unfinished_runs_are_named_report_143(runs, tmp_path, make_run):
    """An unfinished run is excluded by name, with the count."""
    going = make_run(tmp_path / "going", steps=60, ended=False)
    edit_row(runs[0], loss=None)
    assert compare([*runs, going]).notes[0] == "Left out because they have not ended (2): dp-0, going."
    with pytest.raises(BadInput, match="none of the runs has ended"):
        compare([going])


def test_no_baseline_is_said(runs):
    comparison = compare([run for run in runs if "m4" in run.name])
    assert comparison.notes == ["No data-parallel run (method dp) among these: there is no baseline."]
    assert "the lowest held-out loss: diloco M=4 H=30" in comparison_headline(comparison)


def test_bad_input(runs, tmp_path):
    with pytest.raises(BadInput, match="name at least one"):
        compare([])
    with pytest.raises(BadInput, match="named twice"):
        compare([runs[0], runs[0]])
    with pytest.raises(BadInput, match="does not exist"):
        compare([tmp_path / "nowhere"])
