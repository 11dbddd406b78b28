"""Every option of `diloco plan` is used, warned of, or refused; and its help.

pytest tests/cli/test_plan_settings.py
"""

from __future__ import annotations

import dataclasses
import json

import pytest
from support.cli import refusal, text

from diloco.cli import main
from diloco.cli.plan import PlanOptions
from diloco.cli.plan_help import GROUPS, _docs
from diloco.laws.published import PAPER_TOKEN_RATIO
from diloco.plan.asked import Asked
from diloco.plan.catalogue import DEFAULT_INSIDE
from diloco.plan.failures import SERVERS_FOR_A_SPARE, Failures
from diloco.plan.hardware import ASSUMED_MFU
from diloco.plan.model import SEQ_LEN
from diloco.plan.question import STREAMING_CODEC, STREAMING_OVERLAP
from diloco.units import DAY_S

BASE = {"params": "7b", "tokens": "140b", "sites": "2x64xh100", "between": "1gbit,20ms"}

USED = {
    "params": "8b", "tokens": "150b", "sites": "2x72xh100", "between": "100mbit", "deadline": "3d", "budget_usd": "50k",
    "target_loss": "2.2", "replicas": "4", "sync_every": "77", "codec": "int8", "overlap": "3", "fragments": "7",
    "batch_tokens": "1m", "seq_len": "1024", "tensor": "4", "pipeline": "8", "mfu": "50%", "price": "2",
    "law": "article", "mtbi": "30d", "away": "2h",
    "restart": "20min", "checkpoint_every": "2h", "spares": "1", "inside": "100gbit",
}  # fmt: skip
"""A value of each option that must change the answer, beside the base."""

USED_WITH = {"microbatches": {"pipeline": "8", "microbatches": "64"}}

OWN = "[chip.h100]\nusd_per_h = 9\n"
IDLE = '[chip.h200]\nusd_per_h = 9\n[link.mine]\nbandwidth = "1gbit"\n'

ONE_REPLICA = "with one replica (M = 1), which syncs with nobody"
WITHOUT_EFFECT = {
    "between": ({"sites": "64xh100", "between": "1gbit"}, "--between has no effect with one site"),
    "inside": ({"sites": "2x8xh100", "inside": "100gbit"}, "--inside has no effect where a site is one server"),
    "sync_every": ({"sites": "64xh100", "between": "", "sync_every": "9"}, f"--sync-every has no effect {ONE_REPLICA}"),
    "codec": ({"sites": "64xh100", "between": "", "codec": "int8", "overlap": "3"},
              f"--codec and --overlap have no effect {ONE_REPLICA}"),
    "fragments": ({"sites": "64xh100", "between": "", "fragments": "3"}, f"--fragments has no effect {ONE_REPLICA}"),
}  # fmt: skip

REFUSED = {
    "tensor that does not divide": ({"tensor": "3"},
                                    "--tensor is 3, which does not divide a replica's 64 chips: give 4"),
    "both that do not": ({"tensor": "3", "pipeline": "5"},
                         "--tensor is 3 and --pipeline is 5, which does not divide a replica's 64 chips: give 4 and 4"),
    "more stages than layers": ({"pipeline": "64"}, "--pipeline is 64, more than the model's 43 layers: give 32"),
    "more chips than heads": ({"tensor": "64"}, "--tensor is 64, more than the model's 57 heads: give 32"),
    "replicas that do not divide": ({"replicas": "3"}, "--replicas is 3, which 2 sites cannot share alike: give 4"),
    "a split that does not fit": (
        {"params": "70b", "sites": "2x16xh100", "pipeline": "2"},
        "--pipeline is 2, with which 70B parameters do not fit: they take 112 GB a chip, of which 73.6 GB can be used: "
        "give --tensor 2",
    ),
    "replicas that do not fit": ({"params": "70b", "replicas": "16"},
                                 "--replicas is 16, with which 70B parameters do not fit: they take 213 GB a chip, of "
                                 "which 73.6 GB can be used: give 8"),
    "a codec that is none": ({"codec": "int5"}, "--codec is 'int5': give 'int8', or another of fp32"),
    "fragments beyond the layers": ({"fragments": "99"}, "--fragments is 99: give at most the model's 43 layers"),
    "a chip that is none": ({"sites": "2x64xh10"}, "--sites is '2x64xh10': chip 'h10' is unknown: did you mean h100"),
    "chips that fill no servers": ({"sites": "2x63xh100"}, "--sites is '2x63xh100': 63 chips do not fill servers of 8"),
    "a link that is none": ({"between": "pigeon"}, "--between is 'pigeon': link 'pigeon' is unknown: did you mean"),
    "a link inside that is none": ({"inside": "10"}, "--inside is '10': give a rate in kbit"),
    "a model that is none": ({"params": "large"}, "--params is 'large': give a number such as 7b"),
    "no such hardware": ({"hardware": "no.toml"}, "--hardware is 'no.toml': hardware file no.toml cannot be read"),
}  # fmt: skip


