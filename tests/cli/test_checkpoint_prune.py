"""`diloco checkpoint prune`: what stays, why, and that nothing whole is lost for something damaged.

pytest tests/cli/test_checkpoint_prune.py
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

from support.saved import answer, bytes_of, file_of, flip, refused, said

from diloco.cli import main


def test_prune_keeps_what_was_asked_and_what_that_rests_on(run, capsys):
    """The last is 17, every 3rd is 12: 16 and 8, 4 are what these hold differences to. Best: after 17 steps."""
    before = said(capsys, "ls", run, "--json")
    dry = answer(capsys, "prune", run, "--keep-last", 1, "--dry-run")
    assert dry["removed"] == [4, 8, 12] and dry["kept"] == [16, 17] and dry["bytes"] == bytes_of(run, 4, 8, 12)
    assert said(capsys, "ls", run, "--json") == before
    assert answer(capsys, "prune", run, "--keep-last", 1, "--keep-every", 3)["removed"] == []
    out = said(capsys, "prune", run, "--keep-last", 1, "--keep-best", 1)
    assert "removed 3 checkpoints" in out and "step 4, 8, 12" in out and "kept: step 16, 17" in out
    assert answer(capsys, "verify", run)["steps"] == [16, 17]


def test_prune_says_why_each_stays(run, capsys):
    why = answer(capsys, "prune", run, "--keep-last", 1, "--keep-every", 3, "--keep-best", 1, "--dry-run")["why"]
    assert why == {
        "4": "step 12 rests on it",
        "8": "step 12 rests on it",
        "12": "number 3 of the run, a multiple of 3",
        "16": "step 17 rests on it",
        "17": "one of the newest 1",
    }
    out = said(capsys, "prune", run, "--keep-last", 1)
    assert "  step 16: step 17 rests on it\n" in out and "  step 17: one of the newest 1\n" in out


def unfinished(run: Path, step: int) -> Path:
    folder = file_of(run, step).parent
    folder.mkdir()
    (folder / "global.0.safetensors").write_bytes(b"half")
    return folder


def test_prune_removes_what_is_damaged_and_what_was_never_finished(run, capsys):
    """8 is damaged, so 12 is of no use; the folders of steps 6 and 20 never became checkpoints."""
    file_of(run, 8).write_bytes(file_of(run, 8).read_bytes()[:-3])
    folders = [unfinished(run, 6), unfinished(run, 20)]
    dry = answer(capsys, "prune", run, "--dry-run")
    assert dry["removed"] == [8, 12] and dry["unfinished"] == [6, 20] and dry["kept"] == [4, 16, 17]
    assert all(folder.exists() for folder in (*folders, file_of(run, 8).parent, file_of(run, 12).parent))
    out = said(capsys, "prune", run)
    assert f"  step 8 cannot be used: {file_of(run, 8)} has " in out and "  step 12 cannot be used: " in out
    assert "removed what is left of saves that were never finished: step 6, 20" in out and "kept: step 4, 16, 17" in out
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == [f"step-{s:08d}" for s in (4, 16, 17)]


def test_prune_does_not_keep_a_damaged_one_in_the_place_of_a_whole_one(run, capsys):
    """Of its size, so that only reading it tells."""
    flip(file_of(run, 17))
    printed = answer(capsys, "prune", run, "--keep-last", 1)
    assert printed["kept"] == [16] and printed["damaged"] == {"17": f"{file_of(run, 17)} does not match its sha256"}
    flip(file_of(run, 16))
    assert "holds no whole checkpoint, so none is removed" in refused(capsys, "prune", run, "--keep-last", 1)
    assert file_of(run, 16).exists()


def test_prune_leaves_what_a_run_may_be_writing_and_what_it_cannot_judge(run, capsys):
    old, newest = unfinished(run, 6), unfinished(run, 20)
    manifest = file_of(run, 4, "manifest.json")
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": 3}))
    lock = os.open(run, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        printed = answer(capsys, "prune", run, "--keep-last", 1)
    finally:
        os.close(lock)
    assert not old.exists() and newest.exists() and printed["unfinished"] == [6]
    assert printed["removed"] == [] and list(printed["left"]) == ["4", "8", "12", "20"]
    assert "use a matching release" in printed["left"]["8"] and "a run may be writing it" in printed["left"]["20"]


def test_a_pruned_run_goes_on(run, ground, capsys):
    said(capsys, "prune", run, "--keep-last", 1)
    flags = ground.flags(run.parent, name="run", checkpoint_every=1, keep=0, full_every=3, eval_every=8)
    assert main(["train", *flags, "--resume", "--json"]) == 0
