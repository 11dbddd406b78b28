"""The search over sites, replicas, H, codec, overlap, fragments and batch.

pytest tests/plan/test_search.py
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from diloco.errors import BadInput
from diloco.laws import fit_law, read_rows
from diloco.plan.asked import Asked, read_question
from diloco.plan.clock import clock
from diloco.plan.cost import goodput
from diloco.plan.search import ALIKE, SAME_LOSS, pareto, search, tabulate

FEW = {"batch_tokens": "1048576", "sync_every": 100, "fragments": 1}


def ask(**words):
    base = {"params": "1b", "tokens": "20b", "sites": "2x8xh100", "between": "200mbit,20ms"}
    return read_question(Asked(**{key: value for key, value in (base | words).items() if value is not None}))


@pytest.fixture(scope="module")
def law(tmp_path_factory):
    """loss = 1.7 + 400 params^-0.34 replicas^0.02 sync_every^0.005 + 410 tokens^-0.28, which knows tokens and H."""
    grid = [a.ravel() for a in np.meshgrid([1e8, 1e9, 3e9], [10, 20, 80], [1, 2, 4], [10, 100])]
    params, per_param, replicas, sync_every = grid
    loss = 1.7 + 400 * params**-0.34 * replicas**0.02 * sync_every**0.005 + 410 * (params * per_param) ** -0.28
    columns = {"params": params, "tokens": params * per_param, "replicas": replicas, "sync_every": sync_every}
    form = "A*params^a*replicas^b*sync_every^c + B*tokens^d + floor"
    path = tmp_path_factory.mktemp("law") / "law.json"
    fit_law(read_rows(columns | {"loss": loss}), form, holdout=False).save(path)
    return str(path)


@pytest.fixture(scope="module")
def everything():
    return tabulate(ask())


def test_ten_thousand_configurations_are_tried(everything):
    assert len(everything.runs) > 10_000
    assert len({(r.cluster.chips, r.replicas, r.sync_every, r.codec, r.overlap_steps, r.fragments, r.batch_tokens)
                for r in everything.runs}) == len(everything.runs)  # fmt: skip


def test_each_has_the_clock_and_goodput_of_its_run(everything):
    for index in range(0, len(everything.runs), 997):
        run = everything.runs[index]
        assert everything.step_s[index] == pytest.approx(clock(run).step_s)
        assert everything.goodput[index] == pytest.approx(goodput(run))
        assert everything.days[index] == pytest.approx(clock(run).total_s / goodput(run) / 86400)
        usd = run.cluster.usd_per_h * 24 * everything.days[index]
        assert everything.cost_usd[index] == pytest.approx(usd)


def test_pareto_is_that_of_a_plain_loop():
    rows = np.random.default_rng(0).integers(0, 12, (300, 3)).astype(float)
    beaten = [any(np.all(o <= r) and np.any(o < r) for o in rows) for r in rows]
    kept = pareto(*rows.T)
    assert {tuple(rows[i]) for i in kept} == {tuple(r) for r, b in zip(rows, beaten, strict=True) if not b}
    assert len({tuple(rows[i]) for i in kept}) == len(kept)


def test_rows_that_are_alike_count_once():
    assert pareto(np.array([5.0, 5.5, 7.0]), np.array([9.0, 8.5, 3.0]), alike=1.0) == [0, 2]


def test_nothing_tried_beats_the_front_by_more_than_counts_as_alike():
    table, found = tabulate(ask()), search(ask())
    days = [choice.days for choice in found.front]
    assert days == sorted(days)
    for choice in found.front:
        better = (table.loss < choice.loss - 2 * SAME_LOSS) & (table.days < choice.days * (1 - 3 * ALIKE))
        assert not np.any(better & (table.cost_usd < choice.cost_usd * (1 - 3 * ALIKE)))


def test_the_best_by_a_deadline_has_the_least_loss_that_keeps_it(everything):
    deadline = float(np.quantile(everything.days, 0.2))
    best = search(ask(deadline=f"{deadline}d")).best
    allowed = everything.days <= deadline
    assert best.days <= deadline and best.loss <= everything.loss[allowed].min() + SAME_LOSS


def test_a_budget_and_a_deadline_hold_together(everything):
    usd, days = float(np.quantile(everything.cost_usd, 0.3)), float(np.quantile(everything.days, 0.3))
    found = search(ask(budget_usd=f"{usd}", deadline=f"{days}d"))
    assert found.best.cost_usd <= usd and found.best.days <= days
    assert found.goal.startswith("the best loss in ") and " and for $" in found.goal


def test_the_cheapest_way_to_a_loss(everything):
    target = float(np.unique(everything.loss)[1])
    best = search(ask(target_loss=target)).best
    assert best.loss <= target * (1 + 1e-9)
    assert best.cost_usd <= everything.cost_usd[everything.loss <= target].min() * (1 + 2 * ALIKE)


@pytest.mark.parametrize(
    ("goal", "option", "unit"),
    [
        ({"deadline": "1min"}, "--deadline", "d,"),
        ({"budget_usd": "1"}, "--budget-usd", ""),
        ({"target_loss": 1.0}, "--target-loss", ""),
    ],
)
def test_what_nothing_reaches_is_refused_with_the_nearest_that_is(goal, option, unit):
    with pytest.raises(BadInput, match=f"{option} is .* none of the .* configurations tried") as refused:
        search(ask(**FEW, **goal))
    near = str(refused.value).split("give ")[1].split()[0].replace(",", "").removesuffix("d" if unit else "")
    again = {key: (near + "d" if key == "deadline" else float(near) if key == "target_loss" else near) for key in goal}
    assert search(ask(**FEW, **again)).best is not None


def test_the_nearest_loss_is_no_looser_than_it_must_be(everything):
    with pytest.raises(BadInput) as refused:
        search(ask(target_loss=1.0))
    near = float(str(refused.value).split("give ")[1].split(",")[0])
    least = everything.loss.min()
    assert least <= near <= least + 1e-4


def test_money_is_written_in_plain_numbers():
    with pytest.raises(BadInput, match=r"--budget-usd is 5, .* give [\d,]+, or fewer --tokens"):
        search(ask(tokens="2000t", budget_usd="5", **FEW))


def test_what_the_question_fixes_stays():
    fixed = {"replicas": 4, "sync_every": 60, "codec": "int8", "overlap": 3, "fragments": 6, "batch_tokens": "1m"}
    runs = tabulate(ask(**fixed)).runs
    assert {(r.replicas, r.sync_every, r.codec, r.overlap_steps, r.fragments, r.batch_tokens) for r in runs} == {
        (4, 60, "int8", 3, 6, 1e6)
    }
    assert {len(r.cluster.sites) for r in runs} == {1, 2}


def test_the_plainest_of_those_alike_is_taken():
    """On one site nothing waits, so every H, codec and overlap takes equally long: the law's own H and exact values."""
    best = search(ask(sites="16xh100", between=None, replicas=2, deadline="30d")).best
    assert (best.sync_every, best.codec, best.overlap, best.fragments) == (30, "fp32", 0, 1)


