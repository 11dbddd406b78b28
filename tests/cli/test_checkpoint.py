"""`diloco checkpoint`: bad input and help of all its verbs.

pytest tests/cli/test_checkpoint.py
"""

from __future__ import annotations

import importlib

import pytest
from support.saved import refused, said

from diloco.cli import options
from diloco.cli.checkpoint import VERBS

REFUSED = {
    "unknown verb": ("lss {run}", "did you mean ls?"),
    "no place": ("ls", "PLACE is missing"),
    "nothing there": ("ls {tmp}/no", "does not exist"),
    "a file": ("show /dev/null", "/dev/null is a file: name a run folder, a folder of checkpoints, or an fsspec URL"),
    "a run's file": ("show {run}/config.json", "config.json is a file: name the folder that it is in, {run}"),
    "a checkpoint's file": (
        "verify {run}/checkpoints/step-00000004/manifest.json",
        "manifest.json is a file: name the folder that it is in, {run}/checkpoints/step-00000004",
    ),
    "no checkpoints": ("show {tmp}", "holds no checkpoint"),
    "no such step": ("show {run}@5", "no checkpoint of step 5: there are 4, 8, 12, 16, 17"),
    "no such step to export": ("export {run}@5 --to {tmp}/x", "no checkpoint of step 5: there are 4, 8, 12, 16, 17"),
    "ls of one": ("ls {run}@4", "leave the step out"),
    "prune of one": ("prune {run}@4", "leave the step out"),
    "two steps": ("verify {run}/checkpoints/step-00000004@4", "names two steps"),
    "keep none": ("prune {run} --keep-last 0", "keep_last is 0: give 1 or more"),
    "keep every -1": ("prune {run} --keep-every=-1", "keep_every is -1"),
    "keep best -1": ("prune {run} --keep-best=-1", "keep_best is -1"),
    "not to anywhere": ("export {run}", "to is missing"),
    "over the run": ("export {run} --to {run}", "holds something already"),
    "to a URL": ("export {run} --to memory://x/y", "to is memory://x/y, a URL: give a folder of this machine"),
    "to a file URL": ("export {run} --to file://{tmp}/x", "a URL: give a folder of this machine"),
    "unknown weights": ("export {run} --to {tmp}/x --weights mean", "weights is 'mean'"),
    "a replica too many": ("export {run} --to {tmp}/x --weights replica-2", "no part 'replica-2'"),
    "unknown format": ("export {run} --to {tmp}/x --format onnx", "--format is onnx: give one of"),
    "unknown dtype": ("export {run} --to {tmp}/x --dtype fp8", "--dtype is fp8: give one of"),
    "unknown option": ("verify {run} --fast", "unknown option --fast"),
    "unknown kind of URL": ("ls nowhere://x", "nowhere://x"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_one_sentence(run, tmp_path, capsys, name):
    words, reason = REFUSED[name]
    assert reason.format(run=run) in refused(capsys, *words.format(run=run, tmp=tmp_path).split())
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("verb", VERBS)
def test_help_lists_every_option(verb, capsys):
    module = importlib.import_module(f"diloco.cli.checkpoint_{verb}")
    out = said(capsys, verb, "--help")
    assert all(flag in out for flag in options.known_flags(getattr(module, f"{verb.title()}Options")))
    assert f"usage: diloco checkpoint {verb}" in out and "PLACE" in out


def test_the_overview_names_every_verb_and_kind_of_place(capsys):
    out = said(capsys, "--help")
    assert said(capsys) == out and all(f"  {verb} " in out for verb in VERBS)
    assert "s3://" in out and "@STEP" in out and "Exit code" in out


def test_a_reader_who_has_seen_enough_is_no_failure(monkeypatch):
    """`| head`: the command line ends quietly."""

    def closed(_: list[str]) -> int:
        raise BrokenPipeError

    monkeypatch.setattr("diloco.cli.checkpoint_ls.run", closed)
    with pytest.raises(BrokenPipeError):
        importlib.import_module("diloco.cli.checkpoint").run(["ls", "runs/a"])
