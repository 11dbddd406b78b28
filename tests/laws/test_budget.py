"""Tokens per parameter where nobody gives tokens: those of the law's own runs, and 20 only where nothing is known.

pytest tests/laws/test_budget.py
"""

from __future__ import annotations

import numpy as np
import pytest

from diloco.errors import BadInput
from diloco.laws import advise, fit_law, load_law, next_runs, recommend
from diloco.laws.budget import flops_of

SIZES = np.geomspace(1e7, 3e9, 8)


def rows(ratio: object = None) -> dict[str, np.ndarray]:
    loss = (1 + 40 * SIZES**-0.16) * np.exp(0.003 * np.random.default_rng(2).standard_normal(8))
    return {"params": SIZES, "loss": loss} | ({} if ratio is None else {"tokens": SIZES * ratio})


def size_law(ratio: object = None):
    """Without a token axis."""
    return fit_law(rows(ratio), "A*params^a + floor", holdout=False)


@pytest.mark.parametrize(
    "ratio, per_param, said",
    [
        (50.0, 50, "tokens are taken as 50 per parameter, as in the law's runs"),
        (np.linspace(10, 80, 8), 45, "tokens are taken as 45 per parameter, the middle of the law's runs (10 to 80)"),
        (None, 20, "tokens are taken as 20 per parameter, a rule of thumb: the law's runs do not say"),
        (50 + 0.2 * np.arange(8), 50.7, "tokens are taken as 50.7 per parameter, the middle of the law's runs"),
        (50 + 0.1 * np.arange(8), 50.35, "tokens are taken as 50.4 per parameter, as in the law's runs"),
    ],
)
def test_tokens_are_those_of_the_runs(ratio, per_param, said, tmp_path) -> None:
    law = size_law(ratio)
    law.save(tmp_path / "law.json")
    for known in (law, load_law(tmp_path / "law.json")):
        answer = recommend(known, 1e9)
        assert answer.tokens == pytest.approx(per_param * 1e9)
        assert sum(sentence.startswith(said) for sentence in answer.warnings) == 1


def test_runs_left_out_and_rows_with_gaps_do_not_count() -> None:
    table = rows(np.where(np.arange(8) == 3, 500.0, 50.0))
    table["loss"][3] *= 1.3
    law = fit_law(table, "A*params^a + floor", holdout=False)
    assert law.runs.weight[3] == 0 and law.runs.tokens_per_param.high == 50
    table["tokens"][[3, 5]] = 0, np.nan
    with pytest.raises(BadInput, match="row 4: tokens is 0"):
        fit_law(table, "A*params^a + floor")
    table["tokens"][3] = np.nan
    law = fit_law(table, "A*params^a + floor", holdout=False)
    ratio = law.runs.tokens_per_param
    assert (ratio.low, ratio.high, ratio.told, ratio.of) == (50, 50, 6, 7)
    (said,) = recommend(law, 1e9).warnings
    assert said == "tokens are taken as 50 per parameter, as in the law's runs, 6 of 7 of which say"
    table["tokens"][:] = np.nan
    assert fit_law(table, "A*params^a + floor", holdout=False).runs.tokens_per_param is None


def test_units_that_cannot_be_are_doubted() -> None:
    (said,) = [note for note in size_law(20e-9).notes if "units" in note]
    assert said.startswith("the runs have 2e-08 tokens per parameter: are tokens counted in other units")
    assert not any("units" in note for note in size_law(20).notes)


def test_rules_asked_at_different_tokens_say_so() -> None:
    apart = advise(1e9, 1, law=size_law(50.0)).disagreements
    at_one = advise(1e9, 1, tokens=2e10, law=size_law(50.0)).disagreements
    (said,) = [sentence for sentence in apart if sentence.startswith("loss: article") and "fitted" in sentence]
    assert said.endswith("; article at 2e+10 and fitted at 5e+10 tokens, which is part of the difference")
    assert at_one and not any("part of the difference" in sentence for sentence in at_one)


def test_a_law_of_one_ratio_says_when_it_is_asked_at_another() -> None:
    law = size_law(50.0)
    assert recommend(law, 1e9, tokens=50.4e9).warnings == ()
    assert recommend(law, 1e9, tokens=20e9).warnings == ("the law holds at 50 tokens per parameter, not at 20",)
    assert recommend(law, 1e9, tokens_per_param=20).warnings == recommend(law, 1e9, tokens=20e9).warnings
    assert recommend(size_law(), 1e9, tokens=20e9).warnings == ()


def test_a_law_of_tokens_is_asked_at_its_own_ratio() -> None:
    params, ratio = (grid.ravel() for grid in np.meshgrid(np.geomspace(5e7, 2e9, 4), [50.0, 100.0, 200.0]))
    loss = 1.69 + 406.4 * params**-0.34 + 410.7 * (params * ratio) ** -0.28
    law = fit_law({"params": params, "tokens": params * ratio, "loss": loss}, "chinchilla", holdout=False)
    answer = recommend(law, 1e9)
    assert answer.loss == law.predict(params=1e9, tokens=1e11).value
    assert "tokens are taken as 100 per parameter, the middle of the law's runs (50 to 200)" in answer.warnings


def test_each_rule_takes_its_own() -> None:
    article, paper, fitted = advise(1e9, 4, law=size_law(50.0)).recommendations
    assert (article.tokens, paper.tokens, fitted.tokens) == (2e10, 2e10, 5e10)
    assert any("a rule of thumb: the article's rules do not say" in sentence for sentence in article.warnings)
    assert any("as in the paper's runs" in sentence for sentence in paper.warnings)


def test_runs_to_do_cost_what_the_law_s_runs_did() -> None:
    for ratio, per_param in ((50.0, 50), (None, 20)):
        law = size_law(ratio)
        for run in next_runs(law, 1e22, {"params": 1e10}):
            assert run.flops == pytest.approx(6 * per_param * run.axes["params"] ** 2)
    assert flops_of({"params": 1e9, "tokens": 1e10}) == 6e19 and flops_of({"params": 1e9}) == 1.2e20
