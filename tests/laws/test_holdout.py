"""The hold-out where runs were left out of the fit: neither they nor the law itself decide how far off the law is.

pytest tests/laws/test_holdout.py
"""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest

from diloco.laws import Form, compare_forms, fit_law, load_law, recommend
from diloco.laws.figures import figures
from diloco.laws.holdout import errors_pct
from diloco.laws.misfits import doubtful, misfits
from diloco.laws.published import paper_rows

FORM = "A*params^a*replicas^b + floor"
SIZES = np.geomspace(1e7, 3e9, 6)


def truth(params: np.ndarray, replicas: np.ndarray) -> np.ndarray:
    return 1 + 40 * params**-0.16 * replicas**0.02


def ladder(bad: tuple[int, ...] = (), factor: float = 1.3) -> dict[str, np.ndarray]:
    """Six sizes, four runs each, sizes ascending; runs `bad` are `factor` off."""
    params, replicas = (grid.ravel() for grid in np.meshgrid(SIZES, [1.0, 2.0, 4.0, 8.0], indexing="ij"))
    loss = truth(params, replicas) * np.exp(0.003 * np.random.default_rng(5).standard_normal(24))
    loss[list(bad)] *= factor
    return {"params": params, "replicas": replicas, "loss": loss}


@pytest.mark.parametrize("bad, factor", [((22,), 1.3), ((20, 22), 1.15), ((18,), 3.0), ((17, 22), 1 / 1.3)])
def test_the_error_is_the_clean_ladders_without_the_bad_runs(bad, factor) -> None:
    clean, spoilt = fit_law(ladder(), FORM), fit_law(ladder(bad, factor), FORM)
    assert spoilt.holdout.set_aside == bad and np.flatnonzero(spoilt.runs.weight == 0).tolist() == list(bad)
    for before, after in zip(clean.holdout.splits, spoilt.holdout.splits, strict=True):
        seen = [run for run in bad if run in after.runs]
        assert (after.set_aside, after.tested) == (len(seen), before.tested - len(seen))
        expected = np.abs(errors_pct(before, clean.runs.target, seen)).mean()
        assert after.mean_error_pct == pytest.approx(expected, abs=0.3)
        if len(seen) == len(bad):  # nothing bad was trained on, so that both laws are one
            assert after.mean_error_pct == pytest.approx(expected, rel=1e-6)
            with_all = np.abs(errors_pct(after, spoilt.runs.target)).mean()
            assert after.mean_error_with_all_pct == pytest.approx(with_all) and with_all > expected + 1
            assert after.inside_share == before.inside_share == 1


@pytest.mark.parametrize("bad", [(20, 22), (17, 22)])
def test_both_errors_and_how_many_runs_are_in_one_sentence(bad) -> None:
    """Over all splits: the first of them alone does not see run 17."""
    law = fit_law(ladder(bad), FORM)
    (said,) = [note for note in law.notes if "hold-out" in note]
    assert said.startswith(f"the hold-out sets aside 2 of 24 rows (row {bad[0] + 1}, row 23), which the fit left out: ")
    assert f"over its 3 splits the law is {law.holdout.error_pct:.2g}% off the other larger runs" in said
    with_all = np.mean([split.mean_error_with_all_pct for split in law.holdout.splits])
    assert said.endswith(f"and {with_all:.1f}% with those")
    assert not any("do not trust" in note or "the form is wrong" in note for note in law.notes)


@pytest.mark.parametrize("sizes, factor", [(3, 1.04), (2, 1.05)])
def test_a_law_is_tested_where_it_fails_along_another_axis(sizes, factor, tmp_path) -> None:
    """At 8 replicas the largest sizes are worse in truth: what a fit leaves out there is no accident."""
    bad = tuple(range(23, 23 - 4 * sizes, -4))[::-1]
    law = fit_law(ladder(bad, factor), FORM)
    assert np.flatnonzero(law.runs.weight == 0).tolist() == list(bad) and law.holdout.set_aside == ()
    assert law.holdout.error_pct > 2 * fit_law(ladder(), FORM).holdout.error_pct
    said = f"all {sizes} runs that the fit left out have replicas 8: the law may be what is wrong there, not the runs"
    assert said in law.notes
    law.save(tmp_path / "law.json")
    for known in (law, load_law(tmp_path / "law.json")):
        assert said in known.predict(params=1e9, replicas=8).warnings
        assert said in known.predict(params=1e9, replicas=16).warnings and said in recommend(known, 1e9, 8).warnings
        assert said not in known.predict(params=1e9, replicas=4).warnings