def words(**changed: str) -> list[str]:
    given = {**BASE, **changed}
    return ["plan", *(f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value)]


def ask(capsys, **changed: str) -> tuple[dict, str]:
    """The record, and what was printed on stderr."""
    capsys.readouterr()
    assert main([*words(**changed), "--json"]) == 0
    out, err = capsys.readouterr()
    return json.loads(out), err


def figures(record: dict) -> str:
    """All numbers of an answer, its search included, without a word of what was assumed."""
    methods = [{k: v for k, v in line.items() if k != "memory"} for line in record["methods"].values()]
    return json.dumps([methods, record["verdict"], record.get("search")])


@pytest.fixture(scope="module")
def base() -> str:
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([*words(), "--json"]) == 0
    return figures(json.loads(out.getvalue()))


def test_every_option_is_in_the_tables():
    asked = {field.name for field in dataclasses.fields(Asked)}
    assert set(USED) | set(USED_WITH) | {"measured", "hardware"} == asked
    assert set(WITHOUT_EFFECT) <= asked


@pytest.mark.parametrize("name", USED)
def test_an_option_changes_the_answer_and_is_not_warned_of(name, base, capsys):
    record, err = ask(capsys, **{name: USED[name]})
    assert figures(record) != base and record["warnings"] == [] and err == ""


@pytest.mark.parametrize("name", USED_WITH)
def test_an_option_changes_the_answer_beside_another(name, capsys):
    given = USED_WITH[name]
    without = {key: value for key, value in given.items() if key != name}
    assert figures(ask(capsys, **given)[0]) != figures(ask(capsys, **without)[0])


def test_files_change_the_answer_or_are_warned_of(tmp_path, base, capsys):
    used, idle, speed = tmp_path / "used.toml", tmp_path / "idle.toml", tmp_path / "device.json"
    used.write_text(OWN)
    idle.write_text(IDLE)
    speed.write_text(json.dumps({"kind": "diloco bench device", "flop_per_s": 3e14}))
    for name, file in (("hardware", used), ("measured", speed)):
        record, err = ask(capsys, **{name: str(file)})
        assert figures(record) != base and err == ""
    record, err = ask(capsys, hardware=str(idle))
    assert figures(record) == base
    assert err == "warning: --hardware has no effect as it names no chip and no link of this question\n"
    assert ask(capsys, hardware=str(idle), between="mine")[1] == ""


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_an_option_without_effect_is_warned_of(name, capsys):
    given, sentence = WITHOUT_EFFECT[name]
    record, err = ask(capsys, **given)
    assert record["warnings"] == [sentence] and err == f"warning: {sentence}\n"


def test_one_site_with_replicas_uses_them(capsys):
    assert ask(capsys, sites="64xh100", between="", replicas="2", overlap="3")[0]["warnings"] == []


