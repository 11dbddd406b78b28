"""What users call a checkpoint, in every way they may.

pytest tests/train/test_locate.py
"""

from __future__ import annotations

import pytest

from diloco.errors import BadInput
from diloco.train.locate import Located, locate_checkpoint
from diloco.watch.runfolder import write_json


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run" / "checkpoints" / "step-00000040").mkdir(parents=True)
    write_json(tmp_path / "run" / "config.json", {"config": {"size": "30k"}})
    return tmp_path / "run"


def test_a_run_and_its_parts_are_the_same_place(run):
    store = str(run / "checkpoints")
    assert (
        locate_checkpoint(str(run))
        == locate_checkpoint(f"{run}/")
        == locate_checkpoint(store)
        == Located(store, None, run)
    )
    forty = Located(store, 40, run)
    assert (
        locate_checkpoint(f"{run}@40")
        == locate_checkpoint(f"{store}@40")
        == locate_checkpoint(f"{store}/step-00000040")
        == forty
    )


def test_a_run_that_keeps_its_checkpoints_elsewhere(run):
    write_json(run / "config.json", {"config": {"checkpoint_to": "memory://far/away"}})
    assert locate_checkpoint(f"{run}@3") == Located("memory://far/away", 3, run)


def test_relative_paths_and_an_at_in_a_name(run, monkeypatch):
    monkeypatch.chdir(run / "checkpoints")
    assert locate_checkpoint("step-00000040") == Located(".", 40, run)
    monkeypatch.chdir(run.parent)
    (run.parent / "me@home").mkdir()
    assert locate_checkpoint("me@home") == Located("me@home", None, None)
    assert locate_checkpoint("run@40") == Located("run/checkpoints", 40, run.relative_to(run.parent))


def test_urls(run):
    assert locate_checkpoint("s3://bucket/run") == Located("s3://bucket/run", None, None)
    assert locate_checkpoint("s3://bucket/run/@7") == Located("s3://bucket/run", 7, None)
    assert locate_checkpoint("sftp://me@host/run") == Located("sftp://me@host/run", None, None)
    assert locate_checkpoint("s3://bucket/run/step-00000012") == Located("s3://bucket/run", 12, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [("{run}x", "does not exist"), ("{run}/checkpoints/step-00000040@7", "names two steps"), ("", "does not exist")],
)
def test_what_is_not_there_is_refused(run, text, words):
    with pytest.raises(BadInput, match=words):
        locate_checkpoint(text.format(run=run))
