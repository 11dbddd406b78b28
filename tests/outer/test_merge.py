"""Merging against numpy and plain loops: sums, weights, outliers, directions, replicas left out.

pytest tests/outer/test_merge.py
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from diloco.errors import BadInput
from diloco.outer.merge import MERGES, RDA, ByTokens, Clipped, Mean, Merge, Trimmed, get_merge
from diloco.outer.step import norm_of

SPECS = ["mean", "tokens", "trimmed:0.25", "clipped:1.0", "rda"]


def outer_gradients(count: int, elements: int = 7, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(elements, generator=generator, dtype=torch.float64) for _ in range(count)]


def run(rule: Merge, parts: list[Tensor], tokens: list[float] | None = None, alive: list[bool] | None = None) -> Tensor:
    """What a round does with a rule: weigh, combine those that take part, finish."""
    tokens, alive = tokens or [0.0] * len(parts), alive or [True] * len(parts)
    norms = [float(p.norm()) for p in parts]
    weights = rule.weights(tokens, norms, alive)
    merged = rule.combine([w * p for w, p in zip(weights, parts, strict=True) if w > 0])
    rule.finish(merged, float(merged.norm()), tokens, norms, alive)
    return merged


# -- mean and tokens


@pytest.mark.parametrize("alive", [[True], [True, True, True], [True, False, True, True]])
@pytest.mark.parametrize("rule", ["mean", "tokens"])
def test_merge_equals_numpy_report_6(rule: str, alive: list[bool]) -> None:
    """The divisor is the number of replicas, never the number of elements (report 13) and never applied twice."""
    parts, tokens = outer_gradients(len(alive)), [100.0 * (m + 1) for m in range(len(alive))]
    raw = np.array([a * (t if rule == "tokens" else 1) for a, t in zip(alive, tokens, strict=True)], dtype=float)
    expected = (np.stack([p.numpy() for p in parts]) * raw[:, None]).sum(0) / raw.sum()
    np.testing.assert_allclose(run(get_merge(rule), parts, tokens, alive).numpy(), expected, rtol=1e-12)


def test_equal_tokens_are_the_mean_to_the_bit() -> None:
    assert ByTokens().weights([333.0] * 7, [], [True] * 7) == Mean().weights([], [], [True] * 7) == [1.0] * 7


def test_a_live_replica_without_tokens_has_no_say() -> None:
    """Nor does it change the divisor: weights have mean 1 over those that take part."""
    assert ByTokens().weights([1, 0, 3, 9], [], [True, True, True, False]) == [0.5, 0, 1.5, 0]
    parts = outer_gradients(2)
    torch.testing.assert_close(run(ByTokens(), parts, [0.0, 50.0]), parts[1])


def test_tokens_need_tokens() -> None:
    with pytest.raises(BadInput, match="count_tokens"):
        ByTokens().weights([0, 0, 5], [], [True, True, False])


def test_linear_rules_sum_in_replica_order_and_then_divide() -> None:
    """To the bit, so that an all-reduce that sums in rank order gives the same."""
    rows = [torch.tensor([1e8, 0.1]), torch.tensor([1.0, 0.2]), torch.tensor([-1e8, 0.3])]
    for rule in (Mean(), ByTokens(), Clipped(), RDA()):
        assert torch.equal(rule.combine(rows), (rows[0] + rows[1] + rows[2]) / 3)
        assert rule.linear and torch.equal(rows[0], torch.tensor([1e8, 0.1]))


# -- trimmed


@pytest.mark.parametrize(
    ("fraction", "live", "dropped"),
    [(0.25, 1, 0), (0.25, 2, 0), (0.25, 3, 1), (0.25, 4, 1), (0.25, 7, 1), (0.25, 8, 2), (0.49, 3, 1), (0.49, 4, 1),
     (0.49, 5, 2), (0.01, 9, 1), (0.29, 100, 29)],
)  # fmt: skip
def test_trimmed_equals_a_sort_of_each_coordinate(fraction: float, live: int, dropped: int) -> None:
    assert Trimmed(fraction).dropped(live) == dropped
    parts = outer_gradients(live, elements=31)
    parts[0][:5] = parts[-1][:5]  # ties
    expected = [
        math.fsum(sorted(float(p[i]) for p in parts)[dropped : live - dropped]) / (live - 2 * dropped)
        for i in range(31)
    ]
    kept = [p.clone() for p in parts]
    torch.testing.assert_close(run(Trimmed(fraction), parts), torch.tensor(expected, dtype=torch.float64))
    assert all(torch.equal(a, b) for a, b in zip(parts, kept, strict=True)), "the contributions are only read"


def test_trimmed_leaves_out_the_dead() -> None:
    parts = outer_gradients(4)
    parts[1].fill_(math.nan)
    expected = torch.stack([parts[0], parts[2], parts[3]]).median(0).values
    torch.testing.assert_close(run(Trimmed(), parts, alive=[True, False, True, True]), expected)


# -- clipped


@pytest.mark.parametrize(
    ("norms", "alive", "weights"),
    [
        ([1, 2, 10], [True] * 3, [1, 1, 0.2]),
        ([1, 2, 10], [True, True, False], [1, 0.5, 0]),
        ([1, 100], [True] * 2, [1, 0.01]),
        ([1, 2, 3, 4], [True] * 4, [1, 1, 2 / 3, 0.5]),
        ([5], [True], [1]),
        ([0, 0, 7], [True] * 3, [1, 1, 0]),
        ([0, 0], [True] * 2, [1, 1]),
        ([math.nan, 1, 1], [False, True, True], [0, 1, 1]),
        ([1, 2], [False, False], [0, 0]),
    ],
)
def test_clipped_weights(norms: list[float], alive: list[bool], weights: list[float]) -> None:
    assert Clipped().weights([], norms, alive) == pytest.approx(weights)


def test_clipped_bounds_every_contribution() -> None:
    parts = [p * (m + 1) for m, p in enumerate(outer_gradients(5))]
    norms = [float(p.norm()) for p in parts]
    weights = Clipped(1.5).weights([], norms, [True] * 5)
    assert all(w * n <= 1.5 * sorted(norms)[2] * (1 + 1e-12) for w, n in zip(weights, norms, strict=True))
    assert all(w == 1 for w, n in zip(weights, norms, strict=True) if n <= 1.5 * sorted(norms)[2])


@pytest.mark.parametrize("rule", ["trimmed", "clipped"])
@pytest.mark.parametrize("fault", [100.0, -1.0])
def test_one_hostile_replica_does_not_move_the_merge_far_report_135(rule: str, fault: float) -> None:
    """Gradient descent of 5 replicas on noisy copies of |x - 1|^2 / 2, one of which sends 100x or with its sign
    flipped."""
    x, generator = torch.zeros(50, dtype=torch.float64), torch.Generator().manual_seed(0)
    for _ in range(60):
        noise = 0.1 * torch.randn(5, 50, generator=generator, dtype=torch.float64)
        parts = [x - 1 + n for n in noise]
        parts[2] = fault * parts[2]
        x = x - 0.2 * run(get_merge(rule), parts)
    assert (x - 1).square().mean() < 0.02


def test_the_plain_mean_does_break_report_135() -> None:
    parts = [torch.ones(3)] * 4 + [torch.full((3,), -100.0)]
    assert (run(Mean(), parts) < 0).all() and (run(Trimmed(), parts) == 1).all()


# -- radial-directional averaging


def rda_by_hand(parts: list[Tensor], w: list[float]) -> list[float]:
    norms = [math.sqrt(math.fsum(float(x) ** 2 for x in p)) for p in parts]
    radius = math.fsum(a * n for a, n in zip(w, norms, strict=True)) / math.fsum(w)
    units = [[float(x) / n if n else 0.0 for x in p] for p, n in zip(parts, norms, strict=True)]
    mean = [math.fsum(a * u[i] for a, u in zip(w, units, strict=True)) / math.fsum(w) for i in range(len(parts[0]))]
    length = math.sqrt(math.fsum(x * x for x in mean))
    return [radius * x / length if length else 0.0 for x in mean]


@pytest.mark.parametrize("tokens", [[0.0] * 4, [10.0, 30.0, 5.0, 7.0], [10.0, 0.0, 5.0, 7.0]])
@pytest.mark.parametrize("zeroed", [[], [2], [0, 1, 2], [0, 1, 2, 3]])
def test_rda_equals_its_definition(tokens: list[float], zeroed: list[int]) -> None:
    parts = [p * 3.0**m for m, p in enumerate(outer_gradients(4))]
    for m in zeroed:
        parts[m].zero_()
    expected = torch.tensor(rda_by_hand(parts, tokens if any(tokens) else [1.0] * 4), dtype=torch.float64)
    torch.testing.assert_close(run(RDA(), parts, tokens), expected, rtol=1e-12, atol=1e-14)


def test_rda_keeps_length_where_the_mean_shrinks() -> None:
    east, north = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 2.0])
    assert run(RDA(), [east, north]).norm() == pytest.approx(2)
    assert run(Mean(), [east, north]).norm() == pytest.approx(2**0.5)
    assert run(RDA(), [east, -east]).tolist() == [0, 0], "unit(0) is 0"


def test_rda_leaves_out_the_dead_and_keeps_a_lone_replica() -> None:
    parts = outer_gradients(3)
    parts[1].fill_(math.inf)
    expected = torch.tensor(rda_by_hand([parts[0], parts[2]], [1.0, 1.0]), dtype=torch.float64)
    torch.testing.assert_close(run(RDA(), parts, alive=[True, False, True]), expected)
    torch.testing.assert_close(run(RDA(), parts, alive=[True, False, False]), parts[0])


def test_rda_sends_elements_of_natural_size_and_embeddings_as_they_are() -> None:
    """A contribution has the norm of a typical outer gradient, which fp16 can hold; embeddings are a plain mean."""
    tokens, norms, alive = [10.0, 30.0, 0.0], [1e-3, 3e-3, math.nan], [True, True, False]
    weights = RDA().weights(tokens, norms, alive)
    assert [w * n for w, n in zip(weights[:2], norms, strict=False)] == pytest.approx([0.5 * 2.5e-3, 1.5 * 2.5e-3])
    assert RDA().weights(tokens, norms, alive, embedding=True) == [0.5, 1.5, 0]
    assert RDA.embeddings_apart and RDA.whole and RDA.needs_norms and RDA.linear


def test_norm_of_a_fragment_longer_than_a_slice() -> None:
    merged = torch.ones((1 << 20) + 3)
    assert norm_of(merged) == pytest.approx(len(merged) ** 0.5, rel=1e-12)
    RDA().finish(merged, norm_of(merged), [0.0], [5.0], [True])
    assert merged.double().norm().item() == pytest.approx(5, rel=1e-6)


# -- all rules


@pytest.mark.parametrize("spec", SPECS)
def test_one_replica_is_its_own_merge_and_no_replica_has_no_weight(spec: str) -> None:
    rule, (part,) = get_merge(spec), outer_gradients(1)
    torch.testing.assert_close(run(rule, [part], [50.0]), part)
    assert rule.weights([5.0, 5.0], [1.0, 1.0], [False, False]) == [0, 0]
    with pytest.raises(ValueError, match="no replica takes part"):
        rule.combine([])


@pytest.mark.parametrize("spec", SPECS)
def test_agreeing_replicas_merge_to_what_they_agree_on(spec: str) -> None:
    rule, (part,) = get_merge(spec), outer_gradients(1)
    torch.testing.assert_close(run(rule, [part] * 5, [50.0] * 5), part)
    still = torch.zeros(3)
    assert run(rule, [still] * 3, [50.0] * 3).tolist() == [0, 0, 0]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("norms", [[0.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 1.0, 2.0]])
def test_somebody_always_takes_part(spec: str, norms: list[float]) -> None:
    """A divisor of 0 is impossible while any replica is alive."""
    for tokens in ([1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]):
        weights = get_merge(spec).weights(tokens, norms, [True] * 3)
        assert any(w > 0 for w in weights) and all(math.isfinite(w) for w in weights)


# -- specs


def test_specs_are_canonical() -> None:
    assert [get_merge(spec).name for spec in SPECS] == SPECS
    assert [get_merge(name).name for name in MERGES] == SPECS
    assert get_merge(" Trimmed:.1 ") == Trimmed(0.1) and get_merge("clipped:2") == Clipped(2.0) != Clipped(3.0)
    assert [get_merge(name).least_replicas for name in MERGES] == [1, 1, 3, 1, 1]
    assert [name for name in MERGES if not get_merge(name).linear] == ["trimmed"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("median", "merge is 'median': did you mean 'mean'"),
        ("xyz", "merge is 'xyz': give one of mean, tokens, trimmed, clipped, rda"),
        ("trimed:0.1", "did you mean 'trimmed'"),
        ("mean:2", "mean takes no value, give 'mean'"),
        ("trimmed:half", "must be a number, as in 'trimmed:0.25'"),
        ("trimmed:", "must be a number"),
        ("trimmed:0.5", "must lie between 0 and 0.5"),
        ("trimmed:0", "must lie between 0 and 0.5"),
        ("trimmed:nan", "must lie between 0 and 0.5"),
        ("clipped:-1", "the bound must be a number above 0"),
        ("clipped:inf", "the bound must be a number above 0"),
    ],
)
def test_bad_specs_are_refused_with_the_way_out(spec: str, message: str) -> None:
    with pytest.raises(BadInput) as refusal:
        get_merge(spec)
    assert message in str(refusal.value) and "merge is '" in str(refusal.value)