def test_with_a_law_of_tokens_a_run_trains_until_the_deadline(law):
    best = search(ask(law=law, tokens=None, deadline="2d", **FEW)).best
    steps = 2 * 86400 * best.goodput / best.step_s
    assert best.days == pytest.approx(2) and best.tokens == pytest.approx(steps * best.batch_tokens)
    longer = search(ask(law=law, tokens=None, deadline="4d", **FEW)).best
    assert longer.tokens > best.tokens and longer.loss < best.loss
    fixed = search(ask(law=law, deadline="20d", **FEW)).best
    assert fixed.tokens == 20e9 and fixed.days < 20


def test_with_a_law_of_tokens_money_buys_them(law):
    best = search(ask(law=law, tokens=None, budget_usd="1000", **FEW)).best
    assert best.cost_usd == pytest.approx(1000)
    target = search(ask(law=law, tokens=None, target_loss=best.loss, **FEW)).best
    assert target.loss == pytest.approx(best.loss, rel=1e-3) and target.cost_usd <= 1000 * (1 + 2 * ALIKE)


def test_a_loss_under_the_floor_is_out_of_reach(law):
    with pytest.raises(BadInput, match="--target-loss is 1.5"):
        search(ask(law=law, tokens=None, target_loss=1.5, **FEW))


def test_chips_without_a_price_are_searched_by_days(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text('[chip.own]\nmemory = "80GB"\nmemory_bandwidth = "3000 GB/s"\npower_w = 500\n'
                    'peak = { bf16 = "500 TFLOP/s" }\n')  # fmt: skip
    words = {"sites": "2x8xown", "hardware": str(file), **FEW}
    found = search(ask(**words, deadline="30d"))
    assert found.best.cost_usd is None and math.isfinite(found.best.days)
    with pytest.raises(BadInput, match="--price"):
        search(ask(**words, budget_usd="100"))


def test_many_sites_are_tried_in_powers_of_two():
    assert {len(run.cluster.sites) for run in tabulate(ask(sites="6x8xh100", **FEW)).runs} == {1, 2, 4, 6}


def test_how_long_the_runs_are_is_said(law):
    few = FEW | {"codec": "e3m0", "overlap": 1}
    assert search(ask(deadline="10d", **few)).length == "each trains on 20B tokens, as given"
    assert search(ask(deadline="10d", tokens=None, **few)).length == (
        "each trains on 20B tokens, as law paper does not know their effect"
    )
    free = {"law": law, "tokens": None, **few}
    assert "for as long as the limits let it" in search(ask(deadline="10d", **free)).length
    assert "for as long as the loss takes" in search(ask(target_loss=2.6, **free)).length
    assert search(ask(**few)).length == ""
