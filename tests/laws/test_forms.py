"""Every form: exact recovery, analytic Jacobian, invariance; and the expressions that forms are written in.

pytest tests/laws/test_forms.py
"""

from __future__ import annotations

import numpy as np
import pytest

from diloco.errors import BadInput
from diloco.laws import FORMS, fit_law, power
from diloco.laws.expressions import parse
from diloco.laws.forms import resolve
from diloco.laws.model import bind

AXES = ("params", "tokens", "replicas", "tokens_per_param")
TRUTH = {
    "power": {"A": 19.0, "a": -0.09, "b": 0.012},
    "power-floor": {"A": 40.0, "a": -0.16, "b": 0.02, "floor": 1.2},
    "coupled-floor": {"A": 40.0, "a": -0.16, "b": 0.0003, "floor": 1.2},
    "sum-floor": {"A": 40.0, "B": 0.02, "a": -0.16, "b": 0.7, "floor": 1.1},
    "article": {"alpha": 30.0, "beta": 0.14, "gamma": -0.02, "L_inf": 1.3},
    "chinchilla": {"A": 406.4, "B": 410.7, "alpha": 0.34, "beta": 0.28, "E": 1.69},
    "tied": {"A": 300.0, "B": 900.0, "alpha": 0.31, "E": 1.7},
    "chinchilla-replicas": {"A": 406.4, "B": 410.7, "alpha": 0.34, "beta": 0.28, "gamma": 0.1, "E": 1.69},
    "saturating": {"A": 60.0, "B": 80.0, "alpha": 0.2, "beta": 0.6, "E": 1.5},
    "broken": {
        **{"A": 40.0, "a": -0.2, "floor": 1.2},
        **{"bend_change": 0.12, "bend_log_at": np.log(4e8), "bend_log_width": np.log(0.4)},
    },
}


def form_named(name: str):
    return FORMS[name] if name in FORMS else power(["params", "replicas"], floor=name == "power-floor")


def ladder() -> dict[str, np.ndarray]:
    grid = np.meshgrid(np.geomspace(3e7, 5e9, 9), np.geomspace(4, 100, 4), [1.0, 2.0, 4.0, 8.0])
    params, multiple, replicas = (axis.ravel() for axis in grid)
    return {"params": params, "tokens": params * multiple, "replicas": replicas, "tokens_per_param": multiple}


def natural(model, values: dict[str, float]) -> np.ndarray:
    """theta in the expression's own coefficients, amplitudes as logs."""
    logs = [np.log(values[name]) for name in model.form.amplitudes]
    return np.array(logs + [values[name] for name in model.names[model.terms :]])


