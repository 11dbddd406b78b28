"""`diloco plan` and `diloco bench device` from end to end.

pytest tests/cli/test_plan.py
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import answer, refusal, text

QUESTION = "--params 7b --tokens 140b --sites 2x64xh100 --between 1gbit,20ms".split()
FIXED_KEYS = ("step_s", "compute_s", "communication_s", "compute_utilization", "days", "gbit_per_s_needed", "cost_usd")


def with_options(words: str) -> list[str]:
    """The question above with other options in place of its own; --OPTION- leaves one out."""
    changed = dict(re.findall(r"(--[a-z-]+?)(?:=| |$)((?:(?!--)\S)*)", words))
    left_out = {name[:-1] for name in changed if name.endswith("-")}
    base = dict(zip(QUESTION[::2], QUESTION[1::2], strict=True))
    merged = {name: value for name, value in (base | changed).items() if name not in left_out and name[-1] != "-"}
    return [f"{name}={value}" if value else name for name, value in merged.items()]


# -- the answer


def test_json_has_the_fixed_keys_and_every_method(capsys):
    printed = answer(capsys, "plan", *QUESTION)
    assert all(isinstance(printed[key], float) for key in FIXED_KEYS)
    assert list(printed["methods"]) == ["one_site", "data_parallel", "diloco", "streaming"]
    for line in printed["methods"].values():
        assert set(FIXED_KEYS) <= set(line)
        assert line["cost_usd"] == pytest.approx(line["days"] * 24 * line["chips"] * 3)
    assert printed["verdict"].startswith("Worth it") and printed["assumptions"] and printed["notes"]
    assert printed["method"] == "streaming" and "search" not in printed


def test_first_screen_of_text_decides(capsys):
    lines = text(capsys, "plan", *QUESTION).splitlines()
    assert lines[0] == "7B parameters, 140B tokens; 2 sites of 64 h100, 1 Gbit/s and 20 ms between them"
    top = " ".join(lines[:5])
    assert "Worth it: with a second site over 1 Gbit/s the run takes" in top and "money" in top and "loss" in top
    labels = {re.split(r"  +", line.strip())[0] for line in lines[:29]}
    wanted = {"time", "cost", "loss (paper)", "compute utilisation", "a step", "waiting for the link",
              "tokens a second", "link for 90% at this H", "link for 95% at this H", "link for 99% at this H",
              "sent over the link a day", "memory of a chip", "goodput under failures"}  # fmt: skip
    assert wanted <= labels and max(map(len, lines)) <= 120


def test_one_site_alone_is_a_question_too(capsys):
    printed = answer(capsys, "plan", *with_options("--sites=64xh100 --between-"))
    assert list(printed["methods"]) == ["one_site"] and printed["gbit_per_s_needed"] == 0
    assert printed["compute_utilization"] == 1


def test_a_deadline_searches_and_names_the_best(capsys):
    out = text(capsys, "plan", *QUESTION, "--deadline", "2d", "--codec", "e3m0", "--fragments", 15)
    assert "the best loss in 2 days: " in out and "none beats these" in out and "configurations" in out
    printed = answer(capsys, "plan", *QUESTION, "--budget-usd", "20k", "--codec", "e3m0", "--fragments", 15)
    assert printed["search"]["best"]["cost_usd"] <= 20e3 and printed["search"]["front"]
    assert printed["search"]["goal"] == "the best loss for $20k"


def test_like_article_prints_table_assumptions_and_verdict(capsys):
    out = text(capsys, "plan", "--like", "article")
    for size in ("350M", "7B", "100B"):
        assert f"\n{size} " in out
    assert "650B in 19 days" in out and "assumptions:" in out and "H = 100" in out
    printed = answer(capsys, "plan", "--like", "article")
    assert len(printed["lines"]) == 3 and printed["verdict"]


def test_report_is_one_page_that_opens_offline(tmp_path, capsys):
    page = tmp_path / "deep" / "plan.html"
    printed = answer(capsys, "plan", *QUESTION, "--report", page)
    html = page.read_text()
    assert printed["report"] == str(page) and printed["search"]["tried"] > 10_000
    said = re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", html, flags=re.S)
    assert "Worth it" in said and "With a second site over 1 Gbit/s" in said
    for name in ("window", "utilization", "goodput", "breakdown_H", "breakdown_M", "front"):
        assert f'id="{name}"' in html
    assert not re.search(r"<(script|link|img)[^>]* (src|href)=", html)


def test_a_plan_needs_neither_torch_nor_the_trainer():
    code = (
        "import sys; from diloco.cli import main; main(sys.argv[1:]); "
        "sys.exit(bool({'torch', 'plotly', 'diloco.train'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, "plan", *QUESTION], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# -- bad input

BAD = {
    "no model": ("--params-", "--params is missing"),
    "no sites": ("--sites-", "--sites is missing"),
    "no link between two sites": ("--between-", "--between is missing: 2 sites"),
    "unknown model": ("--params=large", "params is 'large'"),
    "negative size": ("--params=-7b", "params is '-7b'"),
    "NaN size": ("--params=nan", "params is 'nan'"),
    "endless tokens": ("--tokens=inf", "--tokens is 'inf'"),
    "zero tokens": ("--tokens=0", "--tokens is '0'"),
    "unknown chip": ("--sites=2x64xh10", "did you mean"),
    "zero chips": ("--sites=2x0xh100", "give 2x1xh100"),
    "zero sites": ("--sites=0x64xh100", "give 1x64xh100"),
    "negative chips": ("--sites=2x-8xh100", "--sites is '2x-8xh100'"),
    "chips that fill no servers": ("--sites=2x63xh100", "give 64"),
    "sites without chips": ("--sites=h100", "as 2x64xh100"),
    "too many sites": ("--sites=2000x8xh100", "give 1000x8xh100"),
    "zero bandwidth": ("--between=0gbit", "--between is '0gbit'"),
    "negative bandwidth": ("--between=-5gbit,20ms", "--between is '-5gbit'"),
    "bandwidth without unit": ("--between=10", "--between is '10'"),
    "bits or bytes": ("--between=10gb", "write 10gbit or GB/s"),
    "unknown link": ("--between=carrier-pigeon", "link 'carrier-pigeon' is unknown"),
    "negative latency": ("--between=1gbit,-5ms", "latency of --between is '-5ms'"),
    "NaN bandwidth": ("--between=nangbit", "nangbit"),
    "zero replicas": ("--replicas=0", "--replicas is 0: give 2"),
    "replicas that sites cannot share": ("--replicas=3", "give 4"),
    "replicas that do not divide the chips": ("--replicas=6", "give 8"),
    "zero interval": ("--sync-every=0", "--sync-every is 0: give 1 or more"),
    "negative overlap": ("--overlap=-1", "--overlap is -1: give 0 or more"),
    "overlap beyond the interval": ("--sync-every=10 --overlap=11", "give at most 10"),
    "more fragments than layers": ("--fragments=99", "fragments is 99"),
    "more fragments than steps": ("--sync-every=5 --fragments=6", "give at most 5"),
    "zero fragments": ("--fragments=0", "--fragments is 0: give 1 or more"),
    "unknown codec": ("--codec=int5", "codec is 'int5'"),
    "sparse codec without a density": ("--codec=topk", "topk"),
    "batch beyond the run": ("--tokens=1m --batch-tokens=2m", "--batch-tokens is 2,000,000, more than the run's 1M"),
    "batch under a token a replica": ("--batch-tokens=1", "less than one for each replica: give 4096"),
    "zero sequence": ("--seq-len=0", "--seq-len is 0"),
    "tensor that does not divide": ("--tensor=3", "--tensor is 3, which does not divide a replica's 64 chips: give 4"),
    "zero stages": ("--pipeline=0", "--pipeline is 0: give 1"),
    "utilisation over 1": ("--mfu=140%", "--mfu is '140%'"),
    "zero utilisation": ("--mfu=0", "--mfu is '0'"),
    "NaN utilisation": ("--mfu=nan", "--mfu is 'nan'"),
    "two speeds": ("--mfu=40% --measured=x.json", "--measured is x.json: give one of them"),
    "no such measurement": ("--measured=no/such.json", "--measured no/such.json cannot be read"),
    "no such law": ("--law=no/such.json", "--law is no/such.json"),
    "free chips": ("--price=0", "--price is '0'"),
    "deadline without a unit": ("--deadline=30", "--deadline is '30'"),
    "deadline in the past": ("--deadline=-1d", "--deadline is '-1d'"),
    "deadline that nothing keeps": ("--deadline=1h --sync-every=100 --batch-tokens=1m", "give 1.35d"),
    "no budget": ("--budget-usd=0", "--budget-usd is '0'"),
    "budget that nothing keeps": ("--budget-usd=9 --sync-every=100 --batch-tokens=1m", "--budget-usd is 9"),
    "loss under 0": ("--target-loss=-1", "--target-loss is -1"),
    "NaN loss": ("--target-loss=nan", "--target-loss is nan"),
    "loss that nothing reaches": ("--target-loss=0.5 --sync-every=100 --batch-tokens=1m", "or a larger model"),
    "no such hardware": ("--hardware=no/such.toml", "no/such.toml"),
    "model that does not fit": ("--params=1t --tokens=1t", "does not fit"),
    "article and a question": ("--like=article", "leave --params out"),
    "unknown table": ("--like=paper", "--like is paper, which is no file: give article"),
    "a share without its sign": ("--mfu=40", "give 40%"),
    "nothing like it": ("--frobnicate=1", "unknown option --frobnicate=1: `diloco plan --help` lists the options"),
    "micro-batches without stages": ("--microbatches=4", "--microbatches is 4 without --pipeline"),
    "more micro-batches than tokens": ("--pipeline=4 --microbatches=9999999", "give at most"),
    "zero micro-batches": ("--pipeline=4 --microbatches=0", "--microbatches is 0: give 1"),
    "model that no chips hold": ("--params=1e17 --tokens=1t", "nor do 10,000,000 chips a replica"),
    "no sequence of that length fits": ("--seq-len=100000000", "--seq-len is 100,000,000, with which"),
    "failures without a unit": ("--mtbi=365", "--mtbi is '365'"),
    "fewer than no spares": ("--spares=-1", "--spares is -1: give 0"),
    "money in plain numbers": ("--budget-usd=1000 --sync-every=100 --batch-tokens=1m", "--budget-usd is 1,000, which"),
    "unknown option": ("--sides=2x64xh100", "did you mean --sites?"),
    "a word for a number": ("--sync-every=often", "--sync-every is often: give a whole number"),
}


HARDWARE = {
    "a peak that is a number": ("peak = 5", "chip.own.peak is 5: give FLOP/s by precision"),
    "a peak without a unit": ('peak = { bf16 = "500" }', "without a unit: write it as '989 TFLOP/s'"),
    "a bare number": ("peak = { bf16 = 500 }", "chip.own.peak.bf16 is 500, without a unit"),
    "no peak at all": ("peak = {}", "chip.own.peak is {}"),
    "half a chip": ('peak = { bf16 = "5 TFLOP/s" }\nnode_chips = 2.5', "node_chips is 2.5: give a whole number, as 2"),
}


@pytest.mark.parametrize(("lines", "says"), HARDWARE.values(), ids=HARDWARE)
def test_a_broken_chip_is_refused(lines, says, tmp_path, capsys):
    file = tmp_path / "own.toml"
    file.write_text(f'[chip.own]\nmemory = "80GB"\nmemory_bandwidth = "3000 GB/s"\npower_w = 500\n{lines}\n')
    assert says in refusal(capsys, "plan", *QUESTION, "--hardware", file)


@pytest.mark.parametrize(("text_of_file", "says"), [("", "is empty"), ("[chip]\nown = 3\n", "has chip.own = 3")])
def test_a_hardware_file_without_tables_is_refused(text_of_file, says, tmp_path, capsys):
    file = tmp_path / "own.toml"
    file.write_text(text_of_file)
    assert says in refusal(capsys, "plan", *QUESTION, "--hardware", file)


def test_stages_and_their_bubble_are_shown(capsys):
    """770,048 tokens a step in sequences of 2048: 188 for each replica of 64 chips, 8 shards of 8 stages: 23 each, and
    32 parts of at least 1024 tokens are four a stage."""
    words = "--pipeline=8 --replicas=2"
    out = text(capsys, "plan", *with_options(words))
    assert "  pipeline bubble" in out and "tensor 1 x pipeline 8, with 32 micro-batches" in out
    printed = answer(capsys, "plan", *with_options(words))
    assert printed["micro_batches"] == 32
    assert printed["bubble_s"] == pytest.approx(7 / 32 * printed["compute_s"])
    given = answer(capsys, "plan", *with_options(words + " --microbatches=16"))
    assert given["bubble_s"] == pytest.approx(7 / 16 * given["compute_s"]) and given["micro_batches"] == 16
    assert "pipeline bubble" not in text(capsys, "plan", *QUESTION)


def test_plain_diloco_has_an_interval_of_its_own(capsys):
    printed = answer(capsys, "plan", *with_options("--between=10gbit,20ms"))
    plain, streaming = (printed["methods"][name]["sync_every"] for name in ("diloco", "streaming"))
    said = f"plain DiLoCo, which hides nothing, has an H of its own by the same rule, {plain}"
    assert plain > streaming == 30 and said in "\n".join(printed["assumptions"])
    same = answer(capsys, "plan", *with_options("--sync-every=70"))
    assert {line["sync_every"] for line in same["methods"].values()} == {1, 70}


def test_much_more_money_is_a_factor(capsys):
    out = " ".join(text(capsys, "plan", *with_options("--between=1kbit")).split("assumptions:")[0].split())
    assert " times as long), for " in out and " times the money" in out and "e+" not in out and "% more" not in out


def test_top_k_comes_with_a_caution(capsys):
    out = " ".join(text(capsys, "plan", *QUESTION, "--codec", "topk:0.01").split())
    assert "But top-k is not in that loss: it cost 25%" in out.split("one site")[0]
    assert "But top-k" not in text(capsys, "plan", *QUESTION)


def test_a_step_means_the_same_everywhere(capsys):
    """Between failures; days are with them."""
    words = "--sites=2x2048xh100 --deadline=1000d --sync-every=100 --codec=e3m0 --overlap=5 --fragments=5 --mtbi=60d"
    printed = answer(capsys, "plan", *with_options(words))
    for one in (*printed["search"]["front"], printed["search"]["best"], *printed["methods"].values()):
        tokens, batch = one.get("tokens", printed["tokens"]), one["batch_tokens"]
        assert one["days"] == pytest.approx(tokens / batch * one["step_s"] / one["goodput"] / 86400)


def test_a_page_in_a_new_folder_is_said_and_a_folder_is_no_page(tmp_path, capsys):
    asked = ("plan", *QUESTION, "--sync-every", 100, "--codec", "e3m0", "--report", tmp_path / "new" / "p.html")
    assert text(capsys, *asked).endswith("p.html, in a new folder\n")
    assert text(capsys, *asked).endswith("p.html\n")
    assert "is a folder: name a file" in refusal(capsys, "plan", *QUESTION, "--report", tmp_path)


@pytest.mark.parametrize(("words", "says"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_in_a_sentence(words, says, capsys):
    assert says in refusal(capsys, "plan", *with_options(words))


def test_a_report_that_cannot_be_written_is_refused(tmp_path, capsys):
    (tmp_path / "file").touch()
    said = refusal(capsys, "plan", *QUESTION, "--report", tmp_path / "file" / "plan.html")
    assert "--report" in said and "give another" in said


def test_a_law_of_something_else_is_refused(tmp_path, capsys):
    from diloco.laws import fit_law, read_rows

    rows = read_rows({"params": [1e7, 1e8, 1e9, 1e10], "time_s": [1.0, 2.0, 4.0, 8.0]}, target="time_s")
    fit_law(rows, "A*params^a", target="time_s", holdout=False).save(tmp_path / "law.json")
    assert "a law of time_s: give one of loss" in refusal(capsys, "plan", *QUESTION, "--law", tmp_path / "law.json")


# -- bench


def test_bench_writes_what_a_plan_reads(tmp_path, capsys):
    file = tmp_path / "device.json"
    small = ("--size", "30k", "--seq-len", 16, "--sequences", 1, "--seconds", 0.01, "--device", "cpu", "--threads", 1)
    printed = answer(capsys, "bench", "device", *small, "--out", file)
    assert json.loads(file.read_text()) == printed
    tokens_per_s = printed["batch_tokens"] / printed["step_s"]
    assert printed["flop_per_s"] == pytest.approx(6 * printed["params"] * tokens_per_s)
    assert printed["matmul_flop_per_s"] > printed["flop_per_s"] > 0 and printed["dtype"] == "fp32"
    planned = answer(capsys, "plan", *QUESTION, "--measured", file)
    assert planned["flop_per_s"] == printed["flop_per_s"] and "measured" in planned["assumptions"][0]
    assert "tokens/s" in text(capsys, "bench", "device", *small)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "diloco bench device"), ("gpu", "diloco bench device"), ("device --size=7q", "size '7q' is unknown"),
        ("device --seconds=0", "seconds is 0"), ("device --sequences=0", "sequences is 0"),
        ("device --dtype=int8", "dtype is int8"), ("device --device=tpu", "device is tpu"),
        ("device --threads=-1", "--threads is -1"),
    ],
)  # fmt: skip
def test_bench_refuses_what_it_cannot_time(words, says, capsys):
    assert says in refusal(capsys, "bench", *words.split())


def test_bench_measures_a_run_folder_too(finished, capsys):
    """A run's receipt says how long its replica computed."""
    folder: Path = finished()
    receipt = json.loads((folder / "receipt.json").read_text())
    params = json.loads((folder / "config.json").read_text())["params"]
    planned = answer(capsys, "plan", *QUESTION, "--measured", folder)
    tokens = receipt["tokens_per_replica"][receipt["replica"]]
    assert planned["flop_per_s"] == pytest.approx(6 * params * tokens / receipt["compute_s"])
