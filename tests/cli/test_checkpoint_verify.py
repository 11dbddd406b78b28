"""`diloco checkpoint verify`: every kind of damage is named, with what goes with it.

pytest tests/cli/test_checkpoint_verify.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.saved import STEPS, answer, bytes_of, file_of, flip, said


def test_verify_reads_all_and_finds_nothing(run, capsys):
    printed = answer(capsys, "verify", run)
    assert (printed["ok"], printed["problems"]) == (True, [])
    assert printed["steps"] == printed["whole"] == STEPS and printed["bytes_read"] == bytes_of(run, *STEPS)
    assert answer(capsys, "verify", f"{run}@12")["bytes_read"] == bytes_of(run, 4, 8, 12)
    assert "5 of 5 checkpoints" in said(capsys, "verify", run)


def damage_flip(run: Path) -> str:
    flip(file_of(run, 8))
    return f"{file_of(run, 8)} does not match its sha256"


def damage_tear(run: Path) -> str:
    file_of(run, 8).write_bytes(file_of(run, 8).read_bytes()[:-3])
    return f"{file_of(run, 8)} has "


def damage_remove(run: Path) -> str:
    file_of(run, 8, "replica-1.0.json").unlink()
    return f"{file_of(run, 8, 'replica-1.0.json')} is missing"


def damage_manifest(run: Path) -> str:
    flip(file_of(run, 8, "manifest.json"))
    return f"{file_of(run, 8, 'manifest.json')} is not JSON"


@pytest.mark.parametrize("damage", [damage_flip, damage_tear, damage_remove, damage_manifest])
def test_verify_names_the_damage_and_what_goes_with_it(run, capsys, damage):
    expected = damage(run)
    printed = answer(capsys, "verify", run, code=1)
    assert not printed["ok"] and printed["problems"][0].startswith(expected)
    assert printed["whole"] == [4, 16, 17]
    assert not answer(capsys, "verify", f"{run}@12", code=1)["ok"] and answer(capsys, "verify", f"{run}@17")["ok"]
    out = said(capsys, "verify", run, code=1)
    assert "3 of 5 checkpoints" in out and "the newest that can be used is step 17" in out


def test_verify_says_whose_manifest_a_renamed_folder_holds(run, capsys):
    folder = file_of(run, 17).parent
    folder.rename(folder.with_name("step-00000030"))
    printed = answer(capsys, "verify", run, code=1)
    assert printed["whole"] == [4, 8, 12, 16]
    assert printed["problems"] == [
        f"{folder.with_name('step-00000030')} holds the manifest of step 17: give the folder its own name back, "
        "step-00000017"
    ]
    assert "not touched: step 30" in said(capsys, "prune", run, "--keep-last", 2)
    folder.with_name("step-00000030").rename(folder)
    assert 17 in answer(capsys, "verify", run)["whole"]


def test_verify_says_what_a_missing_link_costs(run, capsys):
    shutil.rmtree(file_of(run, 4).parent)
    printed = answer(capsys, "verify", run, code=1)
    assert printed["whole"] == [16, 17] and str(file_of(run, 4, "manifest.json")) in printed["problems"][0]
    flip(file_of(run, 16))
    assert "undamaged, but of no use without what is damaged: step 17" in said(capsys, "verify", run, code=1)