@pytest.mark.parametrize(("given", "says"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_by_its_option_with_a_way_out(given, says, capsys):
    assert says in refusal(capsys, *words(**given))


WAYS_OUT = {
    "a split that does not fit": {"tensor": "2", "pipeline": ""}, "replicas that do not fit": {"replicas": "8"},
    "tensor that does not divide": {"tensor": "4"}, "more stages than layers": {"pipeline": "32"},
    "both that do not": {"tensor": "4", "pipeline": "4"}, "more chips than heads": {"tensor": "32"},
}  # fmt: skip


@pytest.mark.parametrize("name", WAYS_OUT)
def test_the_way_out_is_one(name, capsys):
    assert ask(capsys, **{**REFUSED[name][0], **WAYS_OUT[name]})[0]["fits"]


def test_a_given_split_is_what_every_method_runs_with(capsys):
    record, _ = ask(capsys, tensor="4", pipeline="2")
    assert {(line["tensor"], line["pipeline"]) for line in record["methods"].values()} == {(4, 2)}


def test_a_search_tries_what_the_answer_shows(capsys):
    """An overlap of 600 steps needs an H of 600, which no ladder has."""
    record, _ = ask(capsys, overlap="600", deadline="10d", replicas="2")
    assert record["sync_every"] == 600
    assert record["search"]["best"]["sync_every"] == 600 and record["search"]["best"]["overlap"] == 600


def test_a_goal_names_all_of_its_limits(capsys):
    record, _ = ask(capsys, target_loss="2.2", deadline="30d", budget_usd="90k", replicas="2", codec="e3m0")
    assert record["search"]["goal"] == "the cheapest way to a loss of 2.2 in 30 days for $90k"


def test_help_has_every_option_once_with_what_it_takes(capsys):
    listed = [name for group in GROUPS for name in group.takes]
    assert sorted(listed) == sorted(field.name for field in dataclasses.fields(PlanOptions))
    assert main(["plan", "--help"]) == 0
    out = capsys.readouterr().out
    assert "default: " not in out and "{None}" not in out
    for group in GROUPS:
        assert group.about.split(",")[0][:30] in out
        assert all(f"--{name.replace('_', '-')} {takes}".strip() in out for name, takes in group.takes.items())


def test_help_states_the_defaults_that_are_used():
    """Numbers in the options' own words against the code's constants."""
    said = _docs(PlanOptions)
    failures = Failures()
    stated = {
        "tokens": f"{PAPER_TOKEN_RATIO} for each parameter", "mfu": f"{ASSUMED_MFU:.0%} is assumed",
        "codec": f"{STREAMING_CODEC} (where left out)", "overlap": f"{STREAMING_OVERLAP} where left out",
        "seq_len": f"{SEQ_LEN} where left out", "mtbi": f"{failures.mtbi_s / DAY_S:.0f} days",
        "away": f"{failures.away_s / 60:.0f}min where left out", "restart": f"{failures.restart_s / 60:.0f}min where",
        "checkpoint_every": f"a stop of {failures.checkpoint_s:.0f} s", "inside": DEFAULT_INSIDE,
        "spares": f"one for {SERVERS_FOR_A_SPARE} servers",
    }  # fmt: skip
    assert {name for name, words in stated.items() if words not in said[name]} == set()


def test_text_keeps_options_whole(capsys):
    out = text(capsys, *words())
    assert "What helps most: --inside of 800 Gbit/s a chip (5% faster), then --batch-tokens 1540096 (5% faster)" in (
        " ".join(out.split())
    )
    assert not any(line.rstrip().endswith("-") for line in out.splitlines())


def test_the_best_of_a_search_can_be_asked_for(capsys):
    """The options it is printed with give its days and dollars."""
    limits = {"deadline": "2d", "codec": "e3m0", "replicas": "2"}
    best = ask(capsys, **limits)[0]["search"]["best"]
    said = " ".join(text(capsys, *words(**limits)).split("side by side with the others by ")[1].split()[:14])
    given = dict(zip(said.split()[::2], said.split()[1::2], strict=True))
    assert set(given) == {
        f"--{name}" for name in "replicas sync-every codec overlap fragments batch-tokens tokens".split()
    }
    record, _ = ask(capsys, **{flag[2:].replace("-", "_"): value for flag, value in given.items()})
    assert record["days"] == pytest.approx(best["days"]) and record["cost_usd"] == pytest.approx(best["cost_usd"])


HARDWARE = "[chip.mine]\nmemory = '80GB'\nmemory_bandwidth = '3 TB/s'\npower_w = 700\n"


@pytest.mark.parametrize(
    "peak, says",
    [
        ("peak = { bf17 = '900 TFLOP/s' }", "chip.mine.peak has an unknown precision 'bf17': write 'bf16'"),
        ("peak = { fp8 = '900 TFLOP/s' }", "chip mine has a peak in fp8 alone: add one in bf16"),
    ],
)
def test_a_chip_without_a_peak_to_reckon_by_names_the_file(capsys, tmp_path, peak, says):
    path = tmp_path / "chips.toml"
    path.write_text(HARDWARE + peak)
    said = refusal(capsys, *words(sites="8xmine", between="", hardware=str(path)))
    assert f"--hardware is '{path}'" in said and says in said


@pytest.mark.parametrize("content", ["{", '{"a": 1}'])
def test_a_law_that_is_none_names_the_option(capsys, tmp_path, content):
    path = tmp_path / "law.json"
    path.write_text(content)
    assert f"--law is '{path}': " in refusal(capsys, *words(law=str(path)))


@pytest.mark.parametrize("option", ["--codec=", "--report=", "--between="])
def test_an_option_with_nothing_in_it_is_refused(capsys, option):
    said = refusal(capsys, "plan", "--params=7b", "--sites=8xh100", option)
    assert f"{option[:-1]} is empty: give it a value, or leave it out" in said
    assert f"{option[:-1]} is empty" in refusal(capsys, "plan", "--params=7b", "--sites=8xh100", option[:-1], "")


@pytest.mark.parametrize(
    "between, says",
    [
        ("-1gbit", "--between is '-1gbit': it must be above 0"),
        ("2,5gbit,20ms", "write 2.5gbit"),
        ("10gbit,2,5ms", "write 2.5ms"),
        ("10,20ms", "--between is '10': give a rate in kbit"),
    ],
)
def test_a_rate_that_is_none_says_what_is_wrong_with_it(capsys, between, says):
    assert says in refusal(capsys, *words(between=between))


def test_one_token_is_one_token(capsys):
    said = text(capsys, *words(sites="8xh100", between="", tokens="1", batch_tokens="1"))
    assert "7B parameters, 1 token;" in said and "1 tokens" not in said
