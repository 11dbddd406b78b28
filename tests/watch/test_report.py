"""The HTML pages hold what they must, load nothing from anywhere, and tell failures first.

pytest tests/watch/test_report.py
"""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser

import pytest

from diloco.errors import BadInput
from diloco.watch import write_comparison, write_report


class Page(HTMLParser):
    """Text by element class or tag, plots by id, and every address that an element would load."""

    def __init__(self, path):
        super().__init__()
        self.loads, self.scripts, self.text, self.open = [], [], "", []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        plots = (re.search(r'Plotly\.newPlot\(\s*"(\w+)",\s*(\[.*?\]),\s*\{"', script, re.S) for script in self.scripts)
        self.plots = {plot.group(1): json.loads(plot.group(2)) for plot in plots if plot}

    def handle_starttag(self, tag, attributes):
        self.loads += [value for name, value in attributes if name in ("src", "href", "data", "srcset")]
        if tag == "script":
            self.scripts.append("")
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif "style" not in self.open:
            self.text += data + "\n"

    def names(self, plot):
        return [trace["name"] for trace in self.plots[plot]]


@pytest.fixture
def report(make_run, tmp_path):
    def write(**options):
        folder = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        return Page(write_report(make_run(folder, **{"steps": 120, **options})))

    return write


def test_report_loads_nothing_and_holds_plotly_once(make_run, tmp_path):
    path = write_report(make_run(tmp_path / "run", steps=60))
    page = Page(path)
    assert path == tmp_path / "run" / "report.html"
    assert page.loads == []
    libraries = [script for script in page.scripts if len(script) > 1_000_000]
    assert len(libraries) == 1
    own = "".join(script for script in page.scripts if script not in libraries)
    assert not re.search(r"https?://|fetch\(|XMLHttpRequest|import\(", own.replace("https://plot.ly", ""))
    html = path.read_text(encoding="utf-8").replace(libraries[0], "")
    assert "url(" not in html and "@import" not in html and "prefers-color-scheme: dark" in html


def test_report_shows_both_curves_and_what_they_were_measured_on(report):
    page = report()
    assert page.names("loss") == ["training, each replica"] * 4 + ["training, mean", "held out, global weights"]
    held_out = page.plots["loss"][-1]
    assert held_out["x"] == [50 * 1024, 100 * 1024] and len(held_out["y"]) == 2
    assert "measured on the global weights" in page.text
    assert "4 of 4 rounds committed" in page.text


def test_report_shows_every_round_series(report):
    page = report()
    assert set(page.plots) == {"loss", "spread", "cosine", "outer_step", "bytes", "time"}
    assert page.names("spread") == ["largest", "median"]
    assert page.names("bytes") == ["this run", "data parallel"]
    assert page.plots["bytes"][0]["y"][-1] == 4 * 4 * 800_000
    assert page.plots["bytes"][1]["y"][-1] == 120 * 1.5 * 4 * 800_000
    assert "sent 45 times fewer bytes than data parallel would have" in page.text


def test_fragments_have_lines_of_their_own(report):
    """They differ in size: one line through all of them would zigzag."""
    page = report(fragments=3)
    for plot in ("spread", "cosine", "outer_step"):
        assert page.names(plot) == ["fragment 0", "fragment 1", "fragment 2"]
        assert [trace["x"] for trace in page.plots[plot]] == [[30, 60, 90, 120], [40, 70, 100], [50, 80, 110]]
    spread = [trace["y"][0] for trace in page.plots["spread"]]
    assert spread == sorted(spread, reverse=True)
    assert page.plots["bytes"][0]["x"] == sorted(page.plots["bytes"][0]["x"])
    assert len(report(fragments=8).plots["spread"]) == 8


def test_what_the_inner_steps_lost_is_drawn_over_what_rounds_took(report):
    page = report()
    assert page.names("time") == [
        "waiting for others", "on the wire", "encoding and outer step", "inner steps stood still",
    ]  # fmt: skip
    assert all(len(trace["y"]) == 4 for trace in page.plots["time"])
    assert "94.1 Mbit/s" in page.text and "simulated link" not in page.text


def test_a_simulated_link_is_named_with_its_time(report):
    text = report(link="100mbit,25ms", steps=100).text
    assert "100mbit,25ms" in text and "10 s" in text and "that of the simulated link" in text


