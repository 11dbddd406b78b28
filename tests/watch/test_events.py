"""Events survive killed writers, resumes and non-finite values.

pytest tests/watch/test_events.py
"""

from __future__ import annotations

import json
import math

import pytest

from diloco.errors import BadInput
from diloco.watch import strict
from diloco.watch.events import EventLog, read_events, truncate_after


@pytest.fixture
def log_path(tmp_path):
    path = tmp_path / "run" / "events.jsonl"
    clock = iter(range(100, 200))
    with EventLog(path, clock=lambda: float(next(clock))) as log:
        for step in (1, 2, 3):
            log.write("train", step, loss=1.0 / step)
        log.write("eval", 3, loss=0.5, weights="global")
    return path


def test_one_object_a_line_in_order(log_path):
    lines = log_path.read_text().splitlines()
    assert json.loads(lines[0]) == {"time": 100.0, "kind": "train", "step": 1, "loss": 1.0}
    assert [event["step"] for event in read_events(log_path)] == [1, 2, 3, 3]
    assert [event["weights"] for event in read_events(log_path, kinds={"eval"})] == ["global"]


def test_each_event_is_readable_at_once(tmp_path):
    with EventLog(tmp_path / "e.jsonl") as log:
        log.write("note", 0, text="started")
        assert [event["text"] for event in read_events(tmp_path / "e.jsonl")] == ["started"]


def test_every_torn_last_line_is_passed_over_and_cut(log_path):
    whole = log_path.read_bytes()
    last = whole.rindex(b"\n", 0, len(whole) - 1) + 1
    for cut in range(last, len(whole)):
        log_path.write_bytes(whole[:cut])
        assert [event["step"] for event in read_events(log_path)] == [1, 2, 3]
        with EventLog(log_path) as log:
            log.write("note", 4, text="resumed")
        assert [event["step"] for event in read_events(log_path)] == [1, 2, 3, 4]


@pytest.mark.parametrize("length", [0, 1, 1 << 16, (1 << 16) + 1, 200_000])
def test_torn_line_longer_than_one_read(log_path, length):
    whole = log_path.read_bytes()
    log_path.write_bytes(whole + b"x" * length)
    EventLog(log_path).close()
    assert log_path.read_bytes() == whole


def test_log_of_one_torn_line_starts_anew(tmp_path):
    (tmp_path / "e.jsonl").write_bytes(b'{"time"')
    EventLog(tmp_path / "e.jsonl").close()
    assert (tmp_path / "e.jsonl").read_bytes() == b""


@pytest.mark.parametrize("line", ["not json", "[1]", '{"step": 1}', '{"time": NaN, "kind": "x", "step": 1}'])
def test_bad_line_is_named(log_path, line):
    log_path.write_text(line + "\n" + log_path.read_text())
    with pytest.raises(BadInput, match="events.jsonl:1 is not an event"):
        list(read_events(log_path))


def test_resume_writes_each_event_once(log_path):
    before = log_path.read_bytes()
    assert truncate_after(log_path, 3) == 0
    assert log_path.read_bytes() == before
    assert truncate_after(log_path, 2) == 2
    with EventLog(log_path) as log:
        log.write("train", 3, loss=0.25)
    assert [(event["kind"], event["step"]) for event in read_events(log_path)] == [("train", s) for s in (1, 2, 3)]
    assert truncate_after(log_path.with_name("none"), 1) == 0


def test_nonfinite_values_are_strict_json_on_disk_and_come_back(tmp_path):
    with EventLog(tmp_path / "e.jsonl") as log:
        log.write("train", 1, loss=math.nan, loss_per_replica=[1.0, math.inf], by={"a/b~": -math.inf})
    raw = json.loads((tmp_path / "e.jsonl").read_text(), parse_constant=pytest.fail)
    assert raw["loss"] is None and raw["loss_per_replica"] == [1.0, None]
    assert raw["nonfinite"] == {"/loss": "nan", "/loss_per_replica/1": "inf", "/by/a~1b~0": "-inf"}
    (event,) = read_events(tmp_path / "e.jsonl")
    assert math.isnan(event["loss"]) and event["loss_per_replica"] == [1.0, math.inf]
    assert event["by"] == {"a/b~": -math.inf} and "nonfinite" not in event


def test_what_json_cannot_say_is_refused(tmp_path):
    with EventLog(tmp_path / "e.jsonl") as log:
        with pytest.raises(TypeError):
            log.write("train", 1, loss=object())
        with pytest.raises(ValueError, match="'nonfinite' is taken"):
            log.write("train", 1, nonfinite=1)
    assert (tmp_path / "e.jsonl").read_bytes() == b""


def test_strict_leaves_finite_records_alone():
    record = {"a": [1, 2.5, None, True, "x"], "b": {"c": {}}}
    assert strict.loads(strict.dumps(record)) == json.loads(strict.dumps(record)) == record
