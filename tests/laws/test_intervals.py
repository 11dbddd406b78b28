"""Intervals hold the truth as often as they say, by delta method and by bootstrap; the full table is a study.

pytest tests/laws/test_intervals.py
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from diloco.laws import bootstrap, fit_law
from diloco.laws.published import paper_rows
from diloco.laws.quantile import t_quantile
from diloco.laws.resample import wild_targets

STUDY = Path(__file__).parents[2] / "studies" / "laws" / "coverage.py"


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("coverage_study", STUDY)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("ladder, side, noise, outliers", [("tokens", 4, 0.3, 2), ("replicas", 4, 0.3, 0)])
def test_coverage_short_report_149(study, ladder, side, noise, outliers) -> None:
    """30 repeats of 95%: under 25 by chance about once in 300 runs; the seed is fixed."""
    line = study.measure(study.Cell(ladder, side, noise, outliers), 30)
    assert line["covered_10x_pct"] >= 83 and line["covered_100x_pct"] >= 83
    assert line["outliers_found"] >= 0.9 * outliers and line["wrongly_left_out"] <= 0.1


def test_intervals_are_the_linear_models() -> None:
    """A power law is linear in logs: ordinary least squares gives curve and new-run intervals in closed form."""
    rows = paper_rows()
    law = fit_law(rows, "A*params^a*replicas^b", loss="mse", holdout=False)
    x = np.stack([np.ones(28), np.log(rows.column("params")), np.log(rows.column("replicas"))], axis=1)
    y = np.log(rows.column("loss"))
    solution, squares, *_ = np.linalg.lstsq(x, y, rcond=None)
    at = np.array([1, np.log(1e10), np.log(4)])
    s2, spread = squares[0] / 25, at @ np.linalg.inv(x.T @ x) @ at
    t = 2.0595386  # 97.5% of Student's t with 25 degrees of freedom
    assert t_quantile(0.975, 25) == pytest.approx(t)
    curve = law.curve({"params": 1e10, "replicas": 4})
    assert np.log(curve.value) == pytest.approx(at @ solution)
    assert np.log(curve.high / curve.value) == pytest.approx(t * np.sqrt(s2 * spread), rel=1e-6)
    assert np.log(curve.new_high / curve.value) == pytest.approx(t * np.sqrt(s2 * (1 + spread)), rel=1e-6)


def test_another_reading_is_held_though_one_run_looks_proven_foreign() -> None:
    """Two of the three smallest runs are 15% high. Leaving out the third, which is right, fits nearly as well."""
    params, replicas = (g.ravel() for g in np.meshgrid(np.geomspace(5e7, 2e9, 3), [1.0, 2.0, 4.0]))
    noise_pct = np.array([-0.1, 0.1, -0.1, 15.1, 0.0, 0.5, 14.9, 0.2, -0.8])
    loss = (1.2 + 40 * params**-0.16 * replicas**0.02) * np.exp(noise_pct / 100)
    law = fit_law({"params": params, "replicas": replicas, "loss": loss}, "power-floor", holdout=False)
    assert np.flatnonzero(law.runs.weight == 0).tolist() == [0]
    for size in (6e9, 2e10):
        curve = law.curve({"params": size, "replicas": 4})
        assert curve.low < 1.2 + 40 * size**-0.16 * 4**0.02 < curve.high
    assert any("row 4" in note and "row 7" in note for note in law.notes)


def test_bootstrap_agrees_with_the_delta_method_and_counts_its_fits() -> None:
    law = fit_law(paper_rows(), "A*params^a*replicas^b + floor", holdout=False)
    drawn = bootstrap(law, draws=300)
    assert (drawn.method, drawn.tried, drawn.succeeded) == ("wild", 300, 300)
    low, high = drawn.interval({"params": 1e10, "replicas": 4})
    curve = law.curve({"params": 1e10, "replicas": 4})
    assert np.log(high / low) == pytest.approx(np.log(curve.high / curve.low), rel=0.35)
    assert np.array_equal(bootstrap(law, draws=20).theta_SP, bootstrap(law, draws=20).theta_SP)


def test_bootstrap_keeps_groups_together() -> None:
    """Every run of a group is moved by the same multiple of its residual; runs of their own are not."""
    law = fit_law(paper_rows(), "A*params^a*replicas^b", loss="mse", holdout=False)
    sizes = np.unique(paper_rows().texts["model"], return_inverse=True)[1]
    fitted, residual = np.log(law.runs.fitted), np.log(law.runs.target / law.runs.fitted)
    for members, together in ((sizes, True), (np.arange(28), False)):
        moved = wild_targets(law, np.arange(28), members, 50, np.random.default_rng(0)) - fitted
        signs = np.sign(moved * residual)
        assert (signs[:, sizes == 3].std(axis=1).max() == 0) == together
    assert bootstrap(law, 20, sizes.tolist()).succeeded == 20
    with pytest.raises(ValueError, match="3 values for 28 runs"):
        bootstrap(law, groups=[1, 2, 3])


def test_replicated_cells_are_redrawn_within_themselves() -> None:
    """The standard error then is that of the noise inside cells, in closed form."""
    rng = np.random.default_rng(0)
    params = np.repeat(np.geomspace(1e8, 1e10, 5), 4)
    noise = 0.01 * rng.standard_normal(20)
    loss = 20 * params**-0.1 * np.exp(noise)
    rows = {"params": params, "loss": loss, "seed": np.tile(range(4), 5)}
    law = fit_law(rows, "A*params^a", loss="mse", holdout=False)
    drawn = bootstrap(law, draws=2000)
    assert drawn.method == "cases" and drawn.succeeded == 2000
    x = np.log(params) - np.log(params).mean()
    variance = np.repeat(noise.reshape(5, 4).var(axis=1, ddof=1), 4)
    for away in (0.0, 3.0):
        low, high = drawn.interval({"params": np.exp(np.log(params).mean() + away)})
        share = 1 / 20 + away * x / (x**2).sum()
        assert np.log(high / low) / 2 / law.t == pytest.approx(np.sqrt((share**2 * variance).sum()), rel=0.1)


def test_level_widens() -> None:
    law = fit_law(paper_rows(), holdout=False)
    wide, narrow = (law.at_level(level).predict(params=1e10, replicas=4) for level in (0.99, 0.5))
    assert wide.low < narrow.low < narrow.value < narrow.high < wide.high
    assert law.at_level(0.95).predict(params=1e10, replicas=4) == law.predict(params=1e10, replicas=4)
