"""The verdict, utilisation and advice where sites are unlike: what makes a run slower is never worth it.

OMP_NUM_THREADS=1 pytest tests/plan/test_verdict.py
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diloco.plan.answer import answer
from diloco.plan.asked import Asked, read_question
from diloco.plan.clock import clock, with_between
from diloco.plan.levers import changes
from diloco.plan.question import ONE_SITE, STREAMING
from diloco.units import parse_bandwidth

BASE = {"params": "7b", "tokens": "140b", "between": "10gbit,20ms"}


def ask(**words):
    return answer(read_question(Asked(**{**BASE, **words})))


chips = st.tuples(st.sampled_from([8, 16, 64, 128]), st.sampled_from(["a100", "h100", "h200", "b200", "tpu-v5e"]))


@settings(max_examples=30, deadline=None)
@given(chips, chips, st.integers(1, 2), st.sampled_from(["10mbit,20ms", "300mbit", "10gbit,1ms"]))
def test_a_site_that_makes_the_run_no_faster_is_never_worth_it(one, other, count, between) -> None:
    sites = f"{count}x{one[0]}x{one[1]}+{other[0]}x{other[1]}"
    said = ask(params="1b", tokens="20b", sites=sites, between=between)
    speedup = said.lines[ONE_SITE].days / said.lines[STREAMING].days
    leave = re.search("leave (that site|the other sites) out", said.verdict)
    if speedup <= 1:
        assert said.verdict.startswith("Not worth it:") and leave, said.verdict
    if said.verdict.startswith("Worth it"):
        assert speedup > 1 and not leave, said.verdict
    assert bool(leave) == (speedup < 1.005)


@pytest.mark.parametrize(
    "sites, between, kept",
    [("8xh100+64xa100", "10gbit,20ms", "64xa100"), ("16xh200+128xa100", "1gbit,20ms", "16xh200")],
)
def test_a_slower_and_dearer_pair_is_left(sites, between, kept) -> None:
    said = ask(sites=sites, between=between)
    assert said.verdict.startswith("Not worth it") and "; leave that site out." in said.verdict
    assert f"What helps most: --sites {said.lines[ONE_SITE].run.cluster.sites[0].chips}x" in said.advice
    gain = said.chosen.days / ask(sites=said.advice.split("--sites ")[1].split()[0], between="").chosen.days
    assert f"({gain - 1:.0%} faster)" in said.advice


def test_a_link_from_which_it_would_be_worth_it_makes_it_faster() -> None:
    """Over a slow link two alike sites are slower than one; from the named rate on they are not."""
    slow = ask(sites="2x64xh100", between="30mbit,20ms", sync_every=30)
    assert "; leave that site out. From " in slow.verdict
    rate = parse_bandwidth("".join(slow.verdict.split("From ")[1].split()[:2]))
    there = ask(sites="2x64xh100", between=f"{1.05 * rate:.6g}gbit,20ms", sync_every=30)
    assert there.verdict.startswith("Worth it:")


def test_utilisation_is_of_all_chips() -> None:
    """A step takes an A100 site 989.5 / 312 times as long as an H100 site, which idles for 68% of it."""
    said = ask(sites="64xh100+64xa100", between="100gbit,1ms")
    line, ratio = said.lines[STREAMING], 312 / 989.5
    spent = line.clock
    assert spent.busy == pytest.approx((1 + ratio) / 2, rel=1e-3)
    assert spent.utilization == pytest.approx(spent.busy * spent.compute_s / spent.total_s)
    assert said.as_dict()["compute_utilization"] < 0.67 and "which the utilisation counts" in "\n".join(said.notes)
    assert said.lines[ONE_SITE].clock.busy == 1
    assert all(rate == float("inf") for rate in line.needed_gbit_per_s.values()), "no link makes them compute"
    assert clock(with_between(line.run, 1e6)).utilization <= line.clock.busy


def test_three_sites_may_be_better_as_two() -> None:
    said = ask(sites="64xh100+64xh200+64xa100")
    assert said.advice.startswith("What helps most: --sites 64xh100+64xh200 (")
    two = ask(sites="64xh100+64xh200")
    assert f"({said.chosen.days / two.chosen.days:.2g} times as fast)" in said.advice


@pytest.mark.parametrize("sites", ["2x64xh100", "64xh100+64xa100", "3x8xa100"])
@pytest.mark.parametrize("between", ["100mbit,20ms", "20mbit,40ms"])
def test_a_change_is_what_asking_so_gives(sites, between) -> None:
    """Where nobody gave an H, or a batch, they follow the change."""
    given = {"params": "1b", "tokens": "20b", "sites": sites, "between": between, "tensor": 1}
    question = read_question(Asked(**given))
    run = answer(question).chosen.run
    intervals = set()
    for words, changed in changes(question, run):
        name, value = words.removeprefix("--").replace(" of ", " ").split(" ", 1)
        if name not in ("between", "batch-tokens", "overlap", "sites"):
            continue
        value = value.replace(" ", "") + ",".join(["", between.split(",")[1]]) * (name == "between")
        anew = {name.replace("-", "_"): int(value) if name == "overlap" else value}
        alone = {"between": ""} if name == "sites" and "+" not in value and value.count("x") < 2 else {}
        asked = ask(**{**given, **anew, **alone}).chosen.run
        assert (asked.sync_every, asked.batch_tokens) == (changed.sync_every, changed.batch_tokens), words
        assert clock(asked).total_s == pytest.approx(clock(changed).total_s, rel=1e-9), words
        intervals.add(asked.sync_every)
    assert len(intervals) > 1


def test_links_inside_are_not_named_where_there_are_none() -> None:
    assert "links inside" not in ask(sites="8xh100", between="").advice
    assert "links inside" in ask(sites="64xh100", between="").advice


def test_a_sequence_so_long_that_attention_is_nearly_all_takes_its_time() -> None:
    """6 L d s of 100M tokens is 2,240 times the 6 N of 7B parameters."""
    short, long = (ask(sites="2x64xh100", params="7b", seq_len=n, batch_tokens="400m") for n in
                   (2048, 1_000_000))  # fmt: skip
    assert long.chosen.clock.compute_s / short.chosen.clock.compute_s == pytest.approx(
        1 + 6 * 43 * 3648 * (1_000_000 - 2048) / 42e9, rel=1e-3
    )


def test_chips_that_hardly_ever_fail_end_their_run() -> None:
    said = ask(sites="2x64xh100", mtbi="1e300y")
    assert said.chosen.goodput == pytest.approx(1) and said.lines[ONE_SITE].goodput == pytest.approx(1, abs=1e-6)


def test_more_spares_than_servers_are_warned_of() -> None:
    assert (
        "--spares is 100,000, more than the 8 servers of a site" in ask(sites="2x64xh100", spares=100_000).warnings[0]
    )
    assert ask(sites="2x64xh100", spares=8).warnings == ()
