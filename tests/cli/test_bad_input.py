"""Bad input: exit code 2, one sentence that names option or file and its value, and nothing made or lost on disk.

pytest tests/cli/test_bad_input.py
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from diloco.cli import main

Prepare = Callable[[Path], None]


@dataclass(frozen=True)
class Case:
    """`words`: after the flags of a small run, where {tmp} is the test's own folder and {run} a finished run in it.
    `says`: what the sentence must hold, the value among it."""

    words: str
    says: tuple[str, ...]
    prepare: Prepare | None = None


def write(name: str, text: str) -> Prepare:
    return lambda folder: (folder / name).write_text(text) and None


def empty(name: str) -> Prepare:
    return lambda folder: (folder / name).touch()


def folder(name: str) -> Prepare:
    return lambda parent: (parent / name).mkdir()


TRAIN = {
    # data
    "missing data file": Case("--data.sources {tmp}/no.txt", ("{tmp}/no.txt", "does not exist")),
    "empty text file": Case("--data.sources {tmp}/a.txt", ("{tmp}/a.txt",), empty("a.txt")),
    "empty folder": Case("--data.sources {tmp}/d", ("{tmp}/d", "folder without any"), folder("d")),
    "text too short": Case(
        "--data.sources {tmp}/a.txt", ("{tmp}/a.txt", "6 tokens", "seq_len 32"), write("a.txt", "five!")
    ),
    "unreadable JSONL line": Case(
        "--data.sources {tmp}/a.jsonl", ("{tmp}/a.jsonl:2", "not JSON"), write("a.jsonl", '{"text": "x"}\n{"text\n')
    ),
    "missing text field": Case(
        "--data.sources {tmp}/a.jsonl", ("a.jsonl:1", "'text'", "body"), write("a.jsonl", '{"body": "x"}\n')
    ),
    "unknown extension": Case("--data.sources {tmp}/a.bin", ("{tmp}/a.bin", "'.bin'"), write("a.bin", "text")),
    "unknown tokenizer": Case("--data.tokenizer byte", ("data.tokenizer 'byte'", "did you mean bytes?")),
    "bpe too small": Case("--data.tokenizer bpe:10", ("data.tokenizer bpe:10", "257")),
    "missing tokenizer file": Case("--data.tokenizer {tmp}/t.json", ("data.tokenizer '{tmp}/t.json'", "exists")),
    "heldout 0": Case("--data.heldout 0", ("data.heldout is 0", "between 0 and 1")),
    "heldout above 1": Case("--data.heldout 1.5", ("data.heldout is 1.5", "between 0 and 1")),
    "overlap too large": Case("--data.overlap 0.9", ("data.overlap is 0.9", "0.5")),
    "zero weight": Case("--data.sources {tmp}/a.txt=0", ("{tmp}/a.txt=0", "above 0"), write("a.txt", "text")),
    "hub data without a bound": Case("--data.sources hf:some/data", ("hf:some/data", "max_tokens")),
    # numbers
    "H 0": Case("--sync-every 0", ("sync_every is 0", "1 or more")),
    "no replicas": Case("--replicas 0", ("replicas is 0", "1 or more")),
    "batch not divisible": Case("--batch-tokens 100", ("batch_tokens is 100", "nearest that works is 128")),
    "lr NaN": Case("--inner.lr nan", ("inner.lr is nan", "finite")),
    "lr negative": Case("--inner.lr -1", ("inner.lr is -1", "above 0")),
    "outer lr infinite": Case("--outer.lr inf", ("outer.lr is inf", "finite")),
    "momentum 1": Case("--outer.momentum 1.0", ("outer.momentum is 1.0", "not including, 1")),
    "warmup longer than the run": Case("--inner.warmup-steps 18", ("inner.warmup_steps is 18", "17 steps")),
    "less than a step": Case("--steps 0 --tokens 5", ("tokens is 5", "batch_tokens=256")),
    "negative seed": Case("--seed -1", ("seed is -1", "0 or more")),
    # names
    "unknown flag": Case("--sync-evry 3", ("--sync-evry", "did you mean --sync-every?")),
    "unknown nested flag": Case("--inner.learning-rate 3", ("--inner.learning-rate",)),
    "stray word": Case("--resume yes", ("'yes'", "--help")),
    "no value": Case("--replicas", ("--replicas has no value", "whole number")),
    "wrong type": Case("--replicas two", ("--replicas is two", "whole number")),
    "wrong type of an optional number": Case("--outer.clip much", ("--outer.clip is much", "a number")),
    "unknown size": Case("--size 3mm", ("size '3mm'", "did you mean 3m")),
    "unknown method": Case("--method diloko", ("--method is diloko", "diloco, dp, local-sgd")),
    "unknown merge": Case("--merge median", ("merge is 'median'", "did you mean 'mean'", "mean, tokens")),
    "merge for more replicas": Case("--merge trimmed", ("merge is 'trimmed'", "3 replicas")),
    "unknown codec": Case("--codec fp8", ("codec is 'fp8'", "give 'fp32'")),
    "unknown fragments": Case("--fragments stride:1", ("fragments are 'stride:1'", "did you mean 'strided:3'")),
    "more fragments than tensors": Case("--fragments balanced:999", ("balanced:999", "give at most balanced:")),
    "overlap of a whole interval": Case("--overlap 4", ("overlap is 4", "from 0 to 3")),
    "overlap that is no number": Case("--overlap soon", ("overlap is 'soon'", "delayed or eager")),
    "mixing above 1": Case("--overlap 2 --mixing 2", ("mixing is 2", "from 0 to 1")),
    "eager with Adam": Case(
        "--overlap eager --outer.optimizer adam", ("overlap is 'eager'", "Nesterov", "overlap='delayed'")
    ),
    "unknown interval": Case("--interval adaptiv:2-8", ("interval is 'adaptiv:2-8'", "did you mean 'adaptive:10-200'")),
    "interval out of bounds": Case("--interval adaptive:5-9", ("sync_every is 4", "nearest valid value is 5")),
    "sites that do not divide": Case("--sites 3", ("sites is 3", "nearest is 2")),
    "merge that a site cannot have": Case(
        "--replicas 4 --sites 2 --merge trimmed", ("merge is 'trimmed:0.25'", "'mean', 'tokens'")
    ),
    "mesh without torchrun": Case("--mesh fsdp=2", ("mesh is 'fsdp=2'", "torchrun")),
    "mesh with replicas, without torchrun": Case("--mesh replica=2,fsdp=2", ("mesh is", "start them with torchrun")),
    "unknown dimension": Case("--mesh fdsp=2", ("'fdsp' is no dimension", "did you mean fsdp")),
    "link without a unit": Case("--link 100", ("link is '100'", "100mbit,25ms")),
    "negative delay": Case("--link 1mbit,-1ms", ("link is '1mbit,-1ms'", "100mbit,25ms")),
    "device that is not there": Case("--device cuda", ("device is 'cuda'", "cpu")),
    "device that is no device": Case("--device gpu", ("device is 'gpu'", "cpu")),
    # TOML
    "missing TOML": Case("--config {tmp}/no.toml", ("{tmp}/no.toml", "No such file")),
    "config without a value": Case("--config", ("--config has no value", "TOML")),
    "TOML syntax": Case("--config {tmp}/a.toml", ("{tmp}/a.toml", "line 2"), write("a.toml", "steps = 3\nsize = \n")),
    "unknown TOML key": Case(
        "--config {tmp}/a.toml",
        ("unknown setting outer.momentun in {tmp}/a.toml", "did you mean momentum?"),
        write("a.toml", "[outer]\nmomentun = 0.5\n"),
    ),
    "wrong type in TOML": Case(
        "--config {tmp}/a.toml", ("steps in {tmp}/a.toml is '3'", "whole number"), write("a.toml", 'steps = "3"\n')
    ),
    "TOML table as a value": Case(
        "--config {tmp}/a.toml", ("inner in {tmp}/a.toml is 3", "[inner]"), write("a.toml", "inner = 3\n")
    ),
    "bad value in TOML": Case(
        "--config {tmp}/a.toml", ("outer.momentum is 2",), write("a.toml", "[outer]\nmomentum = 2\n")
    ),
    # run folders and models
    "existing run": Case("--runs {tmp}/runs --name run", ("{tmp}/runs/run", "already holds a run", "--resume")),
    "resume without a run": Case("--name new --resume", ("new", "holds no run to resume")),
    "resume with another size": Case(
        "--runs {tmp}/runs --name run --resume --size 100k", ("size is '100k'", "'30k'", "{tmp}/runs/run")
    ),
    "source that is a device": Case("--data.sources /dev/null", ("/dev/null is neither a file nor a folder",)),
    "no runs folder": Case("--runs=", ("runs is ''", "a folder")),
    "name outside the runs folder": Case("--name ../../esc", ("name is '../../esc'", "without a slash")),
    "name that is a dot": Case("--name .", ("name is '.'",)),
    "name too long": Case(f"--name {'x' * 300}", ("name is",)),
    "seed too large": Case("--seed 99999999999999999999999999", ("seed is 9", "2**63")),
    "more threads than cores": Case("--threads 100000", ("threads is 100000", "cores")),
    "bpe too large": Case("--data.tokenizer bpe:999999999", ("bpe:999999999", "1000000")),
    "anchor on no device": Case("--anchor-device foo", ("anchor_device is 'foo'",)),
    "device without values": Case("--device meta", ("device is 'meta'",)),
    "resume with another lr": Case(
        "--runs {tmp}/runs --name run --resume --inner.lr 0.5", ("inner.lr is 0.5", "0.006")
    ),
    "stop before the checkpoint": Case(
        "--runs {tmp}/runs --name run --resume --stop-at 3", ("stop_at is 3", "inner step 17")
    ),
    "file in the way of the runs folder": Case("--runs {tmp}/file", ("{tmp}/file", "--runs"), write("file", "x")),
    "no Hugging Face model": Case("--size 1m --hf {tmp}/hf", ("'{tmp}/hf'", "safetensors"), folder("hf")),
}  # fmt: skip

OTHERS = {
    "unknown verb": Case("trian", ("unknown verb 'trian'", "did you mean train?")),
    "verb unlike any": Case("xyzzy", ("unknown verb 'xyzzy'", "sample")),
    "sample without a run": Case("sample", ("RUN is missing", "--help")),
    "sample of nothing": Case("sample {tmp}/no", ("{tmp}/no", "does not exist")),
    "sample of no run": Case("sample {tmp}", ("{tmp} is not a run folder", "config.json")),
    "sample of no tokens": Case("sample {run} --tokens 0", ("tokens is 0", "1 or more")),
    "sample too cold": Case("sample {run} --temperature -1", ("temperature is -1", "0 or more")),
    "sample of two runs": Case("sample {run} {run}", ("'{run}'", "no option")),
    "eval of nothing": Case("eval {tmp}/no", ("{tmp}/no", "does not exist")),
    "eval of unknown weights": Case("eval {run} --weights local", ("weights is 'local'", "replica-0")),
    "eval of a replica too many": Case("eval {run} --weights replica-7", ("'replica-7'", "replica-1")),
    "eval of missing data": Case("eval {run} --data.sources {tmp}/no.txt", ("{tmp}/no.txt", "does not exist")),
    "eval of -1 sequences": Case("eval {run} --sequences -1", ("sequences is -1",)),
    "compare nothing": Case("compare", ("no runs", "name at least one")),
    "compare no run": Case("compare {tmp}", ("{tmp} is not a run folder",)),
    "compare a run twice": Case("compare {run} {run}", ("{run} is named twice",)),
    "compare into a folder": Case("compare {run} --out {tmp}/runs", ("out is {tmp}/runs", "another")),
    "selftest of no size": Case("selftest --size 31k", ("size '31k'", "did you mean 30k")),
    "selftest of two models": Case("selftest --size 30k --hf x", ("hf is x", "size")),
    "selftest alone": Case("selftest --replicas 1", ("replicas is 1", "2 or more")),
    "selftest of no file": Case("selftest --model {tmp}/no.py:f", ("{tmp}/no.py", "does not exist")),
    "selftest of no factory": Case("selftest --model net.py", ("'net.py'", "FILE.py:FACTORY")),
    "selftest of a missing factory": Case(
        "selftest --model {tmp}/a.py:f", ("{tmp}/a.py has no function f",), write("a.py", "x = 1")
    ),
    "selftest of a file that fails": Case(
        "selftest --model {tmp}/a.py:f", ("{tmp}/a.py", "ZeroDivisionError"), write("a.py", "1 / 0")
    ),
}  # fmt: skip


def files(root: Path) -> dict[str, bytes | None]:
    """Everything below `root`: file contents, None for folders."""
    return {str(p.relative_to(root)): p.read_bytes() if p.is_file() else None for p in sorted(root.rglob("*"))}


def refused(capsys: pytest.CaptureFixture, words: list[str], says: tuple[str, ...], untouched: Path) -> None:
    before = files(untouched)
    capsys.readouterr()
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("diloco: ") and printed.err.endswith("\n") and printed.err.count("\n") == 1
    assert all(part in printed.err for part in says), printed.err
    assert files(untouched) == before


def fill(text: str, tmp_path: Path) -> str:
    return text.replace("{tmp}", str(tmp_path)).replace("{run}", str(tmp_path / "runs" / "run"))


@pytest.mark.parametrize("name", TRAIN)
def test_train_refuses(name, ground, run_copy, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    case = TRAIN[name]
    if case.prepare:
        case.prepare(tmp_path)
    words = [fill(word, tmp_path) for word in case.words.split()]
    hf = {"size": None} if "--hf" in words else {}
    flags = ground.flags(tmp_path / "fresh", **hf)
    if "--hf" in words:
        words = words[2:]
    refused(capsys, ["train", *flags, *words], tuple(fill(s, tmp_path) for s in case.says), tmp_path)


@pytest.mark.parametrize("name", OTHERS)
def test_other_verbs_refuse(name, run_copy, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    case = OTHERS[name]
    if case.prepare:
        case.prepare(tmp_path)
    words = [fill(word, tmp_path) for word in case.words.split()]
    refused(capsys, words, tuple(fill(s, tmp_path) for s in case.says), tmp_path)


# -- what takes more than words


def checkpoint_of(run: Path) -> Path:
    return next((run / "checkpoints").glob("step-*"))


def tamper(run: Path) -> Path:
    file = checkpoint_of(run) / "global.0.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    return file


def tear(run: Path) -> Path:
    file = checkpoint_of(run) / "global.0.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    return file


@pytest.mark.parametrize("damage", [tamper, tear])
@pytest.mark.parametrize("verb", ["sample", "eval", "train"])
def test_a_damaged_checkpoint_is_refused_by_name(verb, damage, ground, run_copy, tmp_path, capsys):
    file = damage(run_copy)
    resume = ["train", *ground.flags(run_copy.parent, name="run"), "--resume"]
    words = resume if verb == "train" else [verb, str(run_copy)]
    refused(capsys, words, (str(file), "no whole checkpoint"), tmp_path)


@pytest.mark.parametrize("verb", ["sample", "eval"])
def test_a_run_without_checkpoint_is_refused(verb, run_copy, tmp_path, capsys):
    shutil.rmtree(run_copy / "checkpoints")
    refused(capsys, [verb, str(run_copy)], (str(run_copy / "checkpoints"), "no whole checkpoint"), tmp_path)


def test_a_run_that_has_not_ended_cannot_be_compared(run_copy, tmp_path, capsys):
    (run_copy / "row.csv").unlink()
    refused(capsys, ["compare", str(run_copy)], ("none of the runs has ended", "run"), tmp_path)


@pytest.mark.parametrize(
    ("content", "says"), [("{", "is not JSON"), ("{}", "no key 'config'"), ('{"config": {"sizes": 1}}', "sizes")]
)
def test_a_config_that_is_none_is_refused(content, says, run_copy, tmp_path, capsys):
    (run_copy / "config.json").write_text(content)
    refused(capsys, ["sample", str(run_copy)], (str(run_copy / "config.json"), says), tmp_path)


def test_another_tokenizer_than_the_runs_is_refused(run_copy, tmp_path, capsys):
    record = json.loads((run_copy / "config.json").read_text())
    (run_copy / "config.json").write_text(json.dumps({**record, "tokenizer": "another"}))
    refused(capsys, ["sample", str(run_copy)], ("tokenizer bytes", "no longer"), tmp_path)


def test_replicas_other_than_torchruns_processes_are_refused(ground, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    refused(
        capsys, ["train", *ground.flags(tmp_path)], ("replicas is 2", "4 processes", "leave --replicas out"), tmp_path
    )


def test_a_taken_port_is_refused(ground, tmp_path, capfd, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = {
            "RANK": "0",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(taken.getsockname()[1]),
        }
        for name, value in address.items():
            monkeypatch.setenv(name, value)
        says = (f"127.0.0.1:{address['MASTER_PORT']}", "--master-port")
        refused(capfd, ["train", *ground.flags(tmp_path)], says, tmp_path)


def test_other_ranks_than_the_first_refuse_in_silence(ground, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["train", *ground.flags(tmp_path, sync_every=0)]) == 2
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["trian"], "did you mean train?"),
        (["train", "--sync-every", "0"], "sync_every is 0"),
        (["compare", "nowhere"], "nowhere"),
    ],
)
def test_the_installed_command_refuses(words, says, tmp_path):
    """Whole processes, for the exit code and for what a traceback would leave on stderr."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    command = [sys.executable, "-m", "diloco", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1 and says in done.stderr
    assert list(tmp_path.iterdir()) == []
