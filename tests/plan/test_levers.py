"""Which option helps most; unlike sites; replicas on one site; and what an answer says it took for granted.

pytest tests/plan/test_levers.py
"""

from __future__ import annotations

import pytest

from diloco.plan.answer import answer
from diloco.plan.asked import Asked, read_question
from diloco.plan.clock import clock, site_steps
from diloco.plan.cost import goodput
from diloco.plan.levers import WORTH_SAYING, advice, changes
from diloco.plan.question import ONE_SITE, STREAMING
from diloco.plan.verdict import _times, growth

BASE = {"params": "7b", "tokens": "140b", "sites": "2x64xh100", "between": "1gbit,20ms"}
LTE = {"params": "350m", "tokens": "7b", "sites": "3x8xa100", "between": "lte"}
UNLIKE = {"params": "7b", "tokens": "140b", "sites": "64xa100+32xh100", "between": "1gbit,20ms", "batch_tokens": "1m"}


def ask(given, **words):
    return read_question(Asked(**{**given, **words}))


def seconds(run) -> float:
    return clock(run).total_s / goodput(run)


@pytest.mark.parametrize("given", [BASE, LTE, UNLIKE, {**BASE, "tensor": 8}, {**BASE, "mtbi": "20d"}], ids=range(5))
def test_the_option_named_first_is_the_one_that_gains_most(given):
    question = ask(given)
    said = answer(question)
    run = said.chosen.run
    gains = {words: seconds(run) / seconds(changed) for words, changed in changes(question, run)}
    best = max(gains, key=gains.get)
    if gains[best] < WORTH_SAYING:
        assert said.advice.startswith("Neither ")
    else:
        assert said.advice.startswith(f"What helps most: {best} (")


@pytest.mark.parametrize("name", ["between", "batch_tokens", "overlap"])
def test_a_gain_is_what_asking_so_gives(name):
    """The words of a change are an option's, and its answer is as much faster."""
    question = ask(LTE, sync_every=100, tensor=1)
    run = answer(question).chosen.run
    flag = f"--{name.replace('_', '-')} "
    words, changed = next(found for found in changes(question, run) if found[0].startswith(flag))
    value = words.removeprefix(flag).removeprefix("of ")
    value = {"between": f"{value},40ms", "overlap": int(value) if value.isdigit() else 0}.get(name, value)
    asked = answer(ask(LTE, sync_every=100, tensor=1, **{name: value})).chosen
    assert asked.days * 86400 == pytest.approx(seconds(changed), rel=1e-9)


def test_where_nothing_helps_that_is_said():
    assert "what is left is more or faster chips" in answer(ask({**BASE, "sites": "64xh100", "between": ""})).advice


def test_a_run_that_never_ends_gets_no_advice():
    question = ask({**BASE, "sites": "8xh100", "between": "", "mtbi": "10min"})
    assert advice(question, answer(question).chosen.run) == ""


def test_unlike_sites_each_compute_at_their_own_pace():
    """Each has 500,000 tokens of 42e9 FLOPs in a step: 64 A100 at 124.8 TFLOP/s take 2.629 s, 32 H100 at 395.8 TFLOP/s
    1.658 s and then wait for 36.9% of the step."""
    said = answer(ask(UNLIKE))
    run = said.lines[STREAMING].run
    slow, fast = (step.compute_s for step in site_steps(run))
    assert slow == pytest.approx(500_000 * 42e9 / (64 * 0.4 * 312e12))
    assert fast == pytest.approx(500_000 * 42e9 / (32 * 0.4 * 989.5e12))
    assert said.lines[STREAMING].clock.compute_s / run.steps == pytest.approx(slow)
    note = next(note for note in said.notes if "equal share" in note)
    assert "a site of 32 h100 is done after 1.66 s" in note and "it idles for 36.9% of the time" in note
    assert not any("equal share" in note for note in answer(ask(BASE)).notes)


def test_a_site_that_adds_money_but_little_speed_is_not_worth_it():
    """$96 an hour of H100 alone against $224 with the A100: 1.3 times as fast is too little for 2.3 times the price."""
    said = answer(ask(UNLIKE))
    assert growth(said.lines[ONE_SITE], said.lines[STREAMING]) == pytest.approx(224 / 96)
    assert said.verdict.startswith("Not worth it")
    assert said.lines[STREAMING].days < said.lines[ONE_SITE].days


