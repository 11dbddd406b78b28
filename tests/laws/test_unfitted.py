"""Columns that vary unknown to the form: each draws a sentence, all of them together one.

pytest tests/laws/test_unfitted.py
"""

from __future__ import annotations

import numpy as np
import pytest

from diloco.errors import BadInput
from diloco.laws import fit_law, read_rows
from diloco.laws.arguments import speaking_flags

NOISE = np.random.default_rng(0).normal(0, 0.003, 24)


def ladder(**further: object) -> dict[str, object]:
    """24 runs of 1 + 40 params^-0.16 replicas^0.02 with 0.3% noise, and columns beside them."""
    params, replicas = (grid.ravel() for grid in np.meshgrid(np.geomspace(1e7, 3e9, 6), [1.0, 2.0, 4.0, 8.0]))
    loss = (1 + 40 * params**-0.16 * replicas**0.02) * np.exp(NOISE)
    return {"params": params, "replicas": replicas, "loss": loss, **further}


def notes(rows: dict, form: str = "power-floor") -> list[str]:
    return list(fit_law(rows, form, holdout=False).notes)


WARMUP = np.tile([0.0, 100.0, 500.0], 8)
VOCAB = np.repeat([32000.0, 50257.0], 12)[np.random.default_rng(1).permutation(24)]
LR = np.exp(np.random.default_rng(2).normal(-8, 1, 24))


@pytest.mark.parametrize(
    "name, values",
    [("inner_lr", LR), ("batch_tokens", VOCAB), ("outer_lr", LR), ("warmup", WARMUP), ("vocab", VOCAB)],
)
def test_whatever_varies_and_is_not_in_the_form_is_named(name, values) -> None:
    (note,) = notes(ladder(**{name: values}))
    assert note.startswith(f"{name} varies from ") and "counted as noise" in note


def test_a_setting_in_words_is_named_too() -> None:
    (note,) = notes(ladder(norm=["pre", "post", "none"] * 8))
    assert note.startswith("norm varies (pre, post, none)") and "where={'norm': 'pre'}" in note


def test_several_columns_draw_one_sentence() -> None:
    (note,) = notes(ladder(warmup=WARMUP, inner_lr=LR, vocab=VOCAB))
    assert note.startswith("inner_lr (") and "warmup (0 to 500), vocab (" in note and "as in where={'inner_lr'" in note


@pytest.mark.parametrize(
    "further",
    [
        {"seconds": LR},
        {"seed": WARMUP},
        {"index": np.arange(24)},
        {"inner_lr": 3e-3 * ladder()["params"] ** -0.5},
        {"host": [f"node{i}" for i in range(24)]},
        {"lr_end": np.full(24, 1e-5)},
    ],
)
def test_results_counters_names_and_what_follows_the_axes_stay_unsaid(further) -> None:
    assert notes(ladder(**further)) == []


def sweep() -> dict[str, np.ndarray]:
    params, replicas, lr, batch = (
        grid.ravel() for grid in np.meshgrid([1e7, 1e8, 1e9], [1.0, 4.0], [1e-4, 3e-4, 1e-3], [2**15, 2**17, 2**19])
    )
    off = 0.01 * (np.log(lr / 3e-4) ** 2 + np.log2(batch / 2**17) ** 2)
    return {
        **{"params": params, "replicas": replicas, "inner_lr": lr, "batch_tokens": batch},
        "loss": (1 + 40 * params**-0.16) * np.exp(off),
    }


def test_a_sweep_is_pointed_to_its_own_tool() -> None:
    (said,) = [note for note in notes(sweep()) if "sweep" in note]
    assert "3 values of inner_lr, 3 values of batch_tokens" in said and "fit_hyperparameters" in said
    with speaking_flags():
        (said,) = [note for note in notes(sweep()) if "sweep" in note]
    assert "--hyperparameters rates.json" in said and not any("not in the form" in note for note in notes(sweep()))


@pytest.mark.parametrize("form", ["power-floor", "A*tokens^a + floor"])
def test_tokens_that_go_with_params_bind_the_law_to_their_ratio(form) -> None:
    rows = ladder(tokens=20 * ladder()["params"])
    assert any("only along tokens = 20 * params" in note for note in notes(rows, form))
    assert not any("only along" in note for note in notes(rows, "A*params^a*tokens^b + floor"))


