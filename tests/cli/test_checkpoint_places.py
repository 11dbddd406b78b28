"""`diloco checkpoint` on URLs, and on runs that save elsewhere.

pytest tests/cli/test_checkpoint_places.py
"""

from __future__ import annotations

import json

import pytest
from support.saved import STEPS, answer

from diloco.cli import main
from diloco.watch.runfolder import RunFolder


def test_a_url_serves_as_a_place(run, tmp_path, capsys):
    """What is there is the same; only the run's own folder has a tokenizer, which bytes need not."""
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    url = f"memory://h/{tmp_path.name}"
    memory.put(str(run / "checkpoints"), f"/h/{tmp_path.name}", recursive=True)
    for place in (url, f"file://{run / 'checkpoints'}", run / "checkpoints"):
        rows = answer(capsys, "ls", place)["checkpoints"]
        assert [row["step"] for row in rows] == STEPS and all(row["problem"] is None for row in rows)
        assert answer(capsys, "verify", place)["ok"]
        assert answer(capsys, "show", f"{place}@12")["chain"] == [12, 8, 4]
        out = tmp_path / f"out-{str(place)[:4]}".replace("/", "_")
        assert answer(capsys, "export", f"{place}@8", "--to", out)["step"] == 8
        assert (out / "tokenizer.json").is_file()
    assert answer(capsys, "prune", url, "--keep-last", 1)["removed"] == [4, 8, 12]
    memory.rm(f"/h/{tmp_path.name}", recursive=True)


def test_a_run_folder_at_a_url_works_like_its_path(ground, tmp_path, capsys):
    """With a vocabulary of its own, which only the run folder has."""
    memory, url = pytest.importorskip("fsspec").filesystem("memory"), f"memory://r/{tmp_path.name}/a"
    assert main(["train", *ground.flags(tmp_path, name="a", data_tokenizer="bpe:300"), "--json"]) == 0
    memory.put(str(tmp_path / "a"), f"/r/{tmp_path.name}/a", recursive=True)
    printed = []
    for place in (str(tmp_path / "a"), f"file://{tmp_path / 'a'}", url, f"{url}/checkpoints"):
        assert [row["step"] for row in answer(capsys, "ls", place)["checkpoints"]] == [17]
        out = tmp_path / f"out-{len(printed)}"
        assert answer(capsys, "export", place, "--to", out)["run"] == "a" and (out / "tokenizer.json").is_file()
        assert main(["eval", place, "--json"]) == 0
        printed.append(json.loads(capsys.readouterr().out)["loss"])
    assert len(set(printed)) == 1
    memory.rm(f"/r/{tmp_path.name}", recursive=True)


def test_a_run_that_saves_elsewhere_is_its_place_all_the_same(ground, tmp_path, capsys):
    pytest.importorskip("fsspec")
    flags = ground.flags(tmp_path, name="a", checkpoint_every=1, checkpoint_to=f"memory://e/{tmp_path.name}")
    assert main(["train", *flags, "--json"]) == 0
    assert [row["step"] for row in answer(capsys, "ls", tmp_path / "a")["checkpoints"]][-2:] == [16, 17]
    assert main(["eval", str(tmp_path / "a"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] == RunFolder(tmp_path / "a").receipt["loss"]
    out = tmp_path / "out"
    assert answer(capsys, "export", f"memory://e/{tmp_path.name}", "--to", out, "--format", "safetensors")["step"] == 17
    expected = RunFolder(tmp_path / "a").receipt["loss"]
    assert main(["eval", str(out), "--json"]) == 0 and json.loads(capsys.readouterr().out)["loss"] == expected
