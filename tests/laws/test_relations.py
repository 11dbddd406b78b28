"""Axes that follow one another in the runs: found, said at the fit and at a question off them, and tokens follow them.

pytest tests/laws/test_relations.py
"""

from __future__ import annotations

import numpy as np
import pytest

from diloco.laws import fit_law, load_law, next_runs, recommend
from diloco.laws.relations import relation, relations

PARAMS, REPLICAS = (grid.ravel() for grid in np.meshgrid(np.geomspace(3e7, 3e9, 6), [1.0, 2.0, 4.0, 8.0]))
NOISE = 0.003 * np.random.default_rng(4).standard_normal(24)


def table(**further: np.ndarray) -> dict[str, np.ndarray]:
    loss = (1 + 40 * PARAMS**-0.16 * REPLICAS**0.02) * np.exp(NOISE)
    return {"params": PARAMS, "replicas": REPLICAS, **further, "loss": loss}


def test_an_axis_follows_one_or_several() -> None:
    columns = {"params": PARAMS, "tokens": 40 * PARAMS * REPLICAS, "replicas": REPLICAS}
    (found,) = relations(columns)
    assert (found.axis, str(found)) == ("tokens", "tokens = 40 * params * replicas")
    assert found.powers == pytest.approx({"params": 1, "replicas": 1}) and found.off < 1e-9
    assert found.at({"params": 1e9, "replicas": 4}) == pytest.approx(1.6e11)
    (pair,) = relations({"params": PARAMS, "replicas": REPLICAS, "tokens": 20 * PARAMS * np.exp(NOISE)})
    assert list(pair.powers) == ["params"] and pair.off == pytest.approx(np.abs(NOISE - NOISE.mean()).max(), rel=0.1)
    assert relations({"params": PARAMS, "replicas": REPLICAS}) == []
    far = np.random.default_rng(0).permutation(PARAMS)
    assert relation("tokens", {"params": PARAMS, "tokens": far}, ["params"], 0.95) is None


def test_a_question_off_a_relation_of_three_axes_is_a_guess(tmp_path) -> None:
    """Each pair of the three looks varied apart: the correlations of logs are 0.9, 0.3 and 0."""
    law = fit_law(table(tokens=40 * PARAMS * REPLICAS), "A*params^a*tokens^b*replicas^c + floor", holdout=False)
    assert any("tokens goes with params and replicas together in the runs (tokens = 40" in note for note in law.notes)
    law.save(tmp_path / "law.json")
    for known in (law, load_law(tmp_path / "law.json")):
        assert known.predict(params=1e9, replicas=4, tokens=1.6e11).warnings == ()
        (said,) = known.predict(params=1e9, replicas=4, tokens=2e10).warnings
        assert said.startswith(
            "params, replicas and tokens moved together in the runs, and tokens 2e+10 is 0.125 times"
        )


@pytest.mark.parametrize("form", ["A*params^a*replicas^b + floor", "A*params^a*tokens^b*replicas^c + floor"])
def test_tokens_that_nobody_gave_follow_the_runs(form, tmp_path) -> None:
    law = fit_law(table(tokens=40 * PARAMS * REPLICAS), form, holdout=False)
    law.save(tmp_path / "law.json")
    for known in (law, load_law(tmp_path / "law.json")):
        for replicas in (1, 4, 8):
            answer = recommend(known, 1e9, replicas)
            assert answer.tokens == pytest.approx(4e10 * replicas, rel=1e-3)
            assert answer.warnings == (
                f"tokens are taken as {40 * replicas} per parameter, which goes with replicas in the law's runs "
                "(40 to 320)",
            )
    (run, *_) = next_runs(law, 1e21, {"params": 1e10, "replicas": 4, **({"tokens": 1.6e12} if "tok" in form else {})})
    if "tokens" not in form:
        assert run.flops == pytest.approx(6 * 40 * run.axes["replicas"] * run.axes["params"] ** 2, rel=1e-3)
        (said,) = recommend(law, 1e9, 4, tokens=8e10).warnings
        assert said == "the law holds at 160 tokens per parameter at such replicas, not at 80"


def test_the_default_form_leaves_out_an_axis_that_follows_several() -> None:
    """Weak scaling: tokens = 20 * params * replicas."""
    law = fit_law(table(tokens=20 * PARAMS * REPLICAS), holdout=False)
    assert law.form.axes == ("params", "replicas") and law.intervals == fit_law(table(), holdout=False).intervals
    assert any("only along tokens = 20 * params * replicas, as in every run" in note for note in law.notes)
    free = fit_law(table(tokens=20 * PARAMS * np.random.default_rng(1).choice([1, 2, 4.0], 24)), holdout=False)
    assert set(free.form.axes) == {"params", "tokens", "replicas"}


def test_three_runs_are_no_relation_to_two_axes() -> None:
    columns = {"params": np.array([1e7, 1e8, 1e9]), "replicas": np.array([1.0, 4.0, 2.0])}
    followed = {**columns, "tokens": np.array([2e8, 9e9, 2.5e10])}
    assert relation("tokens", followed, ["params", "replicas"], 0.5).leaders == "params"
    rows = {**followed, "loss": np.array([3.0, 2.6, 2.2])}
    law = fit_law(rows, "A*params^a", holdout=False)
    assert law.runs.tokens_per_param.powers == {}


def test_a_relation_is_not_continued_beyond_what_the_runs_had() -> None:
    law = fit_law(table(tokens=PARAMS * 40 * (PARAMS / 3e7) ** -0.5), "A*params^a*replicas^b + floor", holdout=False)
    assert recommend(law, 3e8, 4).tokens == pytest.approx(3e8 * 40 / 10**0.5, rel=1e-3)
    answer = recommend(law, 1e11, 4)
    assert answer.tokens == pytest.approx(4e11, rel=1e-3)
    (said,) = [sentence for sentence in answer.warnings if sentence.startswith("tokens are taken")]
    assert said == (
        "tokens are taken as 4 per parameter, the least of the law's runs (4 to 40): their relation to params would "
        "give 0.693 here, which none of them had"
    )
    for ratio, outside in ((10, False), (40, False), (4, False), (1, True), (100, True)):
        warnings = recommend(law, 1e11, 4, tokens=ratio * 1e11).warnings
        assert (f"the law holds at 4 to 40 tokens per parameter, not at {ratio}" in warnings) == outside
    assert any("at such params, not at 40" in warning for warning in recommend(law, 1e9, 4, tokens=4e10).warnings)


def test_a_few_percent_are_no_relation() -> None:
    law = fit_law(table(tokens=PARAMS * (50 + 2 * np.log10(PARAMS / 3e7))), "A*params^a + floor", holdout=False)
    assert law.runs.tokens_per_param.powers == {} and recommend(law, 1e9).tokens == pytest.approx(52e9, rel=0.05)