@pytest.mark.parametrize(
    "name, values, says",
    [
        ("sync_every", 10 * ladder()["replicas"], "sync_every = 10 * replicas, as in every run"),
        ("sync_every", 10 * ladder()["replicas"] ** 1.5 * np.exp(20 * NOISE), "relation, about sync_every = "),
        ("fragments", 2 * ladder()["replicas"], "fragments = 2 * replicas, as in every run"),
        ("tokens", 40 * ladder()["params"] * ladder()["replicas"], "tokens = 40 * params * replicas, as in every run"),
    ],
)
def test_an_axis_that_moves_with_the_forms_is_never_silent(name, values, says) -> None:
    form = "A*params^a*replicas^b + floor"
    (said,) = [note for note in notes(ladder(**{name: values}), form) if "holds only along" in note]
    assert says in said and "each do was not varied apart" in said
    assert not any("holds only along" in note for note in notes(ladder(), form))


def test_tokens_bind_a_law_of_the_body_too() -> None:
    rows = ladder(params_body=0.8 * ladder()["params"], tokens=40 * ladder()["params"])
    (said,) = [note for note in notes(rows, "A*params_body^a + floor") if "only along" in note]
    assert "tokens = 50 * params_body, as in every run" in said


@pytest.mark.parametrize(
    "name, values, advice",
    [
        ("pct_vs_dp", 3.9 + 100 * NOISE, None),
        ("eval_ppl", np.exp(ladder()["loss"] * (1 + 0.3 * NOISE)), None),
        ("drift", NOISE, None),
        ("z_loss", np.tile([1e-4, 1e-3, 1e-2], 8), "counted as noise; add it, or keep one value with"),
        ("log10_lr", np.tile([-4.0, -3.0, -2.0], 8), "counted as noise; keep one value with"),
        ("warmup", WARMUP, "counted as noise; keep one value with"),
        ("vocab", VOCAB, "counted as noise; add it, or keep one value with"),
    ],
)
def test_what_cannot_be_an_axis_is_not_advised_as_one(name, values, advice) -> None:
    found = [note for note in notes(ladder(**{name: values})) if name in note]
    assert (advice is None and found == []) or advice in found[0]


def test_an_exact_fit_draws_one_sentence_whatever_else_varies() -> None:
    rows = ladder(sync_every=WARMUP + 10, vocab=VOCAB)
    rows["loss"] = 1 + 40 * rows["params"] ** -0.16
    for form in ("power-floor", "A*params^a + floor"):
        (note,) = notes(rows, form)
        assert "exactly" in note


def test_losses_that_are_all_equal_are_called_so() -> None:
    (note,) = notes(ladder(loss=np.full(24, 2.5)))
    assert note.startswith("loss is 2.5 in each of the 24 runs") and "exactly" not in note


# -- two columns of one thing


@pytest.mark.parametrize(
    "both, name",
    [
        (("val_loss", "eval_loss"), "loss"),
        (("loss", "val_loss"), "loss"),
        (("N", "num_params"), "params"),
        (("params", "N"), "params"),
        (("D", "n_tokens"), "tokens"),
    ],
)
def test_two_columns_of_one_thing_are_refused(both, name) -> None:
    table = {"params": [1e7, 1e8], "loss": [3.0, 2.5], "tokens": [1e9, 1e10]}
    table = {key: value for key, value in table.items() if key != name} | {header: [2.0, 3.0] for header in both}
    with pytest.raises(BadInput, match=f"'{both[0]}' and '{both[1]}' are both names of {name}.*rename="):
        read_rows(table)
    assert read_rows(table, rename={name: both[1]}).numbers[name].tolist() == [2.0, 3.0]


def test_runs_may_have_several_names() -> None:
    assert len(read_rows({"run": ["a", "b"], "name": ["c", "d"], "params": [1e7, 1e8], "loss": [3.0, 2.5]})) == 2


def test_a_column_taken_in_place_of_the_one_of_that_name_is_said() -> None:
    rows = read_rows({"params": [1e7, 1e8], "loss": [3.0, 2.5]}, rename={"loss": "params"})
    assert rows.notes == (
        "loss is read from column 'params', as rename={'loss': 'params'} says, and column 'loss' is not used",
    )
