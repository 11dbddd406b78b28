"""What cannot work is refused when `DiLoCo` is built, in one sentence with the nearest values that can.

pytest tests/sync/test_refusals.py
"""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from support.processes import run_ranks
from support.replicas import small_model
from torch import nn

import diloco


def build(exchange: object = None, **options: object) -> diloco.DiLoCo:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return diloco.DiLoCo(model, optimizer, exchange=exchange, **{"sync_every": 5, **options})


@pytest.mark.parametrize(
    "options, message",
    [
        ({"overlap": 5}, "overlap is 5 but the shortest sync interval is 5 steps: give a whole number from 0 to 4"),
        ({"overlap": -1}, "overlap is -1 but .* from 0 to 4"),
        ({"overlap": 2.5}, "overlap is 2.5 but .* from 0 to 4"),
        ({"overlap": True}, "overlap is True but .* from 0 to 4"),
        ({"overlap": None}, "overlap is None but .* from 0 to 4"),
        ({"overlap": 1, "sync_every": 1}, "overlap is 1 but the shortest sync interval is 1 steps: .* 0 to 0"),
        (
            {"overlap": 7, "sync_every": diloco.Tapered(10, ((50, 7),))},
            "overlap is 7 but the shortest sync interval is 7 steps: .* 0 to 6",
        ),
        ({"overlap": "late"}, "overlap is 'late': give a whole number of inner steps, or delayed or eager"),
        ({"overlap": 2, "mixing": 1.5}, "mixing is 1.5: give .* a number from 0 to 1"),
        ({"overlap": 2, "mixing": -0.1}, "mixing is -0.1"),
        ({"overlap": 2, "mixing": "half"}, "mixing is 'half'"),
        ({"overlap": 2, "mixing": float("nan")}, "mixing is nan"),
        ({"overlap": "eager", "outer": diloco.Adam()}, "overlap is 'eager', .* .SGD, .* or overlap='delayed'"),
        ({"overlap": "eager", "outer": diloco.Nesterov(clip=1.0)}, "overlap is 'eager', .* without clip"),
        ({"codec": "e3mo"}, "codec is 'e3mo': give 'e3m0'"),
        ({"codec": "int7"}, "codec is 'int7': give 'int"),
        ({"codec": "topk:2"}, "codec is 'topk:2': density .* give 'topk:1.0:8'"),
        ({"codec": "fp32+ef"}, "codec is 'fp32[+]ef': .* give 'fp32'"),
        ({"merge": "average"}, "merge is 'average': .*give one of mean, tokens, trimmed, clipped, rda"),
        ({"merge": "trimed"}, "merge is 'trimed': did you mean 'trimmed'"),
        ({"merge": "trimmed:0.7"}, "merge is 'trimmed:0.7': .* between 0 and 0.5"),
        ({"fragments": "stride:3"}, "fragments are 'stride:3': did you mean 'strided:3'"),
        ({"fragments": "balanced:9"}, "fragments are balanced:9 but the model has 7 trained tensors: .* balanced:7"),
        ({"fragments": 3}, "fragments are 3: give one of"),
        ({"fragments": [["0.weigth"], ["*"]]}, "fragments name '0.weigth', which matches no .* '0.weight'"),
        ({"fragments": [["0.weight"], ["3"]]}, "add a last group"),
        ({"fragments": [["0.weight", "3"], ["3.bias", "*"]]}, "fragments 0 and 1 both name '3.bias'"),
        ({"fragments": [["0"], ["*"]], "offsets": [0, 5]}, "offsets are .0, 5.: with sync_every 5 each must be 0 to 4"),
        ({"fragments": [["0"], ["*"]], "offsets": [0, -1]}, "each must be 0 to 4"),
        ({"fragments": [["0"], ["*"]], "offsets": [0]}, "offsets are .0. for 2 fragments: give 2 of them"),
        ({"sync_every": 0}, "sync_every is 0: it must be a whole number of at least 1"),
    ],
    ids=str,
)
def test_bad_settings_report_129(options: dict, message: str) -> None:
    with pytest.raises(diloco.BadInput, match=message) as caught:
        build(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("replicas", [1, 2])
def test_trimmed_needs_three(replicas: int) -> None:
    with pytest.raises(diloco.BadInput, match=f"trimmed:0.25', which needs 3 .* there are {replicas}: use 'mean'"):
        build(diloco.Local(replicas), merge="trimmed")
    build(diloco.Local(3), merge="trimmed")


def test_trimmed_must_see_every_replica() -> None:
    with pytest.raises(diloco.BadInput, match="merge is 'trimmed:0.25', .* summed before they leave it: use 'mean'"):
        build(diloco.Hierarchical(diloco.Local(4), sites=2), merge="trimmed")


@pytest.mark.parametrize(
    "sites, message",
    [
        (3, "sites is 3, which does not divide 4 replicas: the nearest is"),
        (0, "sites is 0"),
        ([[0, 1], [2]], "each of the replicas 0 to 3 must be in exactly one"),
        ([[0, 1], [1, 2, 3]], "exactly one"),
        ([[0, 1, 2, 3], []], "exactly one"),
    ],
)
def test_bad_sites(sites: object, message: str) -> None:
    with pytest.raises(diloco.BadInput, match=message):
        diloco.Hierarchical(diloco.Local(4), sites=sites)
    with pytest.raises(diloco.BadInput, match="every is -1"):
        diloco.Hierarchical(diloco.Local(4), sites=2, every=-1)


@pytest.mark.parametrize("overlap", [0, "delayed", "eager"])
def test_mixing_without_overlap_warns(overlap: object) -> None:
    with pytest.warns(UserWarning, match=f"mixing=0.5 has no effect with overlap={overlap!r}") as found:
        build(mixing=0.5, overlap=overlap)
    assert found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(mixing=0.5, overlap=2)


def test_blocks_that_are_not_there() -> None:
    model = nn.Linear(3, 3)
    with pytest.raises(diloco.BadInput, match="fragments are strided:3 but the model has no blocks .* use balanced:2"):
        diloco.DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.1), sync_every=5, fragments="strided:3")


