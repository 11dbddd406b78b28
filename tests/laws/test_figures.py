"""What the figures of a law hold, against the law itself.

pytest tests/laws/test_figures.py
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from diloco.laws import fit_law, read_rows
from diloco.laws.figures import BEYOND, MOST_CURVES, contour_figure, figures, holdout_figure, loss_figure
from diloco.laws.published import paper_rows


@pytest.fixture(scope="module")
def law():
    return fit_law(paper_rows())


@pytest.fixture(scope="module")
def chinchilla():
    params, multiple = (g.ravel() for g in np.meshgrid(np.geomspace(5e7, 2e9, 5), np.geomspace(5, 80, 8)))
    tokens = params * multiple
    loss = 1.69 + 406.4 * params**-0.34 + 410.7 * tokens**-0.28
    loss = loss * np.exp(0.003 * np.random.default_rng(0).standard_normal(40))
    return fit_law({"params": params, "tokens": tokens, "loss": loss}, "chinchilla", holdout=False)


def test_a_curve_per_replica_count_goes_on_beyond_the_runs(law) -> None:
    picture = loss_figure(law)
    assert (picture["x_axis"], picture["group_axis"], picture["following"]) == ("params", "replicas", [])
    assert [curve["group"] for curve in picture["curves"]] == [1, 2, 4, 8]
    curve = picture["curves"][2]
    assert curve["x"][-1] == pytest.approx(BEYOND * picture["largest"])
    expected = law.predict(params=curve["x"][-1], replicas=4)
    ends = (curve["value"][-1], curve["low"][-1], curve["high"][-1])
    assert ends == pytest.approx((expected.value, expected.low, expected.high))


def test_residuals_are_the_runs_own(law) -> None:
    runs = loss_figure(law)["runs"]
    assert len(runs) == 28 and not any(run["left_out"] for run in runs)
    for run in runs:
        value = law.predict(params=run["x"], replicas=run["group"]).value
        assert run["residual_pct"] == pytest.approx(100 * (run["y"] / value - 1))


def test_curves_per_token_budget_are_few_and_each_run_has_one(chinchilla) -> None:
    picture = loss_figure(chinchilla)
    shown = [curve["group"] for curve in picture["curves"]]
    assert picture["group_axis"] == "tokens_per_param" and len(shown) == MOST_CURVES
    assert {run["group"] for run in picture["runs"]} == set(shown)
    curve = picture["curves"][1]
    value = chinchilla.predict(params=curve["x"][5], tokens=curve["group"] * curve["x"][5]).value
    assert curve["value"][5] == pytest.approx(value)


def test_other_axes_follow_the_size_as_in_the_runs() -> None:
    params, replicas = (grid.ravel() for grid in np.meshgrid([1e7, 3e7, 1e8, 3e8], [1.0, 2.0, 4.0]))
    tokens = 20 * params * np.where(np.arange(12) % 2, 1.1, 0.9)
    loss = 1.5 + 20 * params**-0.3 + 30 * tokens**-0.25 * replicas**0.05
    law = fit_law(
        {"params": params, "tokens": tokens, "replicas": replicas, "loss": loss}, "chinchilla-replicas", holdout=False
    )
    picture = loss_figure(law)
    assert picture["group_axis"] == "replicas" and picture["following"] == ["tokens"]
    curve = picture["curves"][0]
    about = law.predict(params=curve["x"][0], tokens=20 * curve["x"][0], replicas=1).value
    assert curve["value"][0] == pytest.approx(about, rel=0.01)


def test_contours_are_the_law_and_the_frontier_its_optimum(chinchilla) -> None:
    picture = contour_figure(chinchilla)
    assert (picture["x_axis"], picture["y_axis"]) == ("params", "tokens")
    expected = chinchilla.predict(params=picture["x"][3], tokens=picture["y"][7]).value
    assert picture["value"][7][3] == pytest.approx(expected)
    frontier = picture["frontier"]
    best = chinchilla.optimal(flops=frontier["flops"][2])
    assert frontier["params"][2] == best.params and frontier["tokens"][2] == best.tokens
    assert picture["x"][0] <= min(frontier["params"]) and max(frontier["params"]) <= picture["x"][-1]


def test_without_tokens_contours_have_no_frontier_and_one_axis_has_no_contours(law) -> None:
    picture = contour_figure(law)
    assert picture["y_axis"] == "replicas" and picture["y_levels"] == [1, 2, 4, 8] and picture["frontier"] is None
    one = fit_law({"params": [1e7, 3e7, 1e8, 3e8], "loss": [3.5, 3.2, 2.9, 2.7]}, "A*params^a")
    assert contour_figure(one) is None and loss_figure(one)["group_axis"] == ""
    assert [run["group"] for run in loss_figure(one)["runs"]] == [None] * 4


def test_a_law_without_an_optimum_says_why() -> None:
    params, tokens = (grid.ravel() for grid in np.meshgrid([1e7, 1e8, 1e9], [1e9, 1e10, 1e11]))
    law = fit_law({"params": params, "tokens": tokens, "loss": 40 * params**-0.1 * tokens**-0.05}, "power")
    picture = contour_figure(law)
    assert picture["frontier"] is None and "falls without end" in picture["why_no_frontier"]


def test_hold_out_predictions_have_the_errors_that_the_law_reports(law) -> None:
    picture = holdout_figure(law)
    assert [len(split["runs"]) for split in picture["splits"]] == [4, 8, 12]
    for split, told in zip(picture["splits"], law.holdout.splits, strict=True):
        errors = [abs(run["predicted"] / run["measured"] - 1) for run in split["runs"]]
        assert 100 * np.mean(errors) == pytest.approx(told.mean_error_pct, rel=1e-3)
        inside = [run["low"] <= run["measured"] <= run["high"] for run in split["runs"]]
        assert np.mean(inside) == told.inside_share


def test_hold_out_keeps_the_weights_of_the_rows() -> None:
    rng = np.random.default_rng(1)
    params = np.geomspace(1e7, 1e9, 7).repeat(3)
    loss = (2 + 40 * params**-0.2) * np.exp(0.01 * rng.standard_normal(21))
    rows = read_rows({"params": params, "loss": loss, "weight": rng.uniform(0.5, 3, 21)})
    law = fit_law(rows, "A*params^a + floor", loss="mse")
    split = holdout_figure(law)["splits"][0]
    errors = [abs(run["predicted"] / run["measured"] - 1) for run in split["runs"]]
    assert 100 * np.mean(errors) == pytest.approx(law.holdout.splits[0].mean_error_pct, rel=1e-3)


def test_all_is_strict_json_and_no_hold_out_has_no_figure(law) -> None:
    json.dumps(figures(law), allow_nan=False)
    without = figures(fit_law(paper_rows(), holdout=False))
    assert without["holdout"] is None and without["loss"] is not None
