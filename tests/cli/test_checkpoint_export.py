"""`diloco checkpoint export`: the weights that were asked for, for transformers and as plain safetensors.

pytest tests/cli/test_checkpoint_export.py
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
import torch
from support.exported import ATOL, in_transformers, logits_apart, tokens
from support.saved import answer, file_of, flip, refused, said

from diloco import checkpoint
from diloco.cli import main
from diloco.train.data.tokenizer import JsonTokenizer
from diloco.train.model import build_model
from diloco.train.plain import load_plain
from diloco.train.sizes import SIZES


@pytest.mark.parametrize("weights", ["global", "replica-1"])
def test_export_to_transformers_has_the_weights_that_were_asked_for(finished, tmp_path, capsys, weights):
    """In mid-window, where anchor and replicas differ."""
    transformers, run = pytest.importorskip("transformers"), finished(stop_at=6)
    printed = answer(capsys, "export", run, "--to", tmp_path / "out", "--weights", weights)
    assert printed["step"] == 6 and printed["weights"] == weights
    assert printed["bytes"] == sum(file.stat().st_size for file in (tmp_path / "out").iterdir())
    hf, ours = in_transformers(tmp_path / "out"), {w: load(run, 6, w) for w in ("global", "replica-0", "replica-1")}
    apart = {w: logits_apart(hf, model, tokens(256, 32)) for w, model in ours.items()}
    assert apart.pop(weights) < ATOL and min(apart.values()) > 50 * ATOL
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


def test_where_all_are_damaged_each_cause_is_named_once(run, tmp_path, capsys):
    """Steps 8 and 12 rest on 4, and 17 on 16."""
    flip(file_of(run, 4)), file_of(run, 16, "manifest.json").unlink()
    flip(file_of(run, 12, "replica-0.0.json"))
    said = refused(capsys, "export", run, "--to", tmp_path / "out")
    for file in (file_of(run, 4), file_of(run, 16, "manifest.json"), file_of(run, 12, "replica-0.0.json")):
        assert said.count(f"{file} ") == 1, said
    assert "rest on" not in said


def test_files_can_be_read_by_all_whom_the_umask_lets(run, tmp_path, capsys):
    said(capsys, "export", run, "--to", tmp_path / "out")
    (tmp_path / "mine").write_text("")
    modes = {file.stat().st_mode for file in (tmp_path / "out").iterdir()}
    assert modes == {(tmp_path / "mine").stat().st_mode}


def test_a_folder_that_can_never_be_written_is_bad_input(run, tmp_path, capsys):
    """In one line, which names the folder that was given; as `train --checkpoint-to` has it."""
    (tmp_path / "file").write_text("")
    for to in (tmp_path / "file" / "out", "/proc/nope/out", tmp_path / ("x" * 300)):
        said = refused(capsys, "export", run, "--to", to)
        assert f"{to} cannot be written (" in said and said.strip().endswith("choose another place with --to")


def test_a_disk_that_fills_up_is_a_failure_in_one_line(run, tmp_path, capsys, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("diloco.train.export.save_file", full)
    assert main(["checkpoint", "export", str(run), "--to", str(tmp_path / "out")]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"diloco checkpoint export: {tmp_path / 'out'} cannot be written (No space left on device)")
    assert err.count("\n") == 1 and not (tmp_path / "out").exists()


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
