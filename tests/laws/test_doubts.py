"""What a law cannot know is said, and keeps no interval: coefficients that act as one, points off the runs, no floor.

pytest tests/laws/test_doubts.py
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from diloco.errors import BadInput
from diloco.laws import fit_law, load_law, recommend

NOISE = np.random.default_rng(3).normal(0, 0.003, 24)


def ladder(sizes=(1e7, 3e7, 1e8, 3e8, 1e9, 3e9), noise: float = 1.0, **further: object) -> dict[str, np.ndarray]:
    params, replicas = (grid.ravel() for grid in np.meshgrid(sizes, [1.0, 2.0, 4.0, 8.0]))
    loss = (1 + 40 * params**-0.16 * replicas**0.02) * np.exp(noise * NOISE[: len(params)])
    return {"params": params, "replicas": replicas, "loss": loss, **further}


# -- coefficients that cannot be told apart


@pytest.mark.parametrize(
    "form, twins, sure",
    [
        ("A*params^a*params^b + floor", ("a", "b"), ("A", "floor")),
        ("A*params^a + floor + E", ("floor", "E"), ("A", "a")),
        ("A*params^a + B*params^a + floor", ("A", "B"), ("a", "floor")),
        ("A*params^(a + b*replicas + c) + floor", ("a", "c"), ("b", "floor")),
        ("A*params^a*replicas^b*replicas^(2*c) + floor", ("b", "c"), ("A", "a")),
    ],
)
def test_coefficients_that_act_as_one_are_named_and_have_no_interval(form, twins, sure) -> None:
    law = fit_law(ladder(), form, holdout=False)
    assert set(law.certificate.confounded) == set(twins)
    (note,) = [note for note in law.notes if "cannot be told apart" in note]
    assert note.startswith(f"{twins[0]} and {twins[1]} cannot") and f"fixed={{'{twins[1]}'" in note
    assert not any("ill-conditioned" in note for note in law.notes)
    known = {name: low == low for name, (_, low, _) in law._estimates.items()}
    assert not any(known[name] for name in twins) and all(known[name] for name in sure)
    answer = law.predict(params=1e10, replicas=4)
    assert 0 < answer.curve_low < answer.value < answer.curve_high < 2 * answer.value


def test_axes_that_are_one_leave_their_exponents_and_the_amplitude_open(tmp_path) -> None:
    rows = ladder(tokens=20 * ladder()["params"])
    law = fit_law(rows, "A*params^a*tokens^b + floor", holdout=False)
    assert set(law.certificate.confounded) == {"A", "a", "b"} and law.intervals["floor"]
    assert sum("cannot be told apart" in note for note in law.notes) == 1
    law.save(tmp_path / "law.json")
    assert load_law(tmp_path / "law.json").intervals["params"] is None


@pytest.mark.parametrize("form", ["power-floor", "coupled-floor", "A*params^(a + b*params) + floor"])
def test_forms_whose_coefficients_act_apart_keep_every_interval(form) -> None:
    law = fit_law(ladder(), form, holdout=False)
    assert law.certificate.confounded == () and all(law.intervals.values())


def test_an_interval_does_not_depend_on_the_targets_units() -> None:
    small, large = ladder(), ladder()
    large["loss"] = large["loss"] * 1e12
    one, other = (fit_law(rows, holdout=False).intervals for rows in (small, large))
    assert np.allclose(np.array(one["floor"]) * 1e12, other["floor"], rtol=1e-5)


# -- what predict says


def test_far_below_the_runs_is_as_far_as_above() -> None:
    law = fit_law(ladder(), holdout=False)
    for params, far in ((1e5, True), (9.9e5, True), (2e6, False), (2e10, False), (1e11, True)):
        (said,) = law.predict(params=params, replicas=4).warnings
        assert ("which is far: the form decides" in said) == far


def test_an_axis_of_two_values_is_a_guess_between_them() -> None:
    law = fit_law(ladder(sizes=(1e7, 1e9)), "A*params^a*replicas^b", holdout=False)
    (said,) = law.predict(params=2e8, replicas=3).warnings
    assert said.startswith("params was 1e+07 and 1e+09 in the runs") and said in recommend(law, 2e8, 3).warnings
    assert law.predict(params=1e9, replicas=3).warnings == ()


def test_a_question_off_the_relation_of_two_axes_is_a_guess() -> None:
    rows = ladder(tokens=20 * ladder()["params"])
    law = fit_law(rows, "A*params^a*tokens^b + floor", holdout=False)
    assert law.predict(params=2e8, tokens=4e9).warnings == ()
    (said,) = law.predict(params=2e8, tokens=2e10).warnings
    assert "moved together" in said and "5 times what went with params 2e+08" in said


# -- hold-out and solver


def test_a_bad_run_spoils_the_baselines_as_little_as_the_law() -> None:
    clean, bad = ladder(), ladder()
    bad["loss"][[7, 15]] = bad["loss"][[7, 15]] * np.array([10.0, 1 / 10])
    form = "A*params^a*replicas^b + floor"
    one, other = (fit_law(rows, form) for rows in (clean, bad))
    assert np.flatnonzero(other.runs.weight == 0).tolist() == [7, 15]
    before, after = one.holdout.splits[0], other.holdout.splits[0]
    assert after.log_linear_error_pct == pytest.approx(before.log_linear_error_pct, rel=0.2)
    assert after.carried_error_pct == pytest.approx(before.carried_error_pct, rel=0.2)


def test_a_run_that_was_left_out_is_not_carried_over() -> None:
    rows = ladder()
    rows["loss"][np.flatnonzero((rows["params"] == 1e9) & (rows["replicas"] == 2))] *= 3
    split = fit_law(rows, "A*params^a*replicas^b + floor").holdout.splits[0]
    assert split.trained_to == 1e9 and split.carried_error_pct < 20


@pytest.mark.parametrize(
    "form, loss, seeds",
    [
        ("power-floor", lambda p, m: p**0.1 * m**0.01, (8, 12, 18)),
        ("sum-floor", lambda p, m: 36 * p**-0.155 * m**0.0187 + 1.03, (9, 17)),
    ],
)
def test_a_term_that_goes_to_0_is_an_optimum_reached(form, loss, seeds) -> None:
    for seed in seeds:
        rows = ladder()
        noise = np.random.default_rng(seed).normal(0, 0.003, 24)
        rows["loss"] = loss(rows["params"], rows["replicas"]) * np.exp(noise)
        law = fit_law(rows, form, holdout=False)
        assert "floor" in law.certificate.at_bound and law.certificate.converged
        assert not any("stopped before" in note for note in law.notes)


def test_no_warning_of_numpy_leaks_and_numbers_beyond_it_are_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for factor in (1e-90, 1.0, 1e90):
            rows = ladder()
            rows["loss"] = rows["loss"] * factor
            assert fit_law(rows).intervals["params"]
        rows["loss"] = rows["loss"] * 1e-300
        with pytest.raises(BadInput, match=r"row 1: loss is .*e-210, outside 1e-100 to 1e\+100"):
            fit_law(rows)


def test_a_pull_beyond_any_number_raises_no_warning_and_is_read_back(tmp_path) -> None:
    params = np.geomspace(1e7, 1e9, 8)
    loss = (1 + 40 * params**-0.16) * np.exp(0.01 * np.random.default_rng(0).standard_normal(8))
    loss[7] *= 1e-80
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        law = fit_law({"params": params, "loss": loss}, "A*params^(a*params) + floor", loss="mse")
    assert max(item.error_pct for item in law.holdout.influence) == np.inf
    law.save(tmp_path / "law.json")
    assert load_law(tmp_path / "law.json").holdout == law.holdout