def made(name: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    columns = ladder()
    model = bind(form_named(name), columns)
    return columns, np.exp(model.log_value(model.internal(natural(model, TRUTH[name]))[None])[0])


def test_truth_is_written_out_for_every_form() -> None:
    assert set(TRUTH) == {"power", "power-floor", *FORMS}


def test_values_are_those_of_the_formula() -> None:
    columns, loss = made("chinchilla-replicas")
    N, D, M = (columns[axis] for axis in ("params", "tokens", "replicas"))
    np.testing.assert_allclose(loss, 406.4 / N**0.34 + 410.7 / D**0.28 * M**0.1 + 1.69, rtol=1e-12)
    columns, loss = made("coupled-floor")
    np.testing.assert_allclose(loss, 40 * columns["params"] ** (-0.16 + 0.0003 * columns["replicas"]) + 1.2, rtol=1e-12)


@pytest.mark.parametrize("name", TRUTH)
def test_noise_free_recovery(name) -> None:
    columns, loss = made(name)
    law = fit_law(columns | {"loss": loss}, form_named(name), holdout=False)
    np.testing.assert_allclose(law.runs.fitted, loss, rtol=1e-8)
    for key, value in TRUTH[name].items():
        assert law.parameters[key] == pytest.approx(value, rel=1e-6), key
    assert not (law.runs.weight == 0).any()


@pytest.mark.parametrize("name", TRUTH)
@pytest.mark.parametrize("method", ["__call__", "tangent"])
def test_jacobian_matches_finite_differences(name, method) -> None:
    columns, _ = made(name)
    model = bind(form_named(name), columns)
    theta = model.internal(natural(model, TRUTH[name]))
    _, jacobian = getattr(model, method)(theta[None])
    for i in range(len(theta)):
        step = 1e-5 * np.eye(len(theta))[i]
        slope = (model.log_value((theta + step)[None]) - model.log_value((theta - step)[None]))[0] / 2e-5
        if method == "tangent" and i == model.form.floor:
            slope = slope / np.exp(theta[i])
        np.testing.assert_allclose(jacobian[0, :, i], slope, atol=1e-7)


def noisy(name: str = "chinchilla-replicas") -> dict[str, np.ndarray]:
    columns, loss = made(name)
    return columns | {"loss": loss * np.exp(0.002 * np.random.default_rng(0).standard_normal(len(loss)))}


UNIT_FREE = [name for name in TRUTH if name != "coupled-floor"]
"""An exponent that changes with another axis makes a change of units of the first a change of the form."""


@pytest.mark.parametrize("name", UNIT_FREE)
def test_units_change_amplitudes_alone_report_147(name) -> None:
    rows, form = noisy(name), form_named(name)
    law = fit_law(rows, form, holdout=False)
    scaled = {axis: values * 1e-9 if axis in ("params", "tokens") else values for axis, values in rows.items()}
    other = fit_law(scaled | {"loss": rows["loss"] * np.log2(np.e)}, form, holdout=False)
    for key in form.exponents:
        assert other.parameters[key] == pytest.approx(law.parameters[key], abs=1e-6)
    if form.floor is not None:
        floor = form.amplitudes[form.floor]
        assert other.parameters[floor] == pytest.approx(law.parameters[floor] * np.log2(np.e), rel=1e-6)
    np.testing.assert_allclose(other.runs.fitted, law.runs.fitted * np.log2(np.e), rtol=1e-8)
    assert other.noise == pytest.approx(law.noise, rel=1e-6)


def test_units_of_the_loss_do_not_matter_to_any_form() -> None:
    rows = noisy("coupled-floor")
    law = fit_law(rows, "coupled-floor", holdout=False)
    bits = fit_law(rows | {"loss": rows["loss"] * np.log2(np.e)}, "coupled-floor", holdout=False)
    np.testing.assert_allclose(bits.runs.fitted, law.runs.fitted * np.log2(np.e), rtol=1e-8)


@pytest.mark.parametrize("name", TRUTH)
def test_row_order_does_not_matter(name) -> None:
    rows, form = noisy(name), form_named(name)
    order = np.random.default_rng(1).permutation(len(rows["loss"]))
    one = fit_law(rows, form, holdout=False)
    other = fit_law({axis: values[order] for axis, values in rows.items()}, form, holdout=False)
    for key, value in one.parameters.items():
        assert other.parameters[key] == pytest.approx(value, rel=1e-6)
    assert one.data_hash == other.data_hash and one.id == other.id


@pytest.mark.parametrize("name", TRUTH)
@pytest.mark.parametrize("loss", ["robust", "mse", "huber"])
def test_weight_2_is_the_row_twice(name, loss) -> None:
    rows, form = {axis: values[::3] for axis, values in noisy(name).items()}, form_named(name)
    n = len(rows["loss"])
    weights = 1 + np.arange(n) % 2
    twice = {axis: np.repeat(values, weights) for axis, values in rows.items()} | {"seed": np.arange(weights.sum())}
    one = fit_law(rows | {"weight": weights}, form, loss=loss, holdout=False)
    other = fit_law(twice, form, loss=loss, holdout=False)
    assert other.dof == one.dof
    np.testing.assert_allclose(other.runs.fitted, np.repeat(one.runs.fitted, weights), rtol=1e-5)
    if name != "broken":  # its six coefficients on nine sizes trade off: the law settles long before they do
        for key, value in one.parameters.items():
            assert other.parameters[key] == pytest.approx(value, rel=1e-5)
        assert other.noise == pytest.approx(one.noise, rel=1e-5)


def test_expression_means_what_it_says() -> None:
    rows = noisy()
    named = fit_law(rows, "chinchilla", holdout=False)
    written = fit_law(rows, "E + A/params^alpha + B/tokens^beta", holdout=False)
    for key, value in named.parameters.items():
        assert written.parameters[key] == pytest.approx(value, rel=1e-6)


def test_numbers_and_fixed_coefficients_stay() -> None:
    columns, loss = made("power-floor")
    rows = columns | {"loss": loss}
    for law in (
        fit_law(rows, "A*params^a*replicas^b + 1.2", holdout=False),
        fit_law(rows, "A*params^a*replicas^b + C", fixed={"C": 1.2}, holdout=False),
        fit_law(rows, "A*params^-0.16*replicas^b + C", holdout=False),
        fit_law(rows, "A*params^a*replicas^b + C", fixed={"A": 40.0, "a": -0.16}, holdout=False),
    ):
        np.testing.assert_allclose(law.runs.fitted, loss, rtol=1e-8)


def test_own_columns_and_their_own_names() -> None:
    columns, loss = made("power-floor")
    once = columns["tokens_per_param"] == columns["tokens_per_param"][0]
    rows = {"N": columns["params"][once], "width": columns["replicas"][once], "val_loss": loss[once]}
    law = fit_law(rows, "A*N^a*width^b + floor", holdout=False)
    assert law.form.axes == ("params", "width")
    assert law.coefficients["width"] == pytest.approx(0.02, rel=1e-6)


def test_coefficients_carry_their_axis_and_sign() -> None:
    columns, loss = made("article")
    law = fit_law(columns | {"loss": loss}, "article", holdout=False)
    assert law.coefficients == pytest.approx({"A": 30.0, "params": -0.14, "replicas": 0.02, "floor": 1.3}, rel=1e-6)


@pytest.mark.parametrize(
    "expression, complaint",
    [
        ("A*params^a - floor", "subtracts"),
        ("A*params^", "cannot be read"),
        ("A*B*params^a", "second amplitude"),
        ("A*params^(a*b)", "multiplies two coefficients"),
        ("A*params^a*(1 + B*tokens^b)", "expand it"),
        ("A*parms^a", "is not an axis"),
        ("A*params^a + A*tokens^b", "two roles"),
        ("params^-0.3", "no amplitude"),
        ("__import__('os').system('true')", "expand it"),
        ("A*params^a*bend(params) + B*tokens^b*bend(tokens)", "more than one bend"),
        ("A*params^1e999", "is not a sum of coefficients"),
        ("A*params^" + "9" * 500, "is not a sum of coefficients"),
        ("A*params^" + "9" * 5000, "longer than 1000"),
        (" + ".join(f"A{i}*params^a" for i in range(1500)), "longer than 1000"),
        ("A*params^" + "-" * 3000 + "a", "longer than 1000"),
        ("A*params^params", "without a coefficient of its own"),
        ("A*params^a/1e-320", "a number of usual size"),
        ("A*params^a/1e-90/1e-90", "has a factor outside"),
        ("A*params^50", "has a number beyond 20"),
        ("A + B", "has no axis"),
    ],
)
def test_bad_expressions_are_refused_with_the_reason(expression, complaint) -> None:
    with pytest.raises(BadInput, match=complaint):
        parse(expression, AXES)


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(ValueError, match="chinchilla"):
        resolve("chinchila", ["params"])
