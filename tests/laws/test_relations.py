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


def test_a_few_percent_are_no_relation() -> None:
    law = fit_law(table(tokens=PARAMS * (50 + 2 * np.log10(PARAMS / 3e7))), "A*params^a + floor", holdout=False)
    assert law.runs.tokens_per_param.powers == {} and recommend(law, 1e9).tokens == pytest.approx(52e9, rel=0.05)
