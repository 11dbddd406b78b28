"""The page and the pictures of a scaling law, from plain data.

pytest tests/watch/test_law_page.py
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from diloco.laws import compare_forms, fit_law, read_rows
from diloco.laws.figures import figures
from diloco.laws.published import paper_rows
from diloco.watch.law_charts import loss_chart
from diloco.watch.law_page import write_law_page
from diloco.watch.law_words import coefficient, ends, law_title, percent, signed_percent, strip_edge_pct


def plots(html: str) -> dict[str, list[dict]]:
    """Traces by the plot's id."""
    found = re.finditer(r'Plotly\.newPlot\(\s*"(\w+)",\s*(\[.*?\]),\s*\{"', html, re.S)
    return {plot[1]: json.loads(plot[2]) for plot in found}


def words(html: str) -> str:
    return re.sub(r"<(script|style).*?</\1>|<[^>]+>", " ", html, flags=re.S)


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    rows = paper_rows()
    comparison = compare_forms(rows, ["power-floor", "power"])
    path = tmp_path_factory.mktemp("page") / "law.html"
    law = comparison.best
    assert write_law_page(path, law.report(), figures(law), comparison.table()) == path
    return law, path.read_text()


def outlier_law():
    params = np.geomspace(1e7, 1e9, 9)
    loss = (2 + 40 * params**-0.2) * np.exp(0.003 * np.random.default_rng(0).standard_normal(9))
    loss[4] *= 1.15
    rows = read_rows({"params": params, "loss": loss})
    return fit_law(rows, "A*params^a + floor"), rows


def test_page_leads_with_the_hold_out_and_shows_every_figure_report_146(paper) -> None:
    law, html = paper
    split, said = law.holdout.splits[0], words(html)
    assert f"{split.mean_error_pct:.2f}%" in said and "mean error with the largest parameters held out" in said
    assert f"{split.carried_error_pct:.2f}%" in said and "inside the law" in said
    found = plots(html)
    assert set(found) == {"loss", "holdout", "contours"}
    names = [trace["name"] for trace in found["loss"] if trace.get("showlegend")]
    assert names == ["M = 1", "M = 2", "M = 4", "M = 8"]
    assert [trace["name"] for trace in found["holdout"] if trace["name"].endswith("1.27B parameters")]


def test_page_has_coefficients_notes_pulls_and_forms(paper) -> None:
    law, html = paper
    said = words(html)
    for key, value in law.coefficients.items():
        assert key in said and f"{value:.5g}" in said
    for note in law.notes:
        assert note in said
    assert "What single runs and sizes pull" in said and "Forms compared" in said and "power" in said
    assert law.id in said and law.data_hash in said


def test_page_loads_nothing(paper) -> None:
    _, html = paper
    assert not re.search(r"<[a-z]+[^>]*\b(src|href)=", html.split("</script>")[-1])
    assert html.count("plotly.js v") == 1 and "prefers-color-scheme: dark" in html


def test_runs_left_out_are_hollow_and_do_not_flatten_the_strip(tmp_path) -> None:
    law, rows = outlier_law()
    html = write_law_page(tmp_path / "law.html", law.report(), figures(law)).read_text()
    hollow = [trace for trace in plots(html)["loss"] if "open" in str(trace.get("marker")) and trace["x"]]
    assert len(hollow) == 2 and abs(hollow[1]["y"][0]) < 3 and hollow[1]["customdata"][0] > 10
    assert "Hollow markers were left out" in words(html) and "contours" not in plots(html)


def test_what_lies_beyond_the_strip_is_an_arrow_with_its_distance(tmp_path) -> None:
    law, _ = outlier_law()
    html = write_law_page(tmp_path / "law.html", law.report(), figures(law)).read_text()
    (arrow,) = [t for t in plots(html)["loss"] if "arrow" in str(t.get("marker"))]
    assert arrow["marker"]["symbol"] == ["arrow-up-open"] and arrow["yaxis"] == "y2"
    said = re.search(r"Arrows at the edge of the strip stand for runs beyond it: row 5 \+(\d+\.\d+)%", words(html))
    assert float(said[1]) == pytest.approx(arrow["customdata"][0], abs=0.01)


def law_with_a_first_run_set_aside():
    params, replicas = (grid.ravel() for grid in np.meshgrid(np.geomspace(3e7, 3e9, 6), [1.0, 2.0, 4.0], indexing="ij"))
    loss = (1 + 36 * params**-0.155 * replicas**0.02) * (1 + 0.003 * np.sin(7.0 * np.arange(18)))
    loss[15] *= 1.15  # the first run of the largest size
    law = fit_law({"params": params, "replicas": replicas, "loss": loss}, "A*params^a*replicas^b + floor")
    assert law.holdout.set_aside == (15,)
    return law


def test_legends_show_filled_markers_though_the_first_run_is_set_aside(tmp_path) -> None:
    law = law_with_a_first_run_set_aside()
    found = plots(write_law_page(tmp_path / "law.html", law.report(), figures(law)).read_text())
    shown = [trace for trace in found["holdout"] if trace.get("showlegend") and trace["mode"] == "markers"]
    assert len(shown) == 3 and not any("open" in trace["marker"]["symbol"] for trace in shown)
    hollow = [trace for trace in found["contours"] if "open" in str(trace.get("marker"))]
    assert [(trace["name"], len(trace["x"])) for trace in hollow] == [("left out", 1)]


