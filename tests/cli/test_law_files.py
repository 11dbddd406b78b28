"""What fit is asked to write where it cannot be meant, and words of the command line that look like options.

pytest tests/cli/test_law_files.py
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from diloco.cli import main
from diloco.cli.law_input import joined, plain_numbers
from diloco.errors import BadInput
from diloco.laws import fit_law, load_law
from diloco.laws.lawfile import VERSION


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in, with rows.csv and two links to it."""
    monkeypatch.chdir(tmp_path)
    sizes = np.geomspace(1e7, 1e9, 6)
    lines = [f"{size},{1 + 40 * size**-0.16}" for size in sizes]
    Path("rows.csv").write_text("\n".join(["params,loss", *lines]) + "\n")
    Path("soft.csv").symlink_to("rows.csv")
    os.link("rows.csv", "hard.csv")
    Path("sub").mkdir()
    return tmp_path


def refusal(capsys: pytest.CaptureFixture, *words: str) -> str:
    before = {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    capsys.readouterr()
    assert main([*words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("diloco: ") and err.count("\n") == 1
    assert {path: path.read_bytes() for path in Path().iterdir() if path.is_file()} == before
    return err


@pytest.mark.parametrize("path", [".", "/", "..", "sub", "./sub/"])
@pytest.mark.parametrize("option", ["--out", "--report", "--hyperparameters"])
def test_a_folder_is_no_file_to_write(here, option, path, capsys) -> None:
    assert f"{option} {path} is a folder: name a file" in refusal(capsys, "fit", "rows.csv", option, path)


@pytest.mark.parametrize("path", ["rows.csv", "./sub/../rows.csv", "soft.csv", "hard.csv"])
@pytest.mark.parametrize("option", ["--out", "--report", "--hyperparameters"])
def test_what_is_read_is_not_written_over(here, option, path, capsys) -> None:
    said = refusal(capsys, "fit", "rows.csv", option, path)
    assert f"{option} {path} is rows.csv, which is read" in said
    assert "which is read" in refusal(capsys, "fit", "soft.csv", option, path)


def test_a_file_of_a_run_folder_is_not_written_over(here, capsys) -> None:
    Path("runs/a").mkdir(parents=True)
    Path("runs/a/row.csv").write_text("params,loss\n1,1\n")
    assert "which is read" in refusal(capsys, "fit", "runs", "--out", "runs/a/row.csv")


def test_two_outputs_are_two_files(here, capsys) -> None:
    said = refusal(capsys, "fit", "rows.csv", "--out", "new", "--report", str(here / "sub" / ".." / "new"))
    assert "--out new are one file" in said


@pytest.mark.parametrize("path", ["x" * 300, "loop"])
@pytest.mark.parametrize("option", ["--out", "--report"])
def test_a_name_that_no_file_can_have_is_refused_or_replaced(here, option, path, capsys) -> None:
    Path("loop").symlink_to("loop")
    capsys.readouterr()
    code = main(["fit", "rows.csv", option, path])
    assert code == (0 if path == "loop" else 2)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("path", [".", "/", "..", None, 5])
def test_python_is_told_the_same(here, path) -> None:
    law = fit_law("rows.csv", "A*params^a + floor", holdout=False)
    with pytest.raises(BadInput, match="is a folder: name a file|give the name of a file"):
        law.save(path)
    with pytest.raises(BadInput, match="does not exist|give the name of a file"):
        load_law(path)


@pytest.mark.parametrize(
    "form, says",
    [
        ("-A*params^a + floor", "'-A' is negative"),
        ("__import__('os')", "'__import__('os')' is not an amplitude"),
        ("A*params^nan + floor", "uses nan"),
        ("A*params^a + inf", "uses inf"),
        ("Infinity*params^a", "uses Infinity"),
    ],
)
def test_forms_that_are_none_are_refused_as_expressions(here, form, says, capsys) -> None:
    assert says in refusal(capsys, "fit", "rows.csv", "--form", form)


def test_a_form_does_not_swallow_an_option() -> None:
    assert joined(["a", "--form", "-A*x", "--out", "x"], "--form") == ["a", "--form=-A*x", "--out", "x"]
    assert joined(["--form", "--out", "x"], "--form") == ["--form", "--out", "x"]


def test_numbers_are_typed_as_tables_have_them(here, capsys) -> None:
    given = ["--params", "35M", "--tokens=1.5b", "--law", "35M", "--replicas", "x"]
    found = plain_numbers(given, ("--params", "--tokens", "--replicas"))
    assert found == ["--params", "35000000.0", "--tokens=1500000000.0", "--law", "35M", "--replicas", "x"]
    assert main(["fit", "rows.csv", "--out", "law.json"]) == 0
    for verb in (["predict", "--law", "law.json"], ["advise"], ["next-runs", "--law", "paper", "--budget", "0.001T"]):
        capsys.readouterr()
        code = main([*verb, "--params", "35M", "--json"])
        out, err = capsys.readouterr()
        assert '"params": 35000000.0' in out if code == 0 else "--budget 1e+09" in err


@pytest.mark.parametrize(
    "words, says",
    [
        (("--png", "p", "--report", "p/loss.png"), "loss.png of --png p and --report p/loss.png are one file"),
        (("--png", "sub", "--out", "./sub/../sub/holdout.png"), "holdout.png of --png sub and --out"),
        (("--png", "p", "--hyperparameters", "p/contours.png"), "contours.png of --png p and --hyperparameters"),
        (("--png", "new", "--out", "new"), "loss.png of --png new would lie inside --out new, which is a file"),
        (("--png", "new/sub", "--out", "new"), "would lie inside --out new"),
        (("--out", "new", "--report", "new/law.html"), "--report new/law.html would lie inside --out new"),
        (("--out", "new/law.json", "--report", "new"), "--out new/law.json would lie inside --report new"),
        (("--png", "rows.csv"), "--png rows.csv is a file: name a folder"),
        (("--png", "soft.csv"), "--png soft.csv is a file: name a folder"),
    ],
)
def test_pictures_have_places_of_their_own(here, words, says, capsys) -> None:
    assert says in refusal(capsys, "fit", "rows.csv", *words)
    assert sorted(path.name for path in here.iterdir()) == ["hard.csv", "rows.csv", "soft.csv", "sub"]


def test_outputs_may_share_a_folder(here, capsys) -> None:
    assert main(["fit", "rows.csv", "--out", "new/law.json", "--report", "new/law.html"]) == 0
    assert sorted(path.name for path in Path("new").iterdir()) == ["law.html", "law.json"]


@pytest.mark.parametrize("version, which", [(2, "an older release (version 2"), (99, "a newer release (version 99")])
def test_a_file_of_another_version_says_which(here, version, which) -> None:
    fit_law("rows.csv").save("law.json")
    record = json.loads(Path("law.json").read_text())
    Path("law.json").write_text(json.dumps(record | {"version": version}))
    with pytest.raises(BadInput, match=re.escape(f"was written by {which}, this one reads {VERSION}): fit the rows")):
        load_law("law.json")


def test_a_table_of_flops_alone_has_no_form_to_compare(here, capsys) -> None:
    Path("flops.csv").write_text("flops,loss\n" + "".join(f"{10.0**i},{5 - i / 10}\n" for i in range(15, 22)))
    assert "none varies by itself; give an expression" in refusal(capsys, "fit", "flops.csv", "--compare-forms")
