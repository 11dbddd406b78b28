"""A run's facts, and above all its failures.

pytest tests/watch/test_summary.py
"""

from __future__ import annotations

import json
import math

import pytest

from diloco.watch.runfolder import RunFolder
from diloco.watch.summary import data_parallel_bytes, flatten, problems, summarize


def summary_of(path):
    return summarize(RunFolder(path))


def test_run_that_went_as_planned(make_run, tmp_path):
    summary = summary_of(make_run(tmp_path / "run", steps=120))
    assert problems(summary) == []
    assert summary.ended and summary.weights == "global"
    assert (summary.rounds_planned, summary.rounds_committed, summary.rounds_failed) == (4, 4, 0)
    assert summary.loss == summary.facts["loss"] and summary.final["step"] == 100
    assert summary.bytes_sent == 4 * 4 * 800_000
    assert summary.bytes_data_parallel == 120 * 1.5 * 4 * 800_000 == data_parallel_bytes(800_000, 120, 4)


def test_run_of_failed_rounds_cannot_hide_report_117(make_run, tmp_path):
    """A run whose every sync failed is told apart from one that worked, whatever its loss."""
    none = summary_of(make_run(tmp_path / "none", steps=120, failed_rounds=(1, 2, 3, 4)))
    some = summary_of(make_run(tmp_path / "some", steps=120, failed_rounds=(2,)))
    assert problems(none) == ["No round was ever committed: these are independent replicas, not one model."]
    assert problems(some) == ["1 of 4 rounds failed."]


def test_left_out_replicas_and_divergence_are_problems(make_run, tmp_path):
    run = make_run(tmp_path / "run", steps=120, left_out={2: [3], 4: [1, 3]}, final_loss=math.nan)
    assert problems(summary_of(run)) == [
        "The held-out loss is not a number: the run diverged.",
        "Replica 1, 3 was left out of the merge in 2 of 4 rounds.",
    ]


def test_run_that_goes_on_is_read_from_its_config_and_events(make_run, tmp_path):
    summary = summary_of(make_run(tmp_path / "run", steps=70, ended=False))
    assert not summary.ended and summary.rounds_committed == 2
    assert summary.facts["replicas"] == 4 and summary.facts["model"] == "1m"
    assert summary.loss == summary.final["loss"]
    assert summary.bytes_sent == 2 * 4 * 800_000 and summary.bytes_data_parallel is None


def test_empty_run(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    summary = summary_of(tmp_path)
    assert summary.loss is None and summary.final is None and problems(summary) == []


def test_evaluations_of_other_weights_are_kept_apart(tmp_path):
    """Losses are only joined into a curve when they were measured on the same weights."""
    (tmp_path / "config.json").write_text("{}")
    events = [
        {"time": 0, "kind": "eval", "step": step, "tokens": step, "loss": loss, "weights": weights}
        for step, loss, weights in [(1, 3.0, "replica 0"), (1, 2.0, "global"), (2, 1.0, "replica 0")]
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    summary = summary_of(tmp_path)
    assert summary.weights == "global" and [event["loss"] for event in summary.evals] == [2.0]


def test_data_parallel_run_has_no_rounds(make_run, tmp_path):
    summary = summary_of(make_run(tmp_path / "run", method="dp", steps=60))
    assert not summary.has_rounds and problems(summary) == []


@pytest.mark.parametrize("tree, leaves", [({}, []), ({"a": {"b": 1, "c": {"d": [2]}}}, [("a.b", 1), ("a.c.d", [2])])])
def test_flatten(tree, leaves):
    assert list(flatten(tree)) == leaves
