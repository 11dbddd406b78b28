"""`diloco checkpoint`: what a run has saved, seen, checked, thinned out and taken along.

pytest tests/cli/test_checkpoint.py
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from diloco import checkpoint
from diloco.cli import main, options
from diloco.cli.checkpoint import VERBS
from diloco.train.data.tokenizer import JsonTokenizer
from diloco.train.model import build_model
from diloco.train.plain import load_plain
from diloco.train.sizes import SIZES
from diloco.watch.runfolder import RunFolder

STEPS = [4, 8, 12, 16, 17]
FULL = [4, 16]
"""The others hold differences, to the one before."""


def said(capsys: pytest.CaptureFixture, *words: object, code: int = 0) -> str:
    capsys.readouterr()
    assert main(["checkpoint", *map(str, words)]) == code
    return capsys.readouterr().out


def answer(capsys: pytest.CaptureFixture, *words: object, code: int = 0) -> dict:
    return json.loads(said(capsys, *words, "--json", code=code))


def refused(capsys: pytest.CaptureFixture, *words: object) -> str:
    """The one sentence."""
    capsys.readouterr()
    assert main(["checkpoint", *map(str, words)]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("diloco: ") and printed.err.count("\n") == 1
    return printed.err


@pytest.fixture
def run(finished, tmp_path):
    """A run of its own with five checkpoints in two chains; held-out losses after 8, 16 and 17 steps."""
    made = finished(checkpoint_every=1, keep=0, full_every=3, eval_every=8)
    return Path(shutil.copytree(made, tmp_path / "runs" / "run"))


def file_of(run: Path, step: int, name: str = "global.0.safetensors") -> Path:
    return run / "checkpoints" / f"step-{step:08d}" / name


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def bytes_of(run: Path, *steps: int) -> int:
    return sum(f.stat().st_size for s in steps for f in file_of(run, s).parent.iterdir() if f.name != "manifest.json")


# -- ls


def test_ls_says_of_each_what_it_rests_on_takes_and_scored(run, capsys):
    printed = answer(capsys, "ls", run)
    rows = {row["step"]: row for row in printed["checkpoints"]}
    assert list(rows) == STEPS and printed["bytes"] == bytes_of(run, *STEPS)
    assert {step: row["base"] for step, row in rows.items()} == {4: None, 8: 4, 12: 8, 16: None, 17: 16}
    losses = {e["step"]: e["loss"] for e in RunFolder(run).events(("eval",))}
    for step, row in rows.items():
        assert row["bytes"] == bytes_of(run, step) and row["problem"] is None and row["kind"] == "lossless"
        assert row["ratio"] == row["bytes"] / row["tensor_bytes"] and row["loss"] == losses.get(step)
        assert abs(row["written"] - file_of(run, step, "manifest.json").stat().st_mtime) < 1
    tensors = load_file(file_of(run, 4)).values()
    assert rows[4]["tensor_bytes"] > sum(t.nbytes for t in tensors)


def test_ls_as_a_table_names_what_cannot_be_used(run, capsys):
    out = said(capsys, "ls", run)
    assert "difference to 8, lossless" in out and "damaged" not in out and "5 checkpoints" in out
    file_of(run, 8).write_bytes(file_of(run, 8).read_bytes()[:-3])
    out = said(capsys, "ls", run)
    assert out.count("damaged") == 2  # 8, and 12 that rests on it
    assert f"step 12 cannot be used: {file_of(run, 8)} has " in out
    file_of(run, 16, "manifest.json").write_text("{")
    row = {row["step"]: row for row in answer(capsys, "ls", run)["checkpoints"]}[16]
    assert row["bytes"] is row["loss"] is None and "is not JSON" in row["problem"]


# -- show


def test_show_accounts_for_every_byte_of_the_tensors(run, capsys):
    printed = answer(capsys, "show", f"{run}@12")
    assert printed["chain"] == [12, 8, 4] and printed["number"] == 3 and printed["meta"]["step"] == 12
    manifest = json.loads(file_of(run, 12, "manifest.json").read_text())
    assert printed["parts"] == {name: sum(part["bytes"].values()) for name, part in manifest["parts"].items()}
    groups = printed["tensors"]
    assert sum(g["tensor_bytes"] for g in groups) == printed["tensor_bytes"]
    stored = sum(
        t.nbytes for part in printed["parts"] for t in load_file(file_of(run, 12, f"{part}.safetensors")).values()
    )
    assert sum(g["bytes"] for g in groups) == stored
    params = RunFolder(run).row["params"]
    elements = {(g["unit"], g["what"]): g["elements"] for g in groups}
    kinds = ("model", "optimizer exp_avg", "optimizer exp_avg_sq")
    for name in [("global", "anchor"), ("global", "outer momentum"), *(("replica-1", kind) for kind in kinds)]:
        assert elements[name] == params, name


def test_show_tells_a_reader_the_same(run, capsys):
    out = said(capsys, "show", run)
    assert "after inner step 17" in out and "it holds differences, and rests on step 16" in out
    assert "optimizer exp_avg_sq" in out and "of the run: step 17" in out and "held-out loss" in out
    assert "it is full" in said(capsys, "show", file_of(run, 16).parent)


# -- verify


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


def test_verify_says_what_a_missing_link_costs(run, capsys):
    shutil.rmtree(file_of(run, 4).parent)
    printed = answer(capsys, "verify", run, code=1)
    assert printed["whole"] == [16, 17] and str(file_of(run, 4, "manifest.json")) in printed["problems"][0]
    flip(file_of(run, 16))
    assert "undamaged, but of no use without what is damaged: step 17" in said(capsys, "verify", run, code=1)


# -- prune


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


# -- export


@pytest.mark.parametrize("weights", ["global", "replica-1"])
def test_export_to_transformers_has_the_weights_that_were_asked_for(finished, tmp_path, capsys, weights):
    """In mid-window, where anchor and replicas differ."""
    transformers, run = pytest.importorskip("transformers"), finished(stop_at=6)
    printed = answer(capsys, "export", run, "--to", tmp_path / "out", "--weights", weights)
    assert printed["step"] == 6 and printed["weights"] == weights
    assert printed["bytes"] == sum(file.stat().st_size for file in (tmp_path / "out").iterdir())
    hf = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    tokens_BT = torch.randint(0, 256, (2, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = {w: load(run, 6, w)(tokens_BT) for w in ("global", "replica-0", "replica-1")}
        differences = {w: (hf(tokens_BT).logits - ours).abs().max().item() for w, ours in logits.items()}
    assert differences.pop(weights) < 1e-5 and min(differences.values()) > 1e-3
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("né\n")["input_ids"] == list("né\n".encode())


def load(run: Path, step: int, weights: str) -> torch.nn.Module:
    """Straight from the checkpoint's parts."""
    trees, _ = checkpoint.load(run / "checkpoints" / f"step-{step:08d}")
    state = trees["global"]["anchor"] if weights == "global" else trees[weights]["model"]
    model = build_model(SIZES["30k"], 256, 32, seed=9).eval()
    model.load_state_dict(state)
    return model


