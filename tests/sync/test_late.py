"""Delayed and eager outer gradients (arXiv 2502.12996) against the paper's equations in a plain loop: every replica has
its own theta_m and its own momentum there, and no shared anchor.

pytest tests/sync/test_late.py
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.replicas import Fleet, inner_step, small_model
from support.streaming import GROUPS, NAMES, Case, flat, history_of, inner_optimizer
from torch import Tensor

import diloco

OUTERS = {
    "nesterov": (diloco.Nesterov(0.7, 0.9), 0.7, 0.9, True),
    "heavy ball": (diloco.HeavyBall(0.5, 0.8), 0.5, 0.8, False),
    "sgd": (diloco.SGD(0.9), 0.9, 0.0, False),
    "scheduled": (diloco.Nesterov(diloco.Linear(0.8, 6), 0.9), diloco.Linear(0.8, 6), 0.9, True),
}


@torch.no_grad()
def _outer(theta: Tensor, momentum: Tensor, gradient: Tensor, lr: float, mu: float, nesterov: bool) -> None:
    momentum.mul_(mu).add_(gradient)
    theta.sub_(lr * (gradient + mu * momentum if nesterov else momentum))


Rate = Callable[[int], float]


def plain_late(
    mode: str, replicas: int, case: Case, rate: float | Rate, mu: float, nesterov: bool
) -> tuple[Tensor, Tensor]:
    """Weights after every inner step [T, M, n], and the global weights once every window has been applied [n].

    `rate`: the outer lr, or a function of the number of the round whose gradient is applied.
    """
    models = [small_model(0) for _ in range(replicas)]
    optimizers = [inner_optimizer(m) for m in models]
    weights = [dict(m.named_parameters()) for m in models]

    def copies() -> list[dict[str, Tensor]]:
        return [{n: w[n].detach().clone() for n in NAMES} for w in weights]

    def zeros() -> list[dict[str, Tensor]]:
        return [{n: torch.zeros_like(w[n]) for n in NAMES} for w in weights]

    theta, momentum, before, start = copies(), zeros(), zeros(), copies()
    shared, shared_momentum = copies()[0], zeros()[0]
    history = []

    @torch.no_grad()
    def boundary(p: int, group: list[str]) -> None:
        lr, own_lr = lr_of(max(taken[p], 1)), lr_of(taken[p] + 1)
        taken[p] += 1
        for name in group:
            own = [start[m][name] - weights[m][name] for m in range(replicas)]
            stale = sum(before[m][name] for m in range(replicas)) / replicas
            for m in range(replicas):
                fresh = (own[m] - before[m][name]) / replicas if mode == "eager" else 0.0
                _outer(theta[m][name], momentum[m][name], stale + fresh, lr, mu, nesterov)
                start[m][name].copy_(theta[m][name])
                weights[m][name].copy_(theta[m][name])
                before[m][name].copy_(own[m])
            _outer(shared[name], shared_momentum[name], sum(own) / replicas, own_lr, mu, nesterov)

    last, taken = [0] * case.fragments, [0] * case.fragments
    lr_of = rate if callable(rate) else lambda number: rate
    for t in range(1, case.length + 1):
        for m in range(replicas):
            inner_step(models[m], optimizers[m], m, t - 1)
        for p, group in enumerate(GROUPS[case.fragments]):
            if t >= case.every and (t - p * case.every // case.fragments) % case.every == 0:
                boundary(p, group)
                last[p] = t
        history.append(torch.stack([flat(m) for m in models]))
    for p, group in enumerate(GROUPS[case.fragments]):
        if last[p] < case.length:
            boundary(p, group)
    return torch.stack(history), torch.cat([shared[name].flatten() for name in NAMES])


@pytest.mark.parametrize("outer", OUTERS)
@pytest.mark.parametrize("mode", ["delayed", "eager"])
@pytest.mark.parametrize("replicas, fragments, steps", [(2, 1, 17), (3, 1, 16), (2, 3, 18), (1, 1, 13)])
def test_equals_the_papers_equations(mode: str, outer: str, replicas: int, fragments: int, steps: int) -> None:
    """Within 1e-5 after every inner step and after the end, with the last window open, or just sent."""
    optimizer, *constants = OUTERS[outer]
    case = Case(fragments, 4, steps=steps)
    exchange = diloco.Local(replicas)
    models = [small_model(0) for _ in range(replicas)]
    inner = [inner_optimizer(m) for m in models]
    syncs = [
        diloco.DiLoCo(
            m, o, sync_every=4, outer=optimizer, fragments=GROUPS[fragments], overlap=mode, exchange=exchange
        )
        for m, o in zip(models, inner, strict=True)
    ]  # fmt: skip
    ours = history_of(models, inner, range(replicas), case, lambda: [s.finish() for s in syncs])
    history, shared = plain_late(mode, replicas, case, *constants)
    torch.testing.assert_close(ours[:-1], history, rtol=1e-5, atol=1e-5)
    for m in range(replicas):
        torch.testing.assert_close(ours[-1, m], shared, rtol=1e-5, atol=1e-5)
    assert all(torch.equal(ours[-1, m], ours[-1, 0]) for m in range(replicas))
    assert sum(r.steps for r in syncs[0].rounds if r.fragment == 0) == steps


@pytest.mark.parametrize("mode", ["delayed", "eager"])
def test_the_shared_anchor_is_bit_identical_where_replicas_are_not(mode: str) -> None:
    fleet = Fleet(3, sync_every=4, overlap=mode, codec="e3m0")
    fleet.run(12)
    assert len({s.checksum() for s in fleet.syncs}) == 1
    assert torch.equal(fleet.weights(0), fleet.weights(1)) is (mode == "delayed")


def test_delayed_is_the_anchor_of_the_round_before() -> None:
    """With lr 1: at the second boundary the replicas restart from the mean at the end of the first window."""
    fleet, alone = (
        Fleet(2, sync_every=4, overlap="delayed", outer=diloco.SGD(1.0)),
        Fleet(2, sync_every=100, outer=diloco.SGD(1.0)),
    )  # fmt: skip
    fleet.run(8)
    alone.run(4)
    torch.testing.assert_close(fleet.weights(), (alone.weights(0) + alone.weights(1)) / 2, rtol=1e-6, atol=1e-7)


def test_a_nan_replica_loses_its_window_and_the_others_go_on() -> None:
    for mode in ("delayed", "eager"):
        fleet = Fleet(3, sync_every=4, overlap=mode)

        def poison(m: int, step: int, fleet: Fleet = fleet) -> None:
            if m == 1 and step == 6:
                with torch.no_grad():
                    fleet.models[1].scale.fill_(float("nan"))

        fleet.run(16, each=poison)
        fleet.finish()
        assert [r.left_out for r in fleet.syncs[0].rounds] == [[], [1], [], []]
        assert fleet.weights(1).isfinite().all() and torch.equal(fleet.weights(0), fleet.weights(1))
