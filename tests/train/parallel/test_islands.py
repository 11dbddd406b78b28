"""One replica over several ranks takes the same steps as on one device: every mesh against a plain loop.

pytest tests/train/parallel/test_islands.py
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from support.parallel import LR, Case, Outcome, llama, ours, phi3, plain, qwen3, run_cases, untied

from diloco.train.parallel.layers import Options

pytestmark = pytest.mark.slow
RELATIVE = 1e-5


tied_llama = functools.partial(llama, tie_word_embeddings=True)
PLAIN = Options()
CASES: dict[int, dict[str, Case]] = {
    2: {
        **{f"{mesh} tied": Case(f"replica=1,{mesh}=2", ours) for mesh in ("fsdp", "tp", "pp", "dp")},
        **{f"{mesh} untied": Case(f"replica=1,{mesh}=2", untied) for mesh in ("fsdp", "tp", "pp", "dp")},
        "gpipe": Case("replica=1,pp=2", ours, microbatches=4, schedule="gpipe"),
        "fsdp llama": Case("replica=1,fsdp=2", llama),
        "tp llama": Case("replica=1,tp=2", llama),
        "tp tied llama": Case("replica=1,tp=2", tied_llama),
        "tp qwen3": Case("replica=1,tp=2", qwen3),
        "fsdp checkpointing": Case("replica=1,fsdp=2", ours, Options(activation_checkpointing=True)),
        "pp checkpointing": Case("replica=1,pp=2", ours, Options(activation_checkpointing=True)),
        "fsdp offload": Case("replica=1,fsdp=2", ours, Options(cpu_offload=True)),
    },
    3: {
        "pp of 3": Case("replica=1,pp=3", ours),
        "fsdp of 3": Case("replica=1,fsdp=3", ours),
    },
    4: {
        "fsdp x tp tied": Case("replica=1,fsdp=2,tp=2", ours),
        "fsdp x tp untied": Case("replica=1,fsdp=2,tp=2", untied),
        "pp x fsdp": Case("replica=1,pp=2,fsdp=2", ours),
        "pp x tp": Case("replica=1,pp=2,tp=2", ours),
        "dp x tp": Case("replica=1,dp=2,tp=2", ours),
        "dp x fsdp": Case("replica=1,dp=2,fsdp=2", ours),
        "two islands": Case("replica=2,fsdp=2", ours),
    },
}  # fmt: skip
HALF = {mesh: Case(f"replica=1,{mesh}=2", ours, Options(precision="bf16")) for mesh in ("fsdp", "tp", "pp")}
REFUSED: dict[int, dict[str, tuple[Case, str]]] = {
    2: {
        "offload alone": (
            Case("replica=1,tp=2", ours, Options(cpu_offload=True)),
            "cpu_offload is on, which only fsdp can do: give a mesh with fsdp=2 or more, or leave it out",
        ),
        "hf in stages": (
            Case("replica=1,pp=2", llama),
            "mesh has pp=2, which works for the models named by size, not for hf: use fsdp or tp",
        ),
        "fused hf": (
            Case("replica=1,tp=2", phi3),
            "mesh has tp=2, but the layers of a phi3 have 'self_attn.qkv_proj', which is none of what it can cut, "
            "q_proj, k_proj, v_proj, gate_proj, up_proj, o_proj, down_proj (llama, mistral, qwen2, qwen3, gemma and "
            "the like): use fsdp",
        ),
    },
    3: {
        "odd heads": (
            Case("replica=1,tp=3", ours),
            "mesh has tp=3, which cannot share the model's 2 heads: the nearest that can is tp=2",
        ),
    },
    4: {
        "too many stages": (
            Case("replica=1,pp=4", ours),
            "mesh has pp=4, more than the model's 3 layers: give at most as many",
        ),
        "few key heads": (
            Case("replica=1,tp=4", llama),
            "mesh has tp=4, which cannot share the model's 2 key-value heads: the nearest that can is tp=2",
        ),
    },
}


@functools.lru_cache
def outcomes(world: int) -> dict[str, list[Outcome | str]]:
    return run_cases(world, {**CASES[world], **{name: case for name, (case, _) in REFUSED[world].items()}})


@functools.lru_cache
def half() -> dict[str, list[Outcome | str]]:
    return run_cases(2, HALF)


@functools.lru_cache
def reference(model: object) -> Outcome:
    return plain(model())


def _named(cases: dict[int, dict]) -> list:
    return [pytest.param(world, name, id=name) for world, some in cases.items() for name in some]


@pytest.mark.parametrize("world, name", _named(CASES))
def test_an_island_takes_the_steps_of_one_device(world: int, name: str) -> None:
    expected, found = reference(CASES[world][name].model), outcomes(world)[name]
    seen: set[str] = set()
    for rank in found:
        assert isinstance(rank, Outcome), rank
        assert rank.losses == found[0].losses and rank.norms == found[0].norms and rank.heldout == found[0].heldout
        assert rank.losses == pytest.approx(expected.losses, rel=RELATIVE)
        assert rank.norms == pytest.approx(expected.norms, rel=RELATIVE)
        assert rank.heldout == pytest.approx(expected.heldout, rel=RELATIVE)
        for weight, values in rank.weights.items():
            wanted = expected.weights[weight]
            off = values.reshape(wanted.shape) - wanted
            assert np.linalg.norm(off) <= RELATIVE * np.linalg.norm(wanted), weight
            # Adam makes much of a gradient that is nothing but rounding, but of few, and never a step's worth.
            assert abs(off).max() <= 0.1 * LR, weight
        seen |= rank.weights.keys()
    assert seen == expected.weights.keys()


@pytest.mark.parametrize("world, name", _named(CASES))
def test_what_several_ranks_hold_stays_equal_to_the_bit(world: int, name: str) -> None:
    """Norms, embedding and head over tensor ranks; a tied embedding over the ends of a pipeline."""
    found = outcomes(world)[name]
    held = {weight for rank in found for weight in rank.bits}
    for weight in held:
        assert len({rank.bits[weight] for rank in found if weight in rank.bits}) == 1, weight
    if name in ("tp tied", "pp tied"):
        assert "embed.weight" in found[0].bits and "embed.weight" in found[1].bits


@pytest.mark.parametrize("mesh", HALF)
def test_bf16_computes_in_halves_and_keeps_whole_weights(mesh: str) -> None:
    expected, found = reference(ours), half()[mesh]
    for rank in found:
        assert isinstance(rank, Outcome), rank
        assert rank.losses == found[0].losses == pytest.approx(expected.losses, rel=5e-3)
        assert rank.losses != expected.losses
        assert {values.dtype for values in rank.weights.values()} == {np.dtype("float32")}
        assert any((values.view(np.int32) & 0xFFFF).any() for values in rank.weights.values())


@pytest.mark.parametrize("world, name", _named(REFUSED))
def test_what_cannot_be_spread_is_refused_in_a_sentence(world: int, name: str) -> None:
    assert set(outcomes(world)[name]) == {REFUSED[world][name][1]}
