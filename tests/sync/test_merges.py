"""Merges in whole rounds, against plain loops over the replicas' weights.

pytest tests/sync/test_merges.py
"""

from __future__ import annotations

import statistics

import pytest
import torch
from support.processes import run_ranks
from torch import Tensor, nn

import diloco

SHAPES = {"a": (30, 20), "b": (17,), "c": ()}


class Model(nn.Module):
    """An embedding, which RDA merges apart, and others."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 5)
        for name, shape in SHAPES.items():
            setattr(self, name, nn.Parameter(torch.randn(shape)))


@torch.no_grad()
def move(model: Model, replica: int, hostile: bool) -> None:
    generator = torch.Generator().manual_seed(100 + replica)
    for p in model.parameters():
        p.add_(torch.randn(p.shape, generator=generator), alpha=1e3 if hostile else 0.1 * (replica + 1))


def make(exchange: object, model: Model, **options: object) -> diloco.DiLoCo:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return diloco.DiLoCo(
        model, optimizer, sync_every=1, hook=False, outer=diloco.SGD(1.0), exchange=exchange, **options
    )  # fmt: skip


def one_round(
    replicas: int, hostile: int | None = None, tokens: list[int] | None = None, **options: object
) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
    """(each replica's outer gradient, their merge), by name, in fp64."""
    exchange, models = diloco.Local(replicas), [Model() for _ in range(replicas)]
    syncs = [make(exchange, m, **options) for m in models]
    start = {n: p.detach().double().clone() for n, p in models[0].named_parameters()}
    for m, model in enumerate(models):
        move(model, m, m == hostile)
        if tokens:
            syncs[m].count_tokens(tokens[m])
    own = [{n: start[n] - p.detach().double() for n, p in model.named_parameters()} for model in models]
    for sync in syncs:
        sync.step()
    assert len({s.checksum() for s in syncs}) == 1
    return own, {n: start[n] - p.detach().double() for n, p in models[-1].named_parameters()}


def norm(tensors: dict[str, Tensor]) -> float:
    return sum(v.square().sum().item() for v in tensors.values()) ** 0.5


def near(ours: dict[str, Tensor], plain: dict[str, Tensor], atol: float = 1e-5) -> None:
    for name, value in plain.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-5, atol=atol)


@pytest.mark.parametrize("replicas, dropped", [(3, 1), (4, 1), (5, 1), (8, 2)])
@pytest.mark.parametrize("fragments", [None, "balanced:2"])
def test_trimmed(replicas: int, dropped: int, fragments: str | None) -> None:
    """A quarter of the values at each end of every coordinate, at least one, is left out."""
    offsets = [0, 0] if fragments else None
    own, merged = one_round(replicas, hostile=1, merge="trimmed", fragments=fragments, offsets=offsets)
    kept = {
        n: torch.stack([o[n] for o in own]).sort(0).values[dropped : replicas - dropped].mean(0) for n in own[0]
    }  # fmt: skip
    near(merged, kept)


@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_clipped(replicas: int) -> None:
    """To half the lower median of the norms."""
    own, merged = one_round(replicas, hostile=1, merge="clipped:0.5")
    bound = 0.5 * statistics.median_low([norm(o) for o in own])
    plain = {n: sum(o[n] * min(1.0, bound / norm(o)) for o in own) / replicas for n in own[0]}
    near(merged, plain, atol=1e-4)


@pytest.mark.parametrize("tokens", [None, [5, 1, 3]])
def test_rda(tokens: list[int] | None) -> None:
    """FACTS' equation over all but the embedding, which takes the weighted mean (arXiv 2604.21428)."""
    own, merged = one_round(3, tokens=tokens, merge="rda")
    weights = [w / sum(tokens or [3]) for w in tokens or [1, 1, 1]]
    body = [{n: v for n, v in o.items() if n != "embed.weight"} for o in own]
    radius = sum(w * norm(b) for w, b in zip(weights, body, strict=True))
    unit = {n: sum(w * b[n] / norm(b) for w, b in zip(weights, body, strict=True)) for n in body[0]}
    plain = {n: v * radius / norm(unit) for n, v in unit.items()}
    plain["embed.weight"] = sum(w * o["embed.weight"] for w, o in zip(weights, own, strict=True))
    near(merged, plain)


def test_rda_is_by_fragment() -> None:
    own, merged = one_round(3, merge="rda", fragments=[["embed", "a"], ["b", "c"]], offsets=[0, 0])
    for names in (["a"], ["b", "c"]):
        body = [{n: o[n] for n in names} for o in own]
        unit = {n: sum(b[n] / norm(b) for b in body) / 3 for n in names}
        near(merged, {n: v * sum(map(norm, body)) / 3 / norm(unit) for n, v in unit.items()})


@pytest.mark.parametrize("merge", ["trimmed", "clipped:1.0", "rda", "tokens"])
@pytest.mark.parametrize("codec", ["int8", "e3m0"])
def test_merges_of_coded_outer_gradients_are_near_those_of_plain_ones(merge: str, codec: str) -> None:
    tokens = [1, 2, 3, 4]
    _, plain = one_round(4, tokens=tokens, merge=merge)
    _, coded = one_round(4, tokens=tokens, merge=merge, codec=codec)
    flat = [torch.cat([t[n].flatten() for n in sorted(t)]) for t in (plain, coded)]
    assert torch.nn.functional.cosine_similarity(*flat, dim=0) > (0.999 if codec == "int8" else 0.95)


GLOO = ["trimmed", "clipped:0.5", "rda", "tokens"]


def _merged(rank: int) -> list[str]:
    found = []
    for merge in GLOO:
        for codec in ("fp32", "int4"):
            model = Model()
            sync = make(diloco.Collective(), model, merge=merge, codec=codec)
            move(model, rank, rank == 1)
            sync.count_tokens(rank + 1)
            sync.step()
            found.append(sync.checksum())
    return found


def test_processes_equal_one_process_to_the_bit_report_101() -> None:
    checksums = []
    for merge in GLOO:
        for codec in ("fp32", "int4"):
            exchange, models = diloco.Local(3), [Model() for _ in range(3)]
            syncs = [make(exchange, m, merge=merge, codec=codec) for m in models]
            for m, sync in enumerate(syncs):
                move(models[m], m, m == 1)
                sync.count_tokens(m + 1)
                sync.step()
            checksums.append(syncs[0].checksum())
    assert run_ranks(3, _merged) == [checksums] * 3
