"""Predictions, comparison of forms, hold-out, files, advice, next runs, optimum.

pytest tests/laws/test_answers.py
"""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest

from diloco.laws import advise, compare_forms, counting_table, fit_law, load_law, next_runs, recommend
from diloco.laws.budget import flops_of
from diloco.laws.published import paper_rows


@pytest.fixture(scope="module")
def law():
    return fit_law(paper_rows())


@pytest.fixture(scope="module")
def comparison():
    return compare_forms(paper_rows())


def chinchilla_law(noise: float = 0.003):
    params, multiple = (g.ravel() for g in np.meshgrid(np.geomspace(5e7, 2e9, 5), np.geomspace(5, 80, 5)))
    tokens = params * multiple
    loss = 1.69 + 406.4 * params**-0.34 + 410.7 * tokens**-0.28
    loss = loss * np.exp(noise * np.random.default_rng(0).standard_normal(25))
    return fit_law({"params": params, "tokens": tokens, "loss": loss}, "chinchilla", holdout=False)


def test_prediction_says_what_it_extrapolates_over(law) -> None:
    answer = law.predict(params=1e11, replicas=16)
    assert answer.low < answer.curve_low < answer.value < answer.curve_high < answer.high
    assert len(answer.warnings) == 2 and "times the largest run's" in answer.warnings[0] and "far" in answer.warnings[0]
    assert law.predict(params=1e9, replicas=2).warnings == ()
    assert answer.law == law.id and len(law.id) == 12


@pytest.mark.parametrize(
    "point, complaint",
    [
        ({"params": 1e9}, "needs replicas"),
        ({"params": -1, "replicas": 1}, "params=-1.0 must be a finite number above 0"),
    ],
)
def test_prediction_refuses(law, point, complaint) -> None:
    with pytest.raises(ValueError, match=complaint):
        law.predict(**point)


def test_saved_law_answers_the_same_report_142(comparison, tmp_path) -> None:
    law = comparison.best
    law.save(tmp_path / "law.json")
    back = load_law(tmp_path / "law.json")
    assert back.predict(params=1e10, replicas=4) == law.predict(params=1e10, replicas=4)
    assert back.report() == law.report() and back.id == law.id
    record = json.loads((tmp_path / "law.json").read_text())
    assert len(record["data_hash"]) == 64 and record["versions"]["numpy"] and record["settings"]["loss"] == "robust"
    json.dumps(back.report(), allow_nan=False)


@pytest.mark.parametrize(
    "text, complaint", [("{", "not JSON"), ("{}", "no law"), ('{"kind": "diloco-law", "version": 4}', "damaged")]
)
def test_what_is_no_law_is_refused(tmp_path, text, complaint) -> None:
    (tmp_path / "law.json").write_text(text)
    with pytest.raises(ValueError, match=complaint):
        load_law(tmp_path / "law.json")
    with pytest.raises(ValueError, match="does not exist"):
        load_law(tmp_path / "none.json")


def test_floor_forms_win_the_hold_out(comparison) -> None:
    assert comparison.laws[-1].form.name == "power"
    assert {law.form.name for law in comparison.best.alternatives} | {comparison.best.form.name} == {
        "power-floor",
        "sum-floor",
        "coupled-floor",
    }
    answer = comparison.best.predict(params=1e10, replicas=4)
    assert (
        len(answer.forms) == 3
        and answer.form_low <= answer.value <= answer.form_high
        and answer.form_low < answer.form_high
    )
    json.dumps(comparison.table(), allow_nan=False)


def test_hold_out_is_the_split_written_out(law) -> None:
    rows = paper_rows()
    params, loss = rows.column("params"), rows.column("loss")
    small = np.flatnonzero(params < 2e9)
    fit = fit_law(rows.take(small), law.form, holdout=False)
    large = np.flatnonzero(params > 2e9)
    curve = fit.curve({axis: rows.column(axis)[large] for axis in law.form.axes})
    first = law.holdout.splits[0]
    assert (first.trained, first.tested) == (24, 4)
    assert first.mean_error_pct == pytest.approx(100 * np.abs(curve.value / loss[large] - 1).mean(), rel=1e-3)
    carried = [loss[small][(params[small] > 1e9)][i] for i in range(4)]
    assert first.carried_error_pct == pytest.approx(100 * np.abs(np.array(carried) / loss[large] - 1).mean())


def test_influence_is_refitting_without_the_run_report_139() -> None:
    rows = paper_rows()
    law = fit_law(rows, "A*params^a*replicas^b", loss="mse")
    item = next(item for item in law.holdout.influence if item.index is not None)
    without = fit_law(rows.take(i for i in range(28) if i != item.index), law.form, loss="mse", holdout=False)
    low, high = law.intervals["params"]
    se = (high - low) / 2 / law.t
    moved = (without.coefficients["params"] - law.coefficients["params"]) / se
    assert item.moves["params"] == pytest.approx(moved, rel=1e-4)