def test_pictures_show_what_was_left_out_as_the_page_does() -> None:
    pytest.importorskip("matplotlib")
    from diloco.watch.law_png import contours_png, holdout_png, loss_png

    drawn = figures(law_with_a_first_run_set_aside())
    assert [text.get_text()[0] for text in loss_png(drawn["loss"]).axes[1].texts] == ["+"]
    bars, _ = holdout_png(drawn["holdout"]).axes[0].get_legend_handles_labels()
    assert len(bars) == 3 and not any(bar.lines[0].get_markerfacecolor() == "none" for bar in bars)
    runs = contours_png(drawn["contours"]).axes[0].get_legend()
    assert [text.get_text() for text in runs.get_texts()] == ["runs", "left out"]


def test_a_law_without_hold_out_says_so_first(tmp_path) -> None:
    law = fit_law({"params": [1e7, 3e7, 1e8, 3e8], "loss": [3.5, 3.21, 2.9, 2.7]}, "power", holdout=False)
    said = words(write_law_page(tmp_path / "law.html", law.report(), figures(law)).read_text())
    assert "no hold-out" in said and "off its own runs" in said


def test_text_from_the_rows_is_escaped(tmp_path) -> None:
    law, _ = outlier_law()
    report = law.report() | {"notes": ["<script>alert(1)</script>"]}
    html = write_law_page(tmp_path / "law.html", report, figures(law)).read_text()
    assert "<script>alert(1)" not in html and "&lt;script&gt;alert(1)" in html


def test_pngs_are_images_of_every_figure(paper, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    from diloco.watch.law_png import write_law_pngs

    law, _ = paper
    paths = write_law_pngs(tmp_path / "png", figures(law))
    assert [path.name for path in paths] == ["loss.png", "contours.png", "holdout.png"]
    assert all(path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" for path in paths)
    assert sorted(path.name for path in (tmp_path / "png").iterdir()) == ["contours.png", "holdout.png", "loss.png"]


def test_neither_module_loads_a_plotting_library_by_itself() -> None:
    code = (
        "import sys, diloco.watch.law_page, diloco.watch.law_png; "
        "sys.exit(bool({'plotly', 'matplotlib', 'torch', 'numpy', 'diloco.laws'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    "value, shown",
    [(None, "\N{EN DASH}"), (1.234, "1.23%"), (-0.0041, "0.004%"), (1e-13, "0%"), (407061.2, "over 1000%"), (0, "0%")],
)
def test_percentages_say_what_can_be_read(value, shown) -> None:
    assert percent(value) == shown
    assert signed_percent(value) == (
        shown if value in (None, 0, 1e-13) else "+" * (value > 0) + "−" * (value < 0) + shown
    )


def test_numbers_beyond_any_have_words() -> None:
    assert ends([0.5, None]) == "0.5 to no upper limit" and ends([1, 2]) == "1 to 2"
    assert coefficient(None) == "beyond any number" and coefficient(-0.2) == "-0.2"


def test_page_of_an_exact_fit_doubts_nothing_that_is_rounding(tmp_path) -> None:
    params = np.geomspace(1e7, 1e9, 9)
    law = fit_law({"params": params, "loss": 2 + 40 * params**-0.2})
    said = words(write_law_page(tmp_path / "law.html", law.report(), figures(law)).read_text())
    assert "exact: none can be better" in said and "starts that agree" not in said and "fit this law exactly" in said


def test_decades_are_labelled_at_2_and_5_and_a_heading_does_not_break_after_a_minus() -> None:
    law, rows = outlier_law()
    assert re.search(r'"dtick":\s*"D2"', loss_chart(figures(law)["loss"]))
    assert law_title("loss", "A*params^-alpha") == "loss = A · params^−alpha"


def test_gaps_for_the_labels_of_a_contour_are_as_long_as_the_labels() -> None:
    """They are cut by distance on the page, so the axes have to be logarithmic before."""
    pytest.importorskip("matplotlib")
    from diloco.watch.law_png import contours_png, loss_png

    params, multiple = (grid.ravel() for grid in np.meshgrid(np.geomspace(5e7, 2e9, 5), np.geomspace(5, 80, 5)))
    loss = 1.69 + 406.4 * params**-0.34 + 410.7 * (params * multiple) ** -0.28
    picture = figures(fit_law({"params": params, "tokens": params * multiple, "loss": loss}, "chinchilla"))
    axes = contours_png(picture["contours"]).axes[0]
    figure_height = axes.get_window_extent().height
    for path in axes.collections[0].get_paths():
        ends = [
            axes.transData.transform(piece[[0, -1]]) for piece in path.to_polygons(closed_only=False) if len(piece) > 1
        ]
        gaps = [np.abs(a[1] - b[0]).max() for a, b in zip(ends, ends[1:], strict=False)]
        assert max(gaps, default=0) < 0.2 * figure_height
    low, high = loss_png(picture["loss"]).axes[1].get_ylim()
    assert high == pytest.approx(1.2 * strip_edge_pct(picture["loss"])) and low == -high
