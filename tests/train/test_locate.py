"""What users call a checkpoint, in every way they may.

pytest tests/train/test_locate.py
"""

from __future__ import annotations

import uuid

import pytest

from diloco.errors import BadInput
from diloco.train.locate import Located, locate_checkpoint, split_step
from diloco.watch.runfolder import read_json, write_json

RECORD = {"config": {"size": "30k"}}


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run" / "checkpoints" / "step-00000040").mkdir(parents=True)
    write_json(tmp_path / "run" / "config.json", RECORD)
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


def test_urls_and_their_steps():
    assert split_step("s3://bucket/run") == ("s3://bucket/run", None)
    assert split_step("s3://bucket/run/@7") == ("s3://bucket/run", 7)
    assert split_step("sftp://me@host/run") == ("sftp://me@host/run", None)
    assert split_step("s3://bucket/run/step-00000012") == ("s3://bucket/run", 12)
    assert locate_checkpoint("memory://nobody/was/here@3") == Located("memory://nobody/was/here", 3, None)


def test_a_run_at_a_url_is_a_run(run, tmp_path):
    """By file:// it is the folder itself; from elsewhere settings and tokenizer are fetched."""
    assert locate_checkpoint(f"file://{run}@40") == Located(f"{run}/checkpoints", 40, run)
    assert locate_checkpoint(f"file://{run}/checkpoints/step-00000040") == Located(f"{run}/checkpoints", 40, run)
    memory, url = pytest.importorskip("fsspec").filesystem("memory"), f"memory://{uuid.uuid4().hex}/run"
    memory.pipe_file(f"{url}/config.json", (run / "config.json").read_bytes())
    memory.pipe_file(f"{url}/tokenizer.json", b"{}")
    for text in (url, f"{url}/@40", f"{url}/checkpoints", f"{url}/checkpoints/step-00000040"):
        found = locate_checkpoint(text)
        assert found.store == f"{url}/checkpoints" and found.step == (40 if "40" in text else None)
        assert found.copied and found.run.name == "run" and read_json(found.run / "config.json") == RECORD
        assert (found.run / "tokenizer.json").read_text() == "{}"
    copy = found.run
    del found
    assert not copy.exists()


def test_a_model_for_transformers_is_no_run(tmp_path):
    write_json(tmp_path / "config.json", {"model_type": "persimmon", "architectures": ["PersimmonForCausalLM"]})
    with pytest.raises(BadInput, match="is a model for transformers, not a run: load it with .*--format safetensors"):
        locate_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "words"),
    [("{run}x", "does not exist"), ("{run}/checkpoints/step-00000040@7", "names two steps"), ("", "does not exist")],
)
def test_what_is_not_there_is_refused(run, text, words):
    with pytest.raises(BadInput, match=words):
        locate_checkpoint(text.format(run=run))