def test_counting_rules_are_set_side_by_side_report_141() -> None:
    body = np.geomspace(1e6, 1e9, 8)
    params = body + 3e6 * (body / 1e6) ** 0.4
    rows = {"params": params, "params_body": body, "loss": 1.5 + 30 * body**-0.2}
    found = counting_table(rows, "A*params^a + floor")
    assert found["exponents"]["params_body"] == pytest.approx(-0.2, abs=1e-4)
    assert found["exponents"]["params"] < found["exponents"]["params_body"] and "exponents" in found["verdict"]


def test_optimum_satisfies_its_own_conditions_report_151() -> None:
    best = chinchilla_law(1e-6).optimal(flops=1e21)
    assert 6 * best.params * best.tokens == pytest.approx(1e21)
    assert abs(best.slope) < 1e-6
    a, b, A, B = 0.34, 0.28, 406.4, 410.7  # Hoffmann et al. eq. 4
    expected = ((a * A) / (b * B)) ** (1 / (a + b)) * (1e21 / 6) ** (b / (a + b))
    assert best.params == pytest.approx(expected, rel=1e-2)
    wide = chinchilla_law().optimal(flops=1e21)
    assert wide.params_low < expected < wide.params_high


def test_optimum_needs_params_and_tokens(law) -> None:
    with pytest.raises(ValueError, match="needs params and tokens"):
        law.optimal(flops=1e21)


def test_next_run_narrows_by_what_adding_it_would_report_150() -> None:
    law = chinchilla_law()
    target = {"params": 1e10, "tokens": 2e11}
    runs = next_runs(law, 1e21, target)
    assert runs and sum(run.flops for run in runs) <= 1e21
    assert len({tuple(run.axes.items()) for run in runs}) == len(runs)
    assert all(run.half_width_after_pct < run.half_width_before_pct for run in runs)
    jacobian = law.log_gradient(law.runs.columns)
    added = law.log_gradient(runs[0].axes)
    goal = law.log_gradient(target)[0]
    information = jacobian.T @ jacobian + added.T @ added
    scale = np.sqrt(np.diag(information))
    variance = goal / scale @ np.linalg.solve(information / np.outer(scale, scale), goal / scale)
    t = 2.0796138  # 97.5% at 21 degrees of freedom
    assert runs[0].half_width_after_pct == pytest.approx(100 * np.expm1(t * law.noise * np.sqrt(variance)), rel=1e-3)


def test_next_run_takes_the_best_per_flop(law) -> None:
    points = [{"params": n, "replicas": m} for n in (1e8, 1e9, 5e9) for m in (1.0, 8.0)]
    target = {"params": 1e10, "replicas": 4}
    first = next_runs(law, 1e23, target, candidates=points)[0]
    goal, covariance = law.log_gradient(target)[0], law.covariance_PP / law.noise**2
    gains = []
    for point in points:
        j = law.log_gradient(point)[0]
        gains.append((j @ covariance @ goal) ** 2 / (1 + j @ covariance @ j) / flops_of(point))
    worth = [g * flops_of(p) > 0.01 * (goal @ covariance @ goal) for g, p in zip(gains, points, strict=True)]
    assert first.axes == points[int(np.argmax(np.where(worth, gains, -1)))]
    with pytest.raises(ValueError, match="buys no candidate"):
        next_runs(law, 1e10, target)


def test_rules_answer_side_by_side(comparison) -> None:
    advice = advise(10e9, 4, law=comparison.best)
    article, paper, fitted = advice.recommendations
    assert (article.rule, paper.rule, fitted.rule) == ("article", "paper", "fitted")
    assert article.outer_lr == pytest.approx(0.0015 * 4**-0.6) and paper.outer_lr == 0.6
    assert article.batch_tokens == 32768 and article.inner_lr == 3e-4 and paper.tokens == 2e11
    assert math.isnan(article.loss_low) and paper.loss_low < paper.loss < paper.loss_high
    text = "\n".join(advice.disagreements)
    for quantity in ("loss", "inner_lr", "outer_lr", "batch_tokens"):
        assert f"{quantity}: article" in text
    assert "0.2 at 1 replica" in advice.lr_ratio[1] and "1.1 at 16" in advice.lr_ratio[1]
    json.dumps(advice.as_dict(), allow_nan=False)


def test_paper_rule_owns_up_to_its_misses_report_153() -> None:
    said = recommend("paper", 10e9, 4, tokens=1e11)
    assert "at 20 tokens per parameter, not at 10" in " ".join(said.warnings)
    assert "1.2 to 4.4% under" in " ".join(said.warnings)