@pytest.mark.parametrize("bad", [(23,), (3, 22), (0, 13, 22), (2, 9)])
def test_runs_here_and_there_are_no_pattern(bad) -> None:
    law = fit_law(ladder(bad), FORM)
    assert law.holdout.set_aside == bad and law.misfits == ()


def test_where_runs_left_out_lie_together() -> None:
    params, replicas = (grid.ravel() for grid in np.meshgrid(SIZES, [1.0, 2.0, 4.0, 8.0], indexing="ij"))
    columns = {"params": params, "replicas": replicas}
    (one,) = misfits("params", columns, [0, 4, 8, 12])
    assert (one.axis, one.level, one.runs, one.of) == ("replicas", 1.0, (0, 4, 8, 12), 4)
    assert one.holds(1) and one.holds(0.5) and not one.holds(2)
    (middle,) = misfits("params", columns, [2, 6, 10, 14, 18, 23])
    assert str(middle).startswith("5 of the 6 runs that the fit left out have replicas 4: ")
    assert middle.holds(4) and not middle.holds(8)
    alone = {"params": np.geomspace(1e7, 1e9, 12)}
    (far,) = misfits("params", alone, [9, 10, 11])
    assert str(far).startswith("all 3 runs that the fit left out have params 4.329e+08 or more: ") and far.holds(1e12)
    assert doubtful("params", alone, [9, 10, 11]) == {9, 10, 11} and doubtful("params", alone, [3, 9]) == set()


@pytest.mark.parametrize("shape", [(6, 2, 2), (6, 4, 2), (6, 4, 1)])
@pytest.mark.parametrize("bad", [2, 3, 4])
def test_bad_runs_anywhere_are_hardly_ever_a_pattern(shape, bad) -> None:
    axes = (np.geomspace(2e7, 2e9, shape[0]), 2.0 ** np.arange(shape[1]), 30.0 * 3 ** np.arange(shape[2]))
    grid = [values.ravel() for values in np.meshgrid(*axes, indexing="ij")]
    columns = dict(zip(("params", "replicas", "sync_every"), grid, strict=True))
    random = np.random.default_rng(bad)
    draws = [random.choice(grid[0].size, bad, replace=False).tolist() for _ in range(100)]
    assert sum(bool(misfits("params", columns, draw)) for draw in draws) <= 5
    named = {run for misfit in misfits("params", columns, draws[0]) for run in misfit.runs}
    assert doubtful("params", columns, draws[0]) == named


@pytest.mark.parametrize("bad", [(3, 22), (20, 21, 23), (15, 19, 23), (7, 15, 21, 23), (22, 23)])
def test_what_a_note_doubts_is_not_set_aside_and_the_other_way_round(bad) -> None:
    law = fit_law(ladder(bad, 1.06), FORM)
    left_out = {*np.flatnonzero(law.runs.weight == 0).tolist()}
    doubted = {run for misfit in law.misfits for run in misfit.runs}
    assert left_out == {*bad} and left_out - {*law.holdout.set_aside} == doubted
    assert any("all the same: there the law may be what is wrong" in note for note in law.notes) == bool(doubted)


def test_three_bad_runs_at_one_level_of_many_are_named() -> None:
    params, replicas = (grid.ravel() for grid in np.meshgrid(np.geomspace(3e7, 3e9, 6), [1, 2, 4, 8.0]))
    loss = (36 * params**-0.155 * replicas**0.0187 + 1.03) * np.exp(0.003 * np.random.default_rng(3).normal(size=24))
    loss[(replicas == 8) & (params > 2e8)] *= 1.04
    law = fit_law({"params": params, "replicas": replicas, "loss": loss})
    assert [misfit.level for misfit in law.misfits] == [8.0] and law.holdout.set_aside == ()


def test_a_clean_ladder_sets_nothing_aside() -> None:
    law = fit_law(ladder(), FORM)
    assert law.holdout.set_aside == () and not any("set" in note for note in law.notes)
    assert all(split.mean_error_pct == split.mean_error_with_all_pct for split in law.holdout.splits)


@pytest.mark.parametrize("bad", [(21, 22, 23), (20, 21, 23)])
def test_a_law_that_leaves_most_of_the_largest_size_out_is_tested_on_it(bad) -> None:
    """There the law may be what is wrong: setting the runs aside would hide that it cannot extrapolate."""
    law = fit_law(ladder(bad, 1.3), FORM)
    assert np.flatnonzero(law.runs.weight == 0).tolist() == list(bad) and law.holdout.set_aside == ()
    first = law.holdout.splits[0]
    assert first.set_aside == 0 and first.mean_error_pct > 15 and first.inside_share <= 0.25
    assert any(note.startswith(f"the hold-out counts {len(bad)} of 24 rows (row") for note in law.notes)