def test_failed_rounds_come_first_report_117(report):
    """The page of a run that never synced opens with that, before its loss."""
    page = report(failed_rounds=(1, 2, 3, 4))
    assert page.text.index("No round was ever committed") < page.text.index("nats per token")
    assert "Ended as planned" not in page.text
    assert page.names("spread") == ["largest", "median", "round failed"]


def test_loss_is_drawn_against_tokens_of_all_replicas_report_118(report):
    """Not against a local step."""
    assert report().plots["loss"][-2]["x"][-1] == pytest.approx(120 * 1024, rel=0.05)


def test_spread_is_median_and_largest_report_121(report):
    """One outlier must not blow up a mean: the spread is drawn as median and largest."""
    median, largest = (trace["y"] for trace in reversed(report().plots["spread"]))
    assert len(median) == len(largest) == 4


def test_nonfinite_losses_leave_gaps_and_an_alert(report):
    page = report(final_loss=math.nan, steps=100)
    assert "the run diverged" in page.text
    assert page.plots["loss"][-1]["y"][-1] is None


def test_one_replica_has_no_spread(report):
    assert set(report(replicas=1).plots) == {"loss", "outer_step", "bytes", "time"}


def test_data_parallel_and_unfinished_runs_have_reports(report):
    assert set(report(method="dp").plots) == {"loss"}
    assert "The run has not ended" in report(ended=False, method="dp").text


def test_report_of_a_run_without_events(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert "no held-out loss yet" in Page(write_report(tmp_path)).text


def test_text_from_the_run_is_escaped(make_run, tmp_path):
    run = make_run(tmp_path / "<b>run", steps=60)
    (run / "config.json").write_text('{"name": "</script><script>alert(1)</script>"}')
    assert "<b>run" in Page(write_report(run)).text
    assert "alert(1)" not in "".join(Page(run / "report.html").scripts)


def test_report_is_the_same_twice(make_run, tmp_path):
    run = make_run(tmp_path / "run", steps=60)
    assert write_report(run).read_bytes() == write_report(run).read_bytes()


def test_not_a_run_folder(tmp_path):
    with pytest.raises(BadInput, match="not a run folder"):
        write_report(tmp_path)


def test_comparison_shows_every_run_and_the_interval(make_run, tmp_path):
    runs = [make_run(tmp_path / f"dp-{seed}", method="dp", sync_every=1, steps=100, seed=seed) for seed in (0, 1)]
    runs += [make_run(tmp_path / f"m4-{seed}", steps=100, seed=seed, worse=1.2) for seed in (0, 1)]
    page = Page(write_comparison(runs, tmp_path / "out" / "compare.html"))
    assert page.loads == []
    assert page.names("curves") == ["dp", "dp", "diloco M=4 H=30", "diloco M=4 H=30"]
    assert page.names("final") == ["dp", "mean", "diloco M=4 H=30", "mean"]
    assert "95% interval" in page.text and "over 2 seeds" in page.text


def test_comparison_of_one_seed_says_so(make_run, tmp_path):
    runs = [make_run(tmp_path / "dp", method="dp", steps=60), make_run(tmp_path / "m4", steps=60, final_loss=math.nan)]
    page = Page(write_comparison(runs, tmp_path / "compare.html"))
    assert "One seed: no spread" in page.text and "1 of 1 seeds diverged" in page.text


def test_comparison_draws_loss_over_a_link_where_there_is_one(make_run, tmp_path):
    plain = make_run(tmp_path / "plain", steps=100)
    dp = make_run(tmp_path / "dp", method="dp", sync_every=1, steps=100, link="1mbit", step_s=2.0)
    slow = [make_run(tmp_path / f"slow-{seed}", steps=100, seed=seed, link="1mbit") for seed in (0, 1)]
    assert "link" not in Page(write_comparison([plain], tmp_path / "a.html")).plots
    page = Page(write_comparison([plain, dp, *slow], tmp_path / "b.html"))
    assert sorted(page.names("link")) == ["diloco M=4 H=30 link=1mbit"] * 2 + ["dp link=1mbit"]
    ends = {trace["name"]: trace["x"][-1] for trace in page.plots["link"]}
    assert ends == {"dp link=1mbit": 200.0, "diloco M=4 H=30 link=1mbit": 10.0}
    assert len(page.names("curves")) == 4
