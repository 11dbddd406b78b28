"""Every verb from end to end, on runs of 30k parameters.

pytest tests/cli/test_verbs.py
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import diloco
from diloco.cli import VERBS, main
from diloco.watch.runfolder import RunFolder


def answer(capsys: pytest.CaptureFixture, *words: object, code: int = 0) -> dict:
    """What `diloco WORDS --json` prints: exactly one object."""
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def text(capsys: pytest.CaptureFixture, *words: object) -> str:
    capsys.readouterr()
    assert main([*map(str, words)]) == 0
    return capsys.readouterr().out


# -- train


def test_train_json_is_the_receipt(ground, tmp_path, capsys):
    printed = answer(capsys, "train", *ground.flags(tmp_path, name="a", steps=5))
    assert printed == RunFolder(tmp_path / "a").receipt
    assert printed["rounds_committed"] == 2 and printed["steps"] == 5
    assert (tmp_path / "a" / "report.html").is_file()


def test_train_says_what_came_of_it(ground, tmp_path, capsys):
    out = text(capsys, "train", *ground.flags(tmp_path, name="a", steps=5))
    assert "nats per token" in out and "global weights" in out
    assert "rounds planned 2, committed 2, failed 0" in out and str(tmp_path / "a" / "report.html") in out


def test_train_says_what_a_link_costs(ground, tmp_path, capsys):
    """A link is simulated in one process: its time is virtual, and said to be."""
    flags = ["--fragments", "balanced:2", "--overlap", "1", "--codec", "e3m0", "--link", "1mbit,5ms"]
    out = text(capsys, "train", *ground.flags(tmp_path, name="a", steps=6), *flags)
    receipt = RunFolder(tmp_path / "a").receipt
    assert f"stood still for {receipt['stall_s']:,.3g} s of virtual time" in out
    assert f"over a link of 1mbit,5ms it would have taken {receipt['virtual_s']:,.4g} s" in out
    assert receipt["mbit_per_s"] > 0
    out = text(capsys, "train", *ground.flags(tmp_path, name="b", steps=6))
    assert "inner steps stood still for" in out and "virtual time" not in out and "over a link" not in out
    assert RunFolder(tmp_path / "b").receipt["mbit_per_s"] is None  # nothing but copies in memory
    out = text(capsys, "train", *ground.flags(tmp_path, name="c", steps=6), "--method", "dp", "--link", "1mbit")
    assert "stood still" not in out and "over a link of 1mbit it would have taken" in out


def test_flags_win_over_the_file_and_the_file_over_defaults(ground, tmp_path, capsys):
    (tmp_path / "a.toml").write_text('steps = 3\nname = "from-file"\n[outer]\nlr = 0.25\nmomentum = 0.5\n')
    flags = ground.flags(tmp_path, steps=None, outer_lr=0.75)
    answer(capsys, "train", "--config", tmp_path / "a.toml", *flags)
    config = RunFolder(tmp_path / "from-file").config["config"]
    assert config["steps"] == 3 and config["outer"]["momentum"] == 0.5 and config["outer"]["lr"] == 0.75


def test_a_file_may_need_a_flag_to_make_sense(ground, tmp_path, capsys):
    """3 replicas alone cannot share the batch: only file and flags together are checked."""
    (tmp_path / "a.toml").write_text("replicas = 3\nsteps = 2\n")
    flags = ground.flags(tmp_path, name="a", replicas=None, steps=None, batch_tokens=96)
    assert answer(capsys, "train", "--config", tmp_path / "a.toml", *flags)["replicas"] == 3


def test_every_setting_of_a_run_can_come_back_from_a_file(ground, tmp_path, capsys):
    """The resolved config of a run, written as TOML, is the same run."""
    answer(capsys, "train", *ground.flags(tmp_path, name="a", steps=2))
    config = RunFolder(tmp_path / "a").config
    lines, tables = [], []
    for key, value in config["config"].items():
        if isinstance(value, dict):
            tables += [f"[{key}]", *(f"{k} = {json.dumps(v)}" for k, v in value.items() if v is not None)]
        elif key != "name":
            lines.append(f"{key} = {json.dumps(value)}")
    (tmp_path / "a.toml").write_text("\n".join([*lines, *tables]))
    answer(capsys, "train", "--config", tmp_path / "a.toml", "--name", "b")
    again = RunFolder(tmp_path / "b").config["config"]
    assert {**again, "name": "a"} == config["config"]


@pytest.mark.parametrize(
    ("words", "warning"),
    [
        (["--method", "dp", "--outer.lr", "0.5"], "outer.* has no effect with method dp"),
        (["--outer.optimizer", "sgd", "--outer.momentum", "0.5"], "outer.momentum has no effect"),
        (["--tokens", "9999"], "tokens has no effect where steps is given"),
    ],
)
def test_settings_without_effect_are_warned_of(words, warning, ground, tmp_path, capsys):
    assert main(["train", *ground.flags(tmp_path, name="a", steps=2), *words, "--json"]) == 0
    assert f"warning: {warning}" in capsys.readouterr().err


def test_a_run_that_never_synced_fails(ground, tmp_path, capsys, monkeypatch):
    """Two replicas whose every round failed have not trained together, whatever their losses."""
    from diloco.outer.round import Round

    monkeypatch.setattr(Round, "_finite", lambda self: False)
    assert answer(capsys, "train", *ground.flags(tmp_path, name="a", steps=4), code=1)["rounds_committed"] == 0


def test_a_stopped_run_says_how_to_go_on(ground, tmp_path, capsys):
    flags = ground.flags(tmp_path, name="a", steps=6)
    assert "stopped at inner step 3 of 6" in text(capsys, "train", *flags, "--stop-at", "3")
    assert answer(capsys, "train", *flags, "--resume")["finished"]


@pytest.mark.slow
def test_torchrun_gives_the_same_losses_and_one_voice(ground, finished, tmp_path):
    """Two gloo processes under torchrun: only rank 0 prints, replicas are left out, and the loss is that of one
    process."""
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "diloco"]
    flags = ground.flags(tmp_path, name="a", replicas=None, threads=1)
    done = subprocess.run([*run, "train", *flags, "--json"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    receipt, alone = json.loads(done.stdout), RunFolder(finished()).receipt
    assert receipt["replicas"] == 2 and receipt["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    assert receipt["checksum"] == alone["checksum"]
    refused = subprocess.run([*run, "train", *flags, "--sync-every=0"], capture_output=True, text=True, timeout=240)
    assert refused.returncode != 0 and refused.stderr.count("sync_every is 0") == 1


# -- sample and eval


def test_sample_is_a_function_of_the_seed(finished, capsys):
    first, same, other = (answer(capsys, "sample", finished(), "--seed", s, "--tokens", 40) for s in (1, 1, 2))
    assert first == same and first["text"] != other["text"]
    assert first["weights"] == "global" and first["step"] == 17 and first["tokens"] == 40


def test_sample_goes_on_from_the_prompt(finished, capsys):
    words = ("sample", finished(), "--prompt", "abc", "--tokens", 20, "--temperature", 0)
    printed = answer(capsys, *words)
    assert text(capsys, *words) == "abc" + printed["text"] + "\n"
    assert printed["text"] == answer(capsys, *words, "--seed", 5)["text"]  # no chance in the likeliest token


def test_eval_gives_the_receipts_loss_exactly(finished, capsys):
    for changes in ({}, {"method": "dp"}):
        run = finished(**changes)
        receipt, printed = RunFolder(run).receipt, answer(capsys, "eval", run)
        assert printed["weights"] == "global" and printed["step"] == 17
        assert {k: printed[k] for k in ("loss", "loss_se", "bits_per_byte")} == {
            k: receipt[k] for k in ("loss", "loss_se", "bits_per_byte")
        }


def test_eval_says_which_weights_and_which_data(ground, finished, tmp_path, capsys):
    out = text(capsys, "eval", finished(), "--sequences", 5)
    assert "weights global after inner step 17" in out and f"data {ground.text}: 5 held-out sequences" in out
    (tmp_path / "other.txt").write_text("zyxw " * 500)
    other = answer(capsys, "eval", finished(), "--data.sources", tmp_path / "other.txt")
    assert other["sources"] == [str(tmp_path / "other.txt")] and other["loss"] > RunFolder(finished()).receipt["loss"]


def test_eval_of_a_replica_is_of_its_own_weights(ground, tmp_path, capsys):
    """Inside a window the replicas differ from the anchor and from each other."""
    answer(capsys, "train", *ground.flags(tmp_path, name="a", stop_at=6))
    losses = [
        answer(capsys, "eval", tmp_path / "a", "--weights", w)["loss"] for w in ("global", "replica-0", "replica-1")
    ]
    assert len(set(losses)) == 3


def test_eval_warns_when_the_text_has_changed(ground, tmp_path, capsys):
    mine = tmp_path / "text.txt"
    mine.write_text(ground.text.read_text())
    answer(capsys, "train", *ground.flags(tmp_path, name="a", steps=2, data_sources=mine))
    mine.write_text(mine.read_text() + " more and more" * 100)
    assert main(["eval", str(tmp_path / "a"), "--json"]) == 0
    assert "has changed since training" in capsys.readouterr().err


def test_a_bpe_run_is_sampled_and_evaluated_in_its_own_tokens(ground, tmp_path, capsys):
    """The run folder holds its tokenizer: text and cache may be gone, and other text is measured in the same tokens."""
    text, cache = tmp_path / "text.txt", tmp_path / "cache"
    text.write_text(ground.text.read_text())
    flags = ground.flags(tmp_path, name="a", steps=3, data_tokenizer="bpe:300", data_sources=text, data_cache_dir=cache)
    answer(capsys, "train", *flags)
    assert answer(capsys, "eval", tmp_path / "a")["loss"] == RunFolder(tmp_path / "a").receipt["loss"]
    text.unlink()
    shutil.rmtree(cache)
    (tmp_path / "other.txt").write_text("zyxw " * 500)
    assert answer(capsys, "eval", tmp_path / "a", "--data.sources", tmp_path / "other.txt")["loss"] > 0
    assert answer(capsys, "sample", tmp_path / "a", "--prompt", "ab", "--tokens", 5)["text"]
    (tmp_path / "a" / "tokenizer.json").write_text("{}")
    assert main(["sample", str(tmp_path / "a")]) == 2
    assert "tokenizer.json" in capsys.readouterr().err


def test_a_damaged_newest_checkpoint_is_skipped_with_a_warning(ground, tmp_path, capsys):
    answer(capsys, "train", *ground.flags(tmp_path, name="a", checkpoint_every=2))
    (tmp_path / "a" / "checkpoints" / "step-00000017" / "global.0.safetensors").write_bytes(b"")
    capsys.readouterr()
    assert main(["sample", str(tmp_path / "a"), "--tokens", "2", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["step"] == 16 and "skipped a damaged checkpoint" in printed.err


@pytest.mark.slow
def test_a_hugging_face_run_works_with_every_verb(ground, tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    shape = {"vocab_size": 256, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape)).save_pretrained(tmp_path / "hf")
    flags = ground.flags(tmp_path, name="a", steps=5, size=None, hf=tmp_path / "hf")
    receipt = answer(capsys, "train", *flags)
    assert answer(capsys, "eval", tmp_path / "a")["loss"] == receipt["loss"]
    assert len(answer(capsys, "sample", tmp_path / "a", "--tokens", 50)["text"]) > 0
    assert answer(capsys, "selftest", "--hf", tmp_path / "hf")["ok"]


# -- compare


def test_compare_states_seeds_spread_and_interval(finished, tmp_path, capsys):
    runs = [finished(seed=s, method=m) for m in ("diloco", "dp") for s in (0, 1)]
    printed = answer(capsys, "compare", *runs, "--out", tmp_path / "c.html")
    diloco, dp = sorted(printed["groups"], key=lambda group: group["method"])
    assert diloco["n"] == dp["n"] == 2 and diloco["loss_sd"] > 0 and dp["is_baseline"]
    assert diloco["difference_low_percent"] < diloco["difference_percent"] < diloco["difference_high_percent"]
    assert Path(printed["page"]).read_text().startswith("<!doctype html>")
    out = text(capsys, "compare", *runs, "--out", tmp_path / "c.html")
    assert f"{diloco['loss_mean']:.4f} ± {diloco['loss_sd']:.4f}" in out and f"page {tmp_path / 'c.html'}" in out
    assert f"{diloco['difference_percent']:+.2f}%" in out and "95% interval" in out


def test_compare_says_that_one_seed_has_no_spread(finished, tmp_path, capsys):
    out = text(capsys, "compare", finished(seed=0, method="diloco"), "--out", tmp_path / "c.html")
    assert "One seed: no spread" in out and "no baseline" in out and "±" not in out


# -- all of them


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "checkpoint"])  # which has verbs of its own
def test_help_lists_every_option_with_what_it_is(verb, capsys):
    import importlib

    from diloco.cli import options

    module = importlib.import_module(f"diloco.cli.{verb.replace('-', '_')}")
    kind = getattr(module, f"{verb.title().replace('-', '')}Options")
    out = text(capsys, verb, "--help")
    for flag in options.known_flags(kind):
        assert flag in out or flag.rstrip("S") in out, flag
    assert "--json" in out and f"usage: diloco {verb}" in out


def test_the_overview_names_every_verb(capsys):
    out = text(capsys, "--help")
    assert all(f"  {verb} " in out for verb in VERBS) and "Exit code" in out


def test_the_overview_needs_no_torch():
    code = "import sys, diloco.cli as c; c.main(['--help']); sys.exit('torch' in sys.modules or 'tyro' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), diloco.Mismatch("anchors differ")])
def test_work_that_fails_ends_in_a_sentence_and_exit_code_1(ground, tmp_path, capsys, monkeypatch, error):
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("diloco.train.saving.Checkpoints.save", fail)
    capsys.readouterr()
    assert main(["train", *map(str, ground.flags(tmp_path, name="a"))]) == 1
    assert str(error) in capsys.readouterr().err
