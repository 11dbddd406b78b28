"""The planner's page, from plain data.

pytest tests/watch/test_plan_page.py
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from diloco.cli.plan_text import answer_text, search_text
from diloco.plan.answer import answer
from diloco.plan.asked import Asked, read_question
from diloco.plan.pictures import pictures
from diloco.plan.search import search
from diloco.units import NONE, format_usd
from diloco.watch.plan_charts import breakdown_chart, front_chart, goodput_chart, utilization_chart, window_chart
from diloco.watch.plan_page import title, write_plan_page
from diloco.watch.plan_rows import choice_options, common_rows, days, figures, needed, split


def plots(html: str) -> dict[str, list[dict]]:
    """Traces by the plot's id."""
    found = re.finditer(r'Plotly\.newPlot\(\s*"(\w+)",\s*(\[.*?\]),\s*\{"', html, re.S)
    return {plot[1]: json.loads(plot[2]) for plot in found}


def words(html: str) -> str:
    return re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", html, flags=re.S)


def asked(**changed: object):
    base = {"params": "7b", "tokens": "140b", "sites": "2x64xh100", "between": "100mbit,20ms"}
    return read_question(Asked(**{**base, **changed}))


@pytest.fixture(scope="module")
def plain():
    """A record as `diloco plan --json` prints it, strictly JSON, and its pictures."""
    question = asked(deadline="3d", codec="e3m0", fragments=15)
    said, found = answer(question), search(question)
    record = said.as_dict() | {"search": found.as_dict()}
    return json.loads(json.dumps(record).replace("Infinity", "null").replace("NaN", "null")), pictures(said)


