"""What all law verbs share: one sentence for bad input, and no heavy imports.

pytest tests/cli/test_laws.py
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.cli import refusal
from support.ladders import ladder, write_rows

from diloco.laws import fit_law


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("fit", ("ROWS is missing", "diloco fit rows.csv")),
        ("fit {tmp}/no.csv", ("{tmp}/no.csv does not exist",)),
        ("fit {rows} --form chinchila", ("--form chinchila is not known", "the nearest are chinchilla, ")),
        ("fit {rows} --form A*size^a", ("size", "columns are")),
        ("fit {rows} --map loss", ("map is loss", "loss=val_bpb")),
        ("fit {rows} --map loss=bpb", ("map loss=bpb", "no column 'bpb'")),
        ("fit {rows} --where method=dp", ("where method=dp", "no column 'method'")),
        ("fit {rows} --fixed floor=low", ("fixed floor is low", "floor=1.69")),
        ("fit {rows} --level 95", ("--level 95", "0.95")),
        ("fit {rows} --level 0.99999999999", ("--level 1 ", "0.9999")),
        ("fit {rows} --form floor", ("--form floor is not known", "nearest are sum-floor, power-floor, coupled-floor")),
        ("fit {rows} --fixed floor=1 --fixed floor=2", ("--fixed gives floor both 1 and 2",)),
        ("fit {rows} --fixed a=100", ("--fixed a=100", "-4 to 4")),
        ("fit {rows} --pool colour", ("--pool colour has no effect", "tokenizer")),
        ("fit {rows} --where replicas=8 replicas=9", ("--where replicas=8 replicas=9 leaves no row",)),
        ("fit {rows} --target bpb", ("--map bpb=",)),
        ("fit {rows} --out {tmp}", ("--out {tmp} is a folder: name a file",)),
        ("fit {rows} --report {tmp}", ("--report {tmp} is a folder: name a file",)),
        ("fit /dev/null", ("/dev/null is a device",)),
        ("fit {tmp}", ("folder {tmp} holds no runs",)),
        ("predict --params 1e9 --law {tmp}", ("--law is {tmp}, which is no file",)),
        ("predict --params 1e9 --level 0", ("--level is 0.0 and law is paper",)),
        ("predict --params 1e9 --replicas nan", ("--replicas nan must be a number above 0",)),
        ("predict --params 1e9 --tokens 0", ("--tokens 0 must be",)),
        ("predict --params 1e9 --replicas 0.5", ("--replicas 0.5 counts things: give 1 or more",)),
        ("advise --params 0.1", ("--params 0.1 counts things: give 1 or more",)),
        ("next-runs --law paper --params 1e10 --budget 1e21 --tokens 0.3", ("--tokens 0.3 counts things",)),
        ("predict --law paper:table10:loss:joint --params 1e9 --replicas -1", ("--replicas -1 must be",)),
        ("advise --params 1e9 --tokens inf", ("--tokens inf must be",)),
        (
            "advise --params 1e9 --law paper --hyperparameters h.json",
            ("--hyperparameters is h.json, which is no file",),
        ),
        ("advise --params 1e9 --law paper --at H=0", ("--at is sync_every=0",)),
        ("next-runs --law paper --params 1e10 --budget inf", ("--budget inf must be a finite number above 0",)),
        ("next-runs --law paper --params 1e10 --budget nan", ("--budget nan must be a finite number above 0",)),
        ("next-runs --law paper --params 1e10 --budget -1", ("--budget -1 must be a finite number above 0",)),
        ("next-runs --law paper --params 1e10 --budget 1e21 --tokens nan", ("--tokens nan must be",)),
        ("fit {rows} --loss l1", ("--loss is l1", "robust, mse, huber")),
        ("fit {rows} --out {rows}/law.json", ("{rows}", "cannot be written")),
        ("fit {rows} --hyperparameters {tmp}/h.json", ("batch_tokens",)),
        ("predict", ("params is missing", "10e9")),
        ("predict --law papper --params 1e9", ("law is papper", "diloco fit --out")),
        ("predict --law {rows} --params 1e9", ("{rows} is not JSON",)),
        ("predict --law paper:table7 --params 1e9", ("'paper:table7' is not known",)),
        ("predict --law paper:table7:loss:replicas=4 --params 1e9", ("replicas is 1", "--replicas 4")),
        ("predict --law papr --params 1e9", ("did you mean paper", "article", "paper:table7:loss:dp")),
        ("advise --law papr --params 1e9", ("did you mean paper", "or paper")),
        ("predict --law {rows}.json --params 1e9 --at tokens_per_param=1e308", ("--at is tokens_per_param=1e+308",)),
        ("fit {status}", ("no numeric column 'loss'", "--map loss=final_bpb")),
        ("predict --params 1e9 --at H=3", ("at is H=3", "law is paper")),
        ("predict --params -1", ("params -1", "above 0")),
        ("predict --params inf", ("params inf", "above 0")),
        ("predict --law paper:table10:loss:joint --params -1", ("params -1", "above 0")),
        ("fit {rows} --seed -1", ("seed -1", "below 0")),
        ("fit {rows} --form A*loss^a", ("target loss", "axis")),
        ("predict --params ten", ("--params is ten", "a number")),
        ("advise", ("params is missing",)),
        ("advise --params 1e9 --at H=3", ("at is H=3 without a law",)),
        ("advise --params 1e9 --hyperparameters h.json", ("hyperparameters is h.json without a law",)),
        ("next-runs --budget 1e20", ("law is missing", "law.json")),
        ("next-runs --law paper --params 1e10", ("budget is missing", "1e21")),
        ("next-runs --law paper --budget 1e21", ("params is missing", "--params 10e9")),
        ("next-runs --law paper --budget 1e3 --params 1e10", ("--budget 1000", "cheapest")),
    ],
)
def test_bad_input_ends_in_one_sentence(words, says, tmp_path, capsys):
    rows = write_rows(tmp_path / "rows.csv", **ladder())
    status = write_rows(tmp_path / "status.csv", params=[1e7, 1e8], final_bpb=[3.0, 2.5], status=["full text"] * 2)
    if "{rows}.json" in words:
        fit_law(str(rows), "A*params^a + floor", holdout=False).save(f"{rows}.json")
    said = refusal(capsys, *words.format(tmp=tmp_path, rows=rows, status=status).split())
    for part in says:
        assert part.format(tmp=tmp_path, rows=rows) in said


@pytest.mark.parametrize("words", ["fit {rows}", "predict --params 10e9 --replicas 4", "advise --params 10e9"])
def test_answers_import_neither_torch_nor_plotly(words, paper):
    code = (
        f"import sys, diloco.cli as c; code = c.main({words.format(rows=paper).split()!r}); "
        "sys.exit(code or bool({'torch', 'plotly', 'pandas', 'diloco.train'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_python_has_the_same_names():
    import diloco

    law = diloco.fit_law(ladder(), "A*params^a*replicas^b + floor")
    assert law.coefficients["floor"] == pytest.approx(2) and law.report()["form"] == "expression"
    assert law.predict(params=1e9, replicas=4).value == pytest.approx(2 + 40 * 1e9**-0.2 * 4**0.05)