def test_the_plain_form_gives_eval_and_sample_what_the_run_does(run, tmp_path, capsys):
    said(capsys, "export", run, "--to", tmp_path / "out", "--format", "safetensors")
    model, expected = load_plain(tmp_path / "out"), load(run, 17, "global")
    assert all(torch.equal(value, expected.state_dict()[name]) for name, value in model.state_dict().items())
    results = []
    for place in (tmp_path / "out", run):
        capsys.readouterr()
        assert main(["eval", str(place), "--json"]) == 0 and main(["sample", str(place), "--tokens", "9"]) == 0
        results.append(capsys.readouterr().out)
    assert results[0] == results[1]
    assert main(["eval", str(tmp_path / "out"), "--weights", "replica-1"]) == 2
    assert "was exported with global" in capsys.readouterr().err


def test_export_passes_over_a_damaged_checkpoint_but_not_over_one_that_was_named(run, tmp_path, capsys):
    flip(file_of(run, 17))
    assert main(["checkpoint", "export", str(run), "--to", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert "after inner step 16" in printed.out and f"{file_of(run, 17)} does not match" in printed.err
    assert "does not match its sha256" in refused(capsys, "export", f"{run}@17", "--to", tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_files_can_be_read_by_all_whom_the_umask_lets(run, tmp_path, capsys):
    said(capsys, "export", run, "--to", tmp_path / "out")
    (tmp_path / "mine").write_text("")
    modes = {file.stat().st_mode for file in (tmp_path / "out").iterdir()}
    assert modes == {(tmp_path / "mine").stat().st_mode}


def test_a_folder_that_cannot_be_written_is_a_failure_in_one_line(run, tmp_path, capsys):
    """Which names the folder that was given."""
    (tmp_path / "file").write_text("")
    for to in (tmp_path / "file" / "out", "/proc/nope/out", tmp_path / ("x" * 300)):
        assert main(["checkpoint", "export", str(run), "--to", str(to)]) == 1
        err = capsys.readouterr().err
        assert err.startswith(f"diloco checkpoint export: {to} cannot be written (") and err.count("\n") == 1
        assert err.endswith("choose another place with --to\n")


def test_the_folder_one_stands_in_is_no_place_for_an_export(run, tmp_path, capsys, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert "to is ., where you are: name a new folder" in refused(capsys, "export", run, "--to", ".")


@pytest.mark.parametrize("verb", ["eval", "sample", "checkpoint ls", "checkpoint verify"])
def test_an_export_for_transformers_is_told_from_a_run(run, tmp_path, capsys, verb):
    said(capsys, "export", run, "--to", tmp_path / "out")
    assert main([*verb.split(), str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert f"{tmp_path / 'out'} is a model for transformers, not a run" in err and "--format safetensors" in err
    assert err.count("\n") == 1


def test_a_reader_who_has_seen_enough_is_no_failure(monkeypatch):
    """`| head`: the command line ends quietly."""

    def closed(_: list[str]) -> int:
        raise BrokenPipeError

    monkeypatch.setattr("diloco.cli.checkpoint_ls.run", closed)
    with pytest.raises(BrokenPipeError):
        importlib.import_module("diloco.cli.checkpoint").run(["ls", "runs/a"])


# -- places


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


def test_a_run_with_a_vocabulary_of_its_own_takes_it_along(ground, tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    flags = ground.flags(tmp_path, name="a", data_tokenizer="bpe:300")
    assert main(["train", *flags, "--json"]) == 0
    said(capsys, "export", tmp_path / "a", "--to", tmp_path / "out")
    ours = JsonTokenizer(tmp_path / "a" / "tokenizer.json")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    hf = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert tokenizer("abc dab é")["input_ids"] == ours.encode("abc dab é")
    assert hf.config.eos_token_id == tokenizer.eos_token_id == ours.separator and hf.config.vocab_size == 300
    store = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "a" / "checkpoints", store)
    assert "name the run folder" in refused(capsys, "export", store, "--to", tmp_path / "x")


def test_a_hugging_face_run_exports_its_anchor_tied(ground, tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32, tie_word_embeddings=True,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "hf")
    flags = ground.flags(tmp_path, name="a", size=None, stop_at=6)
    assert main(["train", *flags, "--hf", str(tmp_path / "hf"), "--json"]) == 0
    said(capsys, "export", tmp_path / "a", "--to", tmp_path / "out")
    trees, _ = checkpoint.load(tmp_path / "a" / "checkpoints" / "step-00000006")
    hf = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert hf.config.model_type == "llama" and hf.lm_head.weight is hf.model.embed_tokens.weight
    for name, weight in hf.named_parameters():
        assert torch.equal(weight, trees["global"]["anchor"][name])
        assert not torch.equal(weight, trees["replica-1"]["model"][name]) or weight.dim() == 1


# -- bad input and help

REFUSED = {
    "unknown verb": ("lss {run}", "did you mean ls?"),
    "no place": ("ls", "PLACE is missing"),
    "nothing there": ("ls {tmp}/no", "does not exist"),
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
    assert reason in refused(capsys, *words.format(run=run, tmp=tmp_path).split())
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