def test_replicas_on_one_site_are_set_beside_data_parallelism_there():
    given = {"params": "1b", "tokens": "20b", "sites": "16xh100", "replicas": 16}
    same = answer(ask(given)).verdict
    assert "The 16 replicas gain no time: data parallel takes " in same and "; loss 2." in same
    faster = answer(ask(given, inside="1gbit,20ms", tensor=1)).verdict
    assert "The 16 replicas make it 76 times as fast: data parallel takes 16.8 days; loss 2." in faster


TIMES = {
    2.0: "2 times as fast", 1.94: "1.9 times as fast", 1.04: "4% faster", 1.001: "as fast", 0.96: "4% slower",
    0.5: "2 times as long", 12345.0: "12,300 times as fast",
}  # fmt: skip


@pytest.mark.parametrize(("speedup", "says"), TIMES.items())
def test_how_much_faster_is_said_so_that_it_can_be_read(speedup, says):
    assert _times(speedup) == says


def test_a_loss_that_rises_much_is_put_in_parameters():
    given = {"params": "1b", "tokens": "20b", "sites": "100x1xrtx4090", "between": "home-fibre"}
    said = answer(ask(given))
    size = said.verdict.split("One site reaches that loss with a model of ")[1].removesuffix(".")
    alone = answer(ask(given, params=size, sites="1xrtx4090", between="")).chosen
    assert alone.loss.value == pytest.approx(said.chosen.loss.value, rel=1e-3)
    assert "One site reaches" not in answer(ask(BASE)).verdict


def test_a_change_that_costs_more_than_it_saves_says_so():
    """A spare for each site of one server doubles the price of an hour."""
    given = {**BASE, "sites": "2x8xh100", "mtbi": "5d", "away": "1h", "restart": "10min"}
    said = answer(ask(given))
    now, then = said.chosen, answer(ask(given, spares=1)).chosen
    more = then.cost_usd / now.cost_usd - 1
    assert (
        more > 0.5 and f"--spares 1 ({now.days / then.days - 1:.0%} faster, for {more:.0%} more money)" in said.advice
    )


def test_model_and_links_that_nobody_spelled_out_are_said():
    said = "\n".join(ask({**BASE, "params": "10b", "between": "1gbit"}).assumed)
    assert "model: 9.79B parameters (10b) in 48 layers of width 4,096" in said
    assert "inside a site of 8 servers: InfiniBand NDR, 400 Gbit/s for each chip (--inside)" in said
    assert "the link between sites has no latency, as --between gives none" in said
    alone = "\n".join(ask({**BASE, "sites": "2x8xh100"}).assumed)
    assert "inside a site" not in alone and "no latency" not in alone


def test_what_has_no_bearing_is_not_noted():
    notes = "\n".join(answer(ask({**BASE, "sites": "64xh100", "between": ""})).notes)
    assert "DiLoCo goes on" not in notes and "codec" not in notes and "data parallel stops as a whole" in notes


def test_attention_over_long_sequences_is_said():
    """6 L d (s - 2048) over 6 N: 6 x 43 x 3648 x 30720 / 42e9 = 69%, in the time; nothing at 2048 tokens."""
    long = {**BASE, "sites": "64xh100", "between": ""}
    said = answer(ask(long, seq_len=32768))
    assert "adds 69% to the 6 N operations" in "\n".join(said.notes)
    assert said.chosen.clock.compute_s == pytest.approx(1.688 * answer(ask(long)).chosen.clock.compute_s, rel=1e-3)
    assert "attention" not in "\n".join(answer(ask(long)).notes)


def test_a_thousand_sites_are_counted_not_listed():
    """Sums over kinds of sites, with their numbers, are those over sites."""
    cluster = ask({"params": "1b", "tokens": "20b", "sites": "300x8xa100+2x16xh100", "between": "1gbit"}).cluster
    assert [(site.chip.name, count) for site, count in cluster.counted] == [("a100", 300), ("h100", 2)]
    assert cluster.chips == sum(site.chips for site in cluster.sites) == 2432
    assert cluster.usd_per_h == pytest.approx(sum(site.chips * site.chip.usd_per_h for site in cluster.sites))
    assert cluster.power_w == pytest.approx(sum(site.chips * site.chip.power_w for site in cluster.sites))
