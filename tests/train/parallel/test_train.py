"""Runs of replicas that are islands: the losses of replicas on one device each, with the codec, the fragments and the
overlap of a slow link on.

pytest tests/train/parallel/test_train.py
"""

from __future__ import annotations

import dataclasses
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support.parallel import llama
from support.training import curve, evals, job_over_ranks, quiet_train, rounds, tiny, train_over_ranks
from torch.distributed.tensor import DTensor

from diloco.errors import BadInput
from diloco.train.config import OuterConfig, TrainConfig
from diloco.train.inner import InnerConfig
from diloco.train.loop import Job

RELATIVE = 1e-5
MESHES = {"fsdp=2": 4, "tp=2": 4, "pp=2": 4, "dp=2": 4, "fsdp=2,tp=2": 8}


def streaming(folder: Path, **changes: Any) -> TrainConfig:
    """30 steps in 3 rounds of both fragments, which overlap with the inner steps."""
    options = {
        "steps": 30,
        "sync_every": 10,
        "codec": "e3m0",
        "fragments": "strided:1",
        "overlap": "3",
        "mixing": "0.5",
        "eval_every": 10,
        "eval_sequences": 9,
        "inner": InnerConfig(lr=3e-3),
        "outer": OuterConfig(optimizer="nesterov", lr=0.7, momentum=0.9),
    }
    return tiny(folder, **{**options, **changes})


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainConfig, dict]:
    """The same two replicas, each whole in one process."""
    config = streaming(tmp_path_factory.mktemp("islands"), name="single")
    return config, quiet_train(config)


def over(config: TrainConfig, mesh: str, processes: int, **changes: Any) -> tuple[TrainConfig, list[dict]]:
    spread = dataclasses.replace(
        config, name=mesh.replace("=", "-"), mesh=f"replica={config.replicas},{mesh}", **changes
    )
    receipts = train_over_ranks(spread, processes)
    assert all(isinstance(receipt, dict) for receipt in receipts), receipts
    return spread, receipts


def assert_same_losses(spread: TrainConfig, single: TrainConfig) -> None:
    found, expected = curve(spread), curve(single)
    assert len(found) == len(expected) == single.steps
    for (*_, mean, each, norm, _), (*_, wanted_mean, wanted_each, wanted_norm, _) in zip(found, expected, strict=True):
        assert mean == pytest.approx(wanted_mean, rel=RELATIVE)
        assert each == pytest.approx(wanted_each, rel=RELATIVE) and len(each) == single.replicas
        assert norm == pytest.approx(wanted_norm, rel=RELATIVE)
    for one, other in zip(evals(spread), evals(single), strict=True):
        assert one["step"] == other["step"] and one["sequences"] == other["sequences"]
        assert one["loss"] == pytest.approx(other["loss"], rel=RELATIVE)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_an_island_s_losses_are_those_of_one_device(single: tuple[TrainConfig, dict], mesh: str) -> None:
    config, receipt = single
    spread, receipts = over(config, mesh, MESHES[mesh])
    assert_same_losses(spread, config)
    assert len(rounds(spread)) == len(rounds(config)) == 6
    for found in receipts:
        assert found["ok"] and found["finished"] and found["rounds_committed"] == 6
        assert found["tokens_per_replica"] == receipt["tokens_per_replica"]
    first, *others = receipts[: len(receipts) // 2]
    assert all(other["bytes_sent"] == first["bytes_sent"] for other in others)
    assert first["bytes_sent"] == sum(first["bytes_sent_per_device"])


@pytest.mark.slow
@pytest.mark.parametrize("size, mesh, processes", [("30k", "fsdp=3", 6), ("100k", "pp=2", 4)])
def test_shards_may_be_uneven(tmp_path: Path, size: str, mesh: str, processes: int) -> None:
    """Rows that 3 does not divide, so that a codec's blocks are others than in the whole; 3 layers on 2 stages."""
    config = streaming(tmp_path, size=size, batch_tokens=12 * 32, name="single")
    quiet_train(config)
    spread, _ = over(config, mesh, processes)
    assert_same_losses(spread, config)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["fsdp=2", "tp=2"])
def test_a_hugging_face_llama_may_be_spread(tmp_path: Path, mesh: str) -> None:
    llama().hf.save_pretrained(tmp_path / "llama")
    config = streaming(tmp_path, hf=str(tmp_path / "llama"), name="single")
    quiet_train(config)
    spread, _ = over(config, mesh, 4)
    assert_same_losses(spread, config)


@pytest.mark.slow
def test_islands_may_lie_in_sites(tmp_path: Path) -> None:
    config = streaming(tmp_path, replicas=4, sites=2, site_every=4, steps=12, sync_every=6, name="single")
    quiet_train(config)
    spread, _ = over(config, "fsdp=2", 8)
    assert_same_losses(spread, config)


def _hashes_of_whole_parameters(job: Job) -> dict[str, str]:
    for step in range(job.config.steps):
        job.inner_step(step)
    job.finish()
    named = job.replicas[0].model.named_parameters()
    return {n: sha256(p.detach().numpy()).hexdigest() for n, p in named if not isinstance(p, DTensor)}


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["tp=2", "pp=2"])
def test_what_ranks_have_in_common_is_decoded_alike(tmp_path: Path, mesh: str) -> None:
    """Norms and embedding over tensor ranks, the tied embedding over stages: blocks of a codec end where they do."""
    config = streaming(tmp_path, codec="int4", steps=12, sync_every=4, mesh=f"replica=2,{mesh}")
    first, second, *others = job_over_ranks(config, 4, _hashes_of_whole_parameters)
    common = first.keys() & second.keys()
    assert "embed.weight" in common and all(first[name] == second[name] for name in common)
    assert others == [first, second]


@pytest.mark.slow
def test_data_parallel_replicas_may_be_islands(tmp_path: Path) -> None:
    config = streaming(tmp_path, method="dp", steps=6, name="single")
    quiet_train(config)
    for mesh in ("fsdp=2", "pp=2"):
        spread, _ = over(config, mesh, 4)
        assert_same_losses(spread, config)


@pytest.mark.slow
def test_what_one_rank_of_an_island_cannot_do_ends_all(tmp_path: Path) -> None:
    refused = {
        "replica=2,tp=3": "mesh has tp=3, which cannot share the model's 2 heads: the nearest that can is tp=2",
        "replica=2,fsdp=3": "batch_tokens gives each replica 4 sequences, which 3 data ranks cannot share",
    }
    for mesh, sentence in refused.items():
        found = train_over_ranks(tiny(tmp_path, mesh=mesh, name=mesh[-6:]), 6)
        assert all(sentence in text and text.startswith("BadInput") for text in found), found


def test_a_mesh_without_torchrun_is_refused(tmp_path: Path) -> None:
    sentence = "mesh is 'fsdp=2', which lays out processes: start them with torchrun --nproc-per-node N -m diloco train"
    with pytest.raises(BadInput, match=sentence):
        quiet_train(tiny(tmp_path, mesh="fsdp=2"))


def test_other_replicas_than_the_mesh_makes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(BadInput, match="replicas is 2, but mesh 'fsdp=2' makes 4 of 8 processes: leave --replicas out"):
        quiet_train(tiny(tmp_path, mesh="fsdp=2"))