@pytest.mark.parametrize("place, counts", [(9, True), (8, False), (7, False)])
def test_one_run_a_size(place, counts) -> None:
    """The largest run is all the test there is at its size; one with a run beyond it that the law fits is set aside."""
    params = np.geomspace(1e7, 1e10, 10)
    loss = truth(params, np.ones(10)) * np.exp(0.003 * np.random.default_rng(1).standard_normal(10))
    loss[place] *= 1.2
    law = fit_law({"params": params, "loss": loss}, "A*params^a + floor")
    assert np.flatnonzero(law.runs.weight == 0).tolist() == [place]
    assert law.holdout.set_aside == (() if counts else (place,))
    assert max(split.mean_error_pct for split in law.holdout.splits) > 5 or not counts
    assert any("which the fit left out, all the same: nothing else was run at the largest" in n for n in law.notes) == (
        counts
    )


def test_one_bad_run_at_the_far_corner_is_set_aside() -> None:
    law = fit_law(ladder((23,)), FORM)
    assert law.holdout.set_aside == (23,) and not any("most runs" in note or "counts" in note for note in law.notes)


def test_forms_are_compared_as_on_the_clean_ladder() -> None:
    clean, spoilt = compare_forms(ladder()), compare_forms(ladder((22,)))
    assert spoilt.set_aside == (22,)
    assert [law.form.name for law in spoilt.laws] == [law.form.name for law in clean.laws]
    for name, score in spoilt.scores.items():
        assert score == pytest.approx(clean.scores[name], rel=0.15)
    assert "power" not in [law.form.name for law in spoilt.best.alternatives]
    line = next(line for line in spoilt.table() if line["form"] == spoilt.best.form.name)
    assert line["largest_out_error_pct"] == pytest.approx(spoilt.best.holdout.splits[0].mean_error_pct)


def test_a_form_does_not_choose_the_runs_that_it_is_ranked_by() -> None:
    """It does not know replicas and leaves those at 8 out, which are right: the other forms keep them in."""
    rows = ladder()
    rows["loss"][3::4] *= 1.1
    forms = [Form("blind", "A*params^a + floor"), Form("sees", "A*params^a*replicas^(b*replicas) + floor")]
    found = compare_forms(rows, forms)
    blind = next(law for law in found.laws if law.form.name == "blind")
    assert blind.holdout.set_aside == (3, 7, 11, 15, 19, 23) and found.set_aside == ()
    assert found.best.form.name == "sees" and found.scores["blind"] > 1.5 * blind.holdout.error_pct


def test_an_interval_beyond_any_number_raises_no_warning_and_is_read_back(tmp_path) -> None:
    """A break in six sizes, of which the largest are held out, is hardly determined at all."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        law = fit_law(paper_rows(), "broken", loss="huber")
        assert max(end for split in law.holdout.splits for end in split.high) == np.inf
        law.save(tmp_path / "law.json")
        assert load_law(tmp_path / "law.json").holdout == law.holdout
        json.dumps(figures(law), allow_nan=False)


def test_forms_share_the_runs_of_every_figure_and_say_where_their_own_hold_out_differs() -> None:
    """One form knows nothing of replicas and sets aside the runs at 8, which the other fits and both are judged by."""
    rows = ladder()
    rows["loss"][3::4] *= 1.1
    forms = [Form("blind", "A*params^a + floor"), Form("sees", "A*params^a*replicas^(b*replicas) + floor")]
    found = compare_forms(rows, forms)
    for law, line in zip(found.laws, found.table(), strict=True):
        split = law.holdout.splits[0]
        measured = law.runs.target[list(split.runs)]
        inside = (np.array(split.low) <= measured) & (measured <= np.array(split.high))
        assert line["largest_out_inside_share"] == pytest.approx(inside.mean())
        assert line["largest_out_error_pct"] == pytest.approx(
            np.mean(100 * np.abs(np.array(split.predicted) / measured - 1))
        )
        said = [note for note in law.notes if note.startswith("the comparison ranks this form by a hold-out error of ")]
        assert len(said) == (law.form.name == "blind")
    assert found.laws[1].holdout.splits[0].inside_share > found.table()[1]["largest_out_inside_share"]
    assert "the comparison counts row " in said[0] and "which most forms keep in their own" in said[0]
