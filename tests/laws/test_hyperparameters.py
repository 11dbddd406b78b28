"""Learning rates and batch from sweeps: the paper's recipe on sweeps whose optimum is known.

pytest tests/laws/test_hyperparameters.py
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from diloco.laws import fit_hyperparameters, fit_law, load_hyperparameters, read_rows, recommend
from diloco.laws.published import paper_rows

SIZES, REPLICAS = (1e8, 4e8, 1.6e9, 6.4e9), (1, 2, 4)
RATES = 2.0 ** np.arange(-15, -5)
OUTER = {1: 0.4, 2: 0.6, 4: 0.6}


def best_batch(params: float, replicas: float) -> float:
    return 40 * params**0.4 * replicas**0.3


def best_lr(params: float, replicas: float) -> float:
    """On the grid of powers of two, falling by one step as size grows fourfold: an exponent of -0.5."""
    return 2.0**-8 * (params / 1e8) ** -0.5 * replicas**0.5


def sweep(batches: np.ndarray | None = None) -> list[dict]:
    rows = []
    for params in SIZES:
        for replicas in REPLICAS:
            center = best_batch(params, replicas)
            grid = (
                2.0 ** np.arange(np.floor(np.log2(center)) - 2, np.floor(np.log2(center)) + 4)
                if batches is None
                else batches
            )
            for batch in grid:
                for lr in RATES:
                    for outer in (0.4, 0.6, 0.8):
                        off = 0.03 * np.log2(lr / best_lr(params, replicas)) ** 2 + (outer - OUTER[replicas]) ** 2
                        loss = 3 + 0.02 * np.log2(batch / center) ** 2 + off
                        rows.append({"params": params, "replicas": replicas, "batch_tokens": batch, "inner_lr": lr})
                        rows[-1] |= {"outer_lr": outer, "loss": loss}
    return rows


@pytest.fixture(scope="module")
def laws():
    return fit_hyperparameters(sweep())


def test_optima_and_exponents_come_back(laws) -> None:
    assert len(laws.optima) == 12 and laws.notes == ()
    for best in laws.optima:
        assert best.batch_tokens == pytest.approx(best_batch(best.params, best.replicas), rel=1e-6)
    batch = laws.joint["batch_tokens"].coefficients
    assert batch["params"] == pytest.approx(0.4, abs=1e-6) and batch["replicas"] == pytest.approx(0.3, abs=1e-6)
    assert laws.joint["inner_lr"].coefficients["params"] == pytest.approx(-0.5, abs=0.08)
    assert laws.independent["batch_tokens"][2].coefficients["params"] == pytest.approx(0.4, abs=1e-6)
    assert laws.outer_lr == OUTER


@pytest.mark.parametrize("joint", [True, False])
def test_prediction_at_a_size_nobody_swept(laws, joint) -> None:
    found = laws.predict(1e11, 4, joint=joint)
    assert found["batch_tokens"] == pytest.approx(best_batch(1e11, 4), rel=1e-5) and found["outer_lr"] == 0.6
    assert found["inner_lr"] == pytest.approx(best_lr(1e11, 4), rel=0.5)


def test_optimum_at_the_edge_of_a_grid_is_flagged() -> None:
    laws = fit_hyperparameters(sweep(np.array([2.0**10, 2.0**11, 2.0**12])))
    assert any("the best batch_tokens, 4096, is the largest tried: extend the grid" in note for note in laws.notes)
    assert any("lies outside the batches tried" in note for note in laws.notes)


def test_two_batches_make_no_quadratic() -> None:
    laws = fit_hyperparameters([row for row in sweep() if np.log2(row["batch_tokens"]) % 3 == 0])
    assert any("no quadratic goes through 2 batch sizes" in note for note in laws.notes)


def test_one_size_is_refused_and_two_give_no_law_alone() -> None:
    with pytest.raises(ValueError, match="one size only"):
        fit_hyperparameters([row for row in sweep() if row["params"] == 1e8])
    two = fit_hyperparameters([row for row in sweep() if row["params"] < 1e9])
    with pytest.raises(ValueError, match="at least three sizes"):
        two.predict(1e10, 1, joint=False)


def test_file_round_trip_and_advice(laws, tmp_path) -> None:
    from diloco.laws import fit_law

    laws.save(tmp_path / "hp.json")
    back = load_hyperparameters(tmp_path / "hp.json")
    assert back.predict(1e10, 2) == laws.predict(1e10, 2) and back.optima == laws.optima
    said = recommend(fit_law(paper_rows(), holdout=False), 1e10, 2, hyperparameters=back)
    assert said.batch_tokens == laws.predict(1e10, 2)["batch_tokens"] and said.outer_lr == 0.6
    assert any(sentence.startswith("learning rates and batch") for sentence in said.warnings)
    with pytest.raises(ValueError, match="no hyperparameter laws"):
        (tmp_path / "x.json").write_text("{}")
        load_hyperparameters(tmp_path / "x.json")


def test_each_optimum_keeps_the_name_that_its_run_has_in_the_sweep(tmp_path) -> None:
    path = tmp_path / "sweep.csv"
    header, lines = "params,batch_tokens,inner_lr,replicas,loss", []
    for params in (1e7, 4e7, 16e7, 64e7):
        for batch in (0.5, 1, 2):
            loss = (2 + 40 * params**-0.2) * (1 + 0.01 * math.log2(batch) ** 2)
            lines.append(f"{params},{batch * 100 * params**0.5},{30 * params**-0.5},2,{loss}")
    path.write_text("\n".join([header, *lines]) + "\n")
    rates = fit_hyperparameters(path)
    expected = [f"row {row} (line {row + 1})" for row in (2, 5, 8, 11)]
    assert [best.label for best in rates.optima] == expected
    assert list(rates.best_runs().places) == expected and list(rates.joint["inner_lr"].runs.labels) == expected
    rates.save(tmp_path / "rates.json")
    assert load_hyperparameters(tmp_path / "rates.json").optima == rates.optima


@pytest.mark.parametrize("place", ["optima", "joint", "independent", "outer_lr", "notes"])
def test_a_file_of_rates_changed_by_hand_is_refused(tmp_path, place) -> None:
    sizes = [params for params in (1e7, 4e7, 16e7, 64e7) for _ in range(3)]
    batch = [factor * 100 * params**0.5 for params, factor in zip(sizes, [0.5, 1, 2] * 4, strict=True)]
    columns = {"params": sizes, "batch_tokens": batch, "inner_lr": [30 * params**-0.5 for params in sizes]}
    columns |= {"replicas": [2] * 12, "outer_lr": [0.6] * 12}
    loss = [
        (2 + 40 * n**-0.2) * (1 + 0.01 * math.log2(b / 100 / n**0.5) ** 2) for n, b in zip(sizes, batch, strict=True)
    ]
    fit_hyperparameters(columns | {"loss": loss}).save(tmp_path / "rates.json")
    record = json.loads((tmp_path / "rates.json").read_text())
    if place == "joint":
        record["joint"]["inner_lr"]["coefficients"]["params"] = -0.4
    elif place == "independent":
        record["independent"]["extra"] = []
    else:
        record[place] = {"optima": [{}], "outer_lr": [[2, -1]], "notes": [3]}[place]
    (tmp_path / "rates.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"rates\.json is damaged"):
        load_hyperparameters(tmp_path / "rates.json")


def test_the_best_runs_keep_their_tokens_and_the_notes_of_the_table(tmp_path) -> None:
    runs = [run | {"tokens": 30 * run["params"]} for run in sweep()]
    rates = fit_hyperparameters(read_rows([*runs, runs[0] | {"loss": None}], bad="drop"))
    rates.save(tmp_path / "rates.json")
    for known in (rates, load_hyperparameters(tmp_path / "rates.json")):
        law = fit_law(known.best_runs(), holdout=False)
        assert (law.runs.tokens_per_param.low, law.runs.tokens_per_param.high) == (30, 30)
        assert any("only along tokens = 30 * params" in note for note in law.notes)
        assert any("was left out" in note and "loss is empty" in note for note in law.notes)