# -- replicas that differ

DIFFERENT = {
    "codec": ({"codec": "e3m0"}, "codec differs: 'int8' on replica 0, 'e3m0' on replica 1"),
    "feedback": ({"codec": "int8+ef"}, "codec differs: 'int8' on replica 0, 'int8[+]ef' on replica 1"),
    "fragments": ({"fragments": "balanced:3"}, "fragments differs?: .*balanced:2.*balanced:3"),
    "offsets": ({"offsets": [0, 1]}, "offsets differs?: .*None.*0, 1"),
    "overlap": ({"overlap": 2}, "overlap differs: 1 on replica 0, 2 on replica 1"),
    "late": ({"overlap": "eager"}, "overlap differs: 1 on replica 0, 'eager' on replica 1"),
    "mixing": ({"mixing": 0.25}, "mixing differs: 0.5 on replica 0, 0.25 on replica 1"),
    "interval": ({"sync_every": 6}, "sync_every differs: 5 on replica 0, 6 on replica 1"),
    "adaptive": ({"sync_every": diloco.Adaptive(5, 5, 9)}, "sync_every differs: 5 on replica 0, .Adaptive"),
    "merge": ({"merge": "rda"}, "merge differs: 'mean' on replica 0, 'rda' on replica 1"),
    "outer": ({"outer": diloco.SGD()}, "outer differs: .*Nesterov.*SGD"),
    "sites": ({"sites": 2}, "site.* differs?"),
    "site_every": ({"site_every": 2}, "site.* differs?"),
    "bucket_bytes": ({"bucket_bytes": 1024}, "bucket_bytes differs"),
}
COMMON = {"codec": "int8", "fragments": "balanced:2", "overlap": 1, "mixing": 0.5}


def _exchange(exchange: object, options: dict) -> tuple[object, dict]:
    options = {**COMMON, **options}
    sites, every = options.pop("sites", 1), options.pop("site_every", 0)
    return diloco.Hierarchical(exchange, sites=sites, every=every), options


def _refused(rank: int) -> list[tuple[str, bool]]:
    found = []
    for other, _ in DIFFERENT.values():
        model = small_model(rank)
        before = [p.detach().clone() for p in model.parameters()]
        message = "not refused"
        try:
            exchange, options = _exchange(diloco.Collective(timeout_s=20), other if rank == 1 else {})
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            diloco.DiLoCo(model, optimizer, exchange=exchange, **{"sync_every": 5, **options})
        except diloco.BadInput as error:
            message = str(error)
        found.append((message, all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [2, 4])
def test_ranks_that_differ_are_refused_on_all_alike_before_a_tensor_travels_report_103(replicas: int) -> None:
    found = run_ranks(replicas, _refused)
    for index, (_, message) in enumerate(DIFFERENT.values()):
        said = {ranks[index] for ranks in found}
        assert len(said) == 1, said
        text, untouched = said.pop()
        assert re.search(message, text) and "start all replicas with the same settings" in text and untouched


ALONE = {
    "codec": ({"codec": "e3mo"}, "codec is 'e3mo': give 'e3m0'"),
    "overlap": ({"overlap": 9}, "overlap is 9"),
    "fragments": ({"fragments": [["zz"]]}, "zz"),
    "merge": ({"merge": "median"}, "merge is 'median'"),
    "offsets": ({"offsets": [9, 9]}, "offsets are"),
}


def _refused_alone(rank: int) -> list[str]:
    found = []
    for other, _ in ALONE.values():
        model = small_model(rank)
        options = {"sync_every": 5, "fragments": "balanced:2", **(other if rank == 1 else {})}
        try:
            diloco.DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)
            found.append("not refused")
        except diloco.BadInput as error:
            found.append(str(error))
    return found


def test_what_one_replica_refuses_the_others_refuse_too_report_103() -> None:
    """Nobody waits for a replica that will not come."""
    others, own = run_ranks(2, _refused_alone)
    for (_, message), heard, said in zip(ALONE.values(), others, own, strict=True):
        assert message in said and heard == f"{said} (replica 1)"


@pytest.mark.parametrize(
    "options, message",
    [
        ({"codec": None}, "codec is None"),
        ({"codec": 5}, "codec is 5"),
        ({"merge": None}, "merge is None"),
        ({"exchange": 2}, "exchange is 2: give Local"),
        ({"offsets": 3}, "offsets is 3: give a list"),
    ],
    ids=str,
)
def test_values_of_the_wrong_kind(options: dict, message: str) -> None:
    model = small_model()
    with pytest.raises(diloco.BadInput, match=message):
        diloco.DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.1), **{"sync_every": 5, **options})


def test_sites_and_links_of_the_wrong_kind() -> None:
    for sites in (None, [0, 1, 2, 3]):
        with pytest.raises(diloco.BadInput, match="sites are .*: give how many"):
            diloco.Hierarchical(diloco.Local(4), sites=sites)
    with pytest.raises(diloco.BadInput, match="link is 5"):
        diloco.Local(2, link=5)
    assert str(diloco.Local(2, link="100mbit,25ms").clock.link) == "100mbit,25ms"