@pytest.mark.parametrize(
    "rule, params, complaint", [("papers", 1e9, "'papers' is not known"), ("paper", 0, "params=0")]
)
def test_rules_refuse(rule, params, complaint) -> None:
    with pytest.raises(ValueError, match=complaint):
        recommend(rule, params)


def test_answers_need_neither_torch_nor_scipys_optimizers() -> None:
    code = (
        "import sys; from diloco.laws import advise; advise(1e10, 4); "
        "sys.exit(bool({'torch', 'scipy.optimize', 'pandas', 'pyarrow'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_influence_stays_a_deletion_where_two_readings_are_held_open() -> None:
    """There the covariance is wider than one fit's: what a run pulls is still what leaving it out does."""
    params, replicas = (grid.ravel() for grid in np.meshgrid([1e7, 3e7, 1e8, 3e8, 1e9], [1.0, 2.0, 4.0]))
    noise = np.exp(0.003 * np.random.default_rng(0).standard_normal(15))
    rows = {"params": params, "replicas": replicas, "loss": (2 + 40 * params**-0.2 * replicas**0.05) * noise}
    law = fit_law(rows)
    assert any("the intervals hold both readings" in note for note in law.notes)
    item = law.holdout.influence[0]
    kept = [i for i in range(15) if i != item.index]
    without = fit_law({name: values[kept] for name, values in rows.items()}, law.form, loss="mse", holdout=False)
    left_out = {axis: rows[axis][item.index] for axis in ("params", "replicas")}
    error_pct = 100 * (rows["loss"][item.index] / without.predict(**left_out).value - 1)
    assert item.error_pct == pytest.approx(error_pct, rel=0.1) and 3 < abs(item.z) < 6


def damaged(law, tmp_path, change) -> str:
    """What `load_law` says to the law's file after `change` to its record."""
    law.save(tmp_path / "law.json")
    record = json.loads((tmp_path / "law.json").read_text())
    change(record)
    (tmp_path / "law.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"law\.json is damaged \(.*\): fit the law again") as error:
        load_law(tmp_path / "law.json")
    return str(error.value)


def test_coefficients_edited_by_hand_are_refused_with_both_values(law, tmp_path) -> None:
    said = damaged(law, tmp_path, lambda record: record["coefficients"].update(params=-0.5))
    assert "law.coefficients.params is -0.5, and from the rest of the file follows -0.1" in said


def every_place(node, path=()):
    """Each key and entry of a record, one entry standing for all of a list."""
    for key in node if isinstance(node, dict) else range(min(len(node), 1)):
        yield (*path, key)
        if isinstance(node[key], (dict, list)):
            yield from every_place(node[key], (*path, key))


def test_every_field_of_a_law_file_is_checked(law, tmp_path) -> None:
    """Each in turn replaced by what no fit writes there, and each key of an object taken out or joined by another."""
    law.save(tmp_path / "law.json")
    record = json.loads((tmp_path / "law.json").read_text())
    places = [place for place in every_place(record) if place not in (("kind",), ("version",))]
    assert len(places) > 60
    for place in places:
        for wrong in ({"no": "such"}, None, True):

            def change(record, place=place, wrong=wrong):
                node = record
                for key in place[:-1]:
                    node = node[key]
                if node[place[-1]] != wrong or type(node[place[-1]]) is not type(wrong):
                    node[place[-1]] = wrong
                else:
                    node.pop(place[-1])

            damaged(law, tmp_path, change)
    for add in ("", "form", "settings", "certificate", "holdout", "runs", "coefficients"):
        damaged(law, tmp_path, lambda record, add=add: (record[add] if add else record).update(extra=1))
        if add:
            damaged(law, tmp_path, lambda record, add=add: record[add].popitem())


@pytest.mark.parametrize(
    "key, value",
    [
        *(("id", "0" * 12), ("target", "accuracy"), ("level", 0.9), ("t", 1.0), ("dof", 3.0), ("data_hash", "0" * 64)),
        *(("noise", -1.0), ("theta", [0.0, 0.0, 0.0, 0.0]), ("notes", "none"), ("notes", [3]), ("versions", {"a": 1})),
    ],
)
def test_what_does_not_follow_from_the_rest_of_a_law_file_is_refused(law, tmp_path, key, value) -> None:
    damaged(law, tmp_path, lambda record: record.update({key: value}))


def test_the_law_at_another_level_is_read_back(law, tmp_path) -> None:
    for level in (0.5, 0.9999):
        law.at_level(level).save(tmp_path / "law.json")
        assert load_law(tmp_path / "law.json").level == level