@pytest.fixture(scope="module")
def html(plain, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "plan.html"
    assert write_plan_page(path, *plain) == path
    return path.read_text()


def test_the_verdict_comes_first_then_the_methods(plain, html):
    record, _ = plain
    said = words(html)
    order = [
        said.index(text)
        for text in ("Not worth it", "With a second site over 100 Mbit/s", "Side by side", "What it rests on")
    ]
    assert order == sorted(order)
    word, _, rest = record["verdict"].partition(": ")
    assert word == "Not worth it" and rest[1:] in " ".join(said.split())
    for line in record["methods"].values():
        assert line["label"] in said and days(line["days"]) in said and format_usd(line["cost_usd"]) in said
    for sentence in (*record["assumptions"], *record["notes"]):
        assert sentence.replace("'", "&#x27;") in html
    assert f"{record['search']['tried']:,} settings tried, the best loss in 3 days" in " ".join(said.split())


def test_every_picture_is_there(html):
    found = plots(html)
    assert set(found) == {"utilization", "goodput", "window", "breakdown_H", "breakdown_M", "front"}
    assert [trace["name"] for trace in found["utilization"]] == ["data parallel", "DiLoCo", "streaming"]
    assert {"computing", "waiting", "on the link", "needed"} == {trace["name"] for trace in found["window"]}
    assert {"computing", "waiting for the link"} <= {trace["name"] for trace in found["breakdown_H"]}
    assert len(found["goodput"]) == 3 and found["front"][-1]["name"] == "the best loss in 3 days"
    assert "your link" in html


def test_window_draws_a_bar_a_message_and_the_waits(plain):
    _, drawn = plain
    traces = {trace["name"]: trace for trace in plots(window_chart(drawn["window"]))["window"]}
    assert len(traces["on the link"]["x"]) == 15 == len(traces["needed"]["x"])
    assert sum(traces["waiting"]["x"]) + sum(traces["computing"]["x"]) == pytest.approx(
        sum(end - start for start, end in drawn["window"]["computing"] + drawn["window"]["waiting"])
    )


def test_utilization_rises_with_bandwidth_and_passes_the_answers(plain):
    record, drawn = plain
    picture = drawn["utilization"]
    middle = len(picture["gbit_per_s"]) // 2
    assert picture["gbit_per_s"][middle] == pytest.approx(picture["link_gbit_per_s"])
    for line in list(record["methods"].values())[1:]:
        shares = picture["lines"][line["label"]]
        assert shares == sorted(shares) and shares[middle] == pytest.approx(line["compute_utilization"], rel=1e-6)


def test_bars_add_up_to_a_step_and_the_own_one_is_bold(plain):
    record, drawn = plain
    own = [bar for bar in drawn["breakdown"] if bar["own"]]
    assert {bar["group"] for bar in own} == {"M", "H"}
    for bar in own:
        assert sum(value for key, value in bar.items() if key.endswith("_s")) == pytest.approx(record["step_s"])
    assert f"<b>{own[0]['label']}</b>" in json.loads(json.dumps(plots(breakdown_chart(drawn["breakdown"], "M"))))[
        "breakdown_M"][0]["x"]  # fmt: skip


def test_one_site_has_a_page_without_the_pictures_it_has_no_use_for(tmp_path):
    said = answer(asked(sites="64xh100", between=""))
    path = write_plan_page(tmp_path / "p.html", said.as_dict(), pictures(said))
    html = path.read_text()
    assert set(plots(html)) == {"goodput"} and "by one site" in words(html)
    assert window_chart(None) == utilization_chart(None) == front_chart(None, "paper") == breakdown_chart([], "H") == ""
    assert title(said.as_dict()) == "7B parameters, 140B tokens, 64 chips"


def test_numbers_read_well():
    assert (days(1.4134), days(0.5), days(2386), days(None), days(float("inf"))) == (
        "1.41 days", "12 h", "2,386 days", "never", "never",
    )  # fmt: skip
    assert (needed(0.847), needed(None), needed(0.0)) == ("847 Mbit/s", "none will do", NONE)
    assert (split({"tensor": 2, "pipeline": 4}), split({"tensor": 1, "pipeline": 1})) == ("2 x 4", NONE)
    assert common_rows([{"a": "1", "b": NONE}, {"a": NONE, "b": NONE}]) == [("a", "1", NONE)]


LARGE = {"params": "llama3-405b", "tokens": "1t", "sites": "2x2048xh100"}


@pytest.mark.parametrize("changed", [{}, {"between": "10gbit,1ms"}, LARGE])
def test_page_and_text_show_the_same_figures(changed, tmp_path):
    """Every row of a method stands in both as it is."""
    said = answer(asked(**changed))
    page = write_plan_page(tmp_path / "p.html", said.as_dict(), pictures(said)).read_text()
    for shown in (" ".join(words(page).split()), " ".join(answer_text(said).split())):
        for line in said.lines.values():
            for label, cell in figures(line.as_dict(), "paper").items():
                assert (f" {label.strip()} " in shown and f" {cell} " in shown) or cell == NONE, (label, cell)


def test_the_settings_that_a_search_found_can_be_asked_for(tmp_path):
    """The page has the options that the terminal prints, and they give the days that it says."""
    question = asked(between="1gbit,20ms", deadline="36h")
    said, found = answer(question), search(question)
    best = found.as_dict()["best"]
    page = write_plan_page(tmp_path / "p.html", said.as_dict() | {"search": found.as_dict()}, pictures(said))
    shown = " ".join(words(page.read_text()).split())
    assert f"side by side with the others by {choice_options(best)}" in " ".join(search_text(found, question).split())
    assert f"Side by side with the others by {choice_options(best)}" in shown
    given = dict(part.split() for part in choice_options(best).removeprefix("--").split(" --"))
    read = {name.replace("-", "_"): int(v) if v.isdigit() and "tokens" not in name else v for name, v in given.items()}
    assert answer(asked(between="1gbit,20ms", **read)).chosen.days == pytest.approx(best["days"])


@pytest.mark.parametrize("spares, says", [(None, "one server more for 64 (none for fewer) stands by"),
                                          (0, "none stand by"), (2, "for 8 servers 2 more stand by")])  # fmt: skip
def test_what_stands_by_is_said_as_it_is(spares, says):
    assert pictures(answer(asked(spares=spares)))["goodput"]["assumed"].endswith(f", and {says}")


def test_failures_are_played_with_the_asked_replicas_and_settings(plain):
    said = answer(asked(replicas=4, mtbi="1y", spares=2))
    drawn = pictures(said)["goodput"]
    assert [name for name in drawn["lines"]] == ["data parallel", "DiLoCo, 4 learners", "decoupled, 4 learners"]
    assert "once in 365 days" in drawn["assumed"] and "for 8 servers 2 more stand by" in drawn["assumed"]
    assert drawn["assumed"] in words(goodput_chart(drawn))
    assert drawn["lines"]["data parallel"][-1] < plain[1]["goodput"]["lines"]["data parallel"][-1]


def test_a_plan_with_many_replicas_draws_only_fleets_that_have_them():
    drawn = pictures(answer(asked(sites="2x1024xh100", replicas=512)))["goodput"]
    assert min(drawn["chips"]) >= 512 and len(drawn["lines"]["data parallel"]) == len(drawn["chips"])


def test_one_chip_is_one_chip():
    assert title(answer(asked(params="1b", tokens="20b", sites="1xh100", between="")).as_dict()).endswith(", 1 chip")


def test_the_page_imports_neither_the_clock_nor_torch():
    heavy = "{'torch', 'plotly', 'numpy', 'diloco.plan.clock'}"
    code = f"import sys, diloco.watch.plan_page; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
