"""What a chip must hold, against sums by hand, and the nearest setting that fits.

OMP_NUM_THREADS=1 pytest tests/plan/test_memory.py
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from diloco.plan.catalogue import catalogue
from diloco.plan.hardware import Cluster, Link, Speed
from diloco.plan.memory import RESERVE, MemoryOptions, fit, memory
from diloco.plan.model import get_model
from diloco.plan.question import settle
from diloco.plan.run import Island, Run
from diloco.units import format_bytes


def make_run(params: str, chips: int, replicas: int = 2, chip: str = "h100", **changes) -> Run:
    site = catalogue().site(chip, chips)
    cluster = Cluster((site, site), Link("b", 10.0))
    run = Run(get_model(params), cluster, Speed(4e14, "given"), 1e11, 2**20, replicas)
    return replace(run, **changes)


def test_parts_add_up() -> None:
    run = make_run("7b", 8)
    held = memory(run, MemoryOptions(recompute=False))
    model = run.model
    assert held.weights_bytes == pytest.approx((2 + 2 + 4) * 7e9 / 8)
    assert held.optimizer_bytes == pytest.approx(8 * 7e9 / 8)
    assert held.outer_bytes == pytest.approx(8 * 7e9 / 8)
    assert held.activations_bytes == pytest.approx(2048 * (34 * model.layers * model.width + 6 * model.vocab))
    assert held.gathered_bytes == pytest.approx(2 * 2 * 7e9 / model.layers)
    assert held.chip_bytes == pytest.approx((1 - RESERVE) * 80e9)
    parts = (held.weights_bytes, held.optimizer_bytes, held.outer_bytes, held.activations_bytes, held.gathered_bytes)
    assert held.total_bytes == pytest.approx(sum(parts))


def test_diloco_holds_two_copies_more_than_data_parallelism() -> None:
    """arXiv:2501.18512: 5 copies of the parameters in fp32 instead of 3, +66%."""
    run = make_run("7b", 8)
    copies = [memory(r).optimizer_bytes + memory(r).outer_bytes + 4 * 7e9 / 8 for r in (run, _data_parallel(run))]
    assert copies[0] / copies[1] == pytest.approx(5 / 3)


def _data_parallel(run: Run) -> Run:
    return replace(run, data_parallel=True, sync_every=1, codec="bf16")


def test_recomputation_tensor_parallelism_and_offloading_save() -> None:
    run = make_run("7b", 8)
    plain = memory(run, MemoryOptions(recompute=False))
    assert memory(run).activations_bytes < 0.2 * plain.activations_bytes
    split = memory(replace(run, island=Island(tensor=8)), MemoryOptions(recompute=False))
    assert split.activations_bytes < 0.5 * plain.activations_bytes
    moved = memory(run, MemoryOptions(offload_outer=True))
    assert moved.outer_bytes == 0 and moved.offloaded_bytes == pytest.approx(8 * 7e9 / 8)


def test_pipelines_keep_as_many_micro_batches_as_stages() -> None:
    run = make_run("7b", 8)
    deep = replace(run, island=Island(pipeline=4, micro_batches=8))
    shallow = replace(run, island=Island(pipeline=4, micro_batches=2))
    whole = MemoryOptions(recompute=False)
    logits = 2048 * 6 * run.model.vocab
    assert memory(deep, whole).activations_bytes == pytest.approx(memory(run, whole).activations_bytes)
    assert memory(shallow, whole).activations_bytes - logits == pytest.approx(
        (memory(run, whole).activations_bytes - logits) / 2
    )


def test_the_fullest_site_decides() -> None:
    known = catalogue()
    run = make_run("7b", 8)
    mixed = Cluster((known.site("h100", 8), known.site("rtx4090", 8)), Link("b", 10.0))
    assert memory(replace(run, cluster=mixed)).chip_bytes == pytest.approx((1 - RESERVE) * 24e9)


def test_what_fits_is_left_alone() -> None:
    run = make_run("7b", 64)
    found = fit(run)
    assert found.memory.fits and found.nearest is run and found.sentence.startswith("fits: ")


def test_the_nearest_change_is_tried_first() -> None:
    run = make_run("100b", 32)
    found = fit(run)
    assert not found.memory.fits and found.nearest == run and found.options.offload_outer
    assert "it fits with the anchor and outer momentum in host memory" in found.sentence
    many = fit(make_run("7b", 8, replicas=16))
    assert many.nearest is not None and many.nearest.replicas == 8 and "8 replicas" in many.sentence
    bare = fit(make_run("13b", 8), MemoryOptions(recompute=False, micro_batch_tokens=16384))
    assert bare.nearest is not None and "activations recomputed" in bare.sentence


def test_a_model_that_no_split_holds_is_refused_with_the_chips_it_needs() -> None:
    """70B with its anchor in the hosts' memory: 16 bytes a parameter are 70 GB for each of 16 chips."""
    found = fit(make_run("70b", 8))
    assert found.nearest is None and "give a replica 16 chips or more" in found.sentence
    assert settle(make_run("70b", 16)).fits and fit(make_run("70b", 32)).memory.fits


@pytest.mark.parametrize(
    ("params", "chips", "replicas"),
    [("70b", 8, 2), ("70b", 8, 8), ("13b", 2, 2), ("llama3-405b", 64, 2), ("10t", 64, 2)],
)
def test_the_least_chips_are_accepted_and_no_fewer_are(params, chips, replicas) -> None:
    """Against trying the numbers of chips below it that fill servers, one after another."""
    run = make_run(params, chips, replicas)
    said = int(re.search(r"give a replica ([\d,]+) chips or more", fit(run).sentence)[1].replace(",", ""))
    enough = said * replicas // 2
    fewer = [n for n in range(1, enough) if (n < 8 or n % 8 == 0) and n % (replicas // 2) == 0]
    assert settle(make_run(params, enough, replicas)).fits
    assert not any(settle(make_run(params, count, replicas)).fits for count in fewer[-40:])


def test_the_bytes_are_those_of_the_asked_run() -> None:
    run = make_run("70b", 8, island=Island(tensor=4))
    asked = format_bytes(memory(run).total_bytes)
    assert fit(run).sentence.startswith(f"does not fit: with tensor 4 x pipeline 1 it takes {asked} a chip, ")


def test_a_long_sequence_is_split_over_chips() -> None:
    """A whole one keeps 2 bytes a token, channel and layer, and 6 a token and word: 132 GB."""
    long = replace(make_run("7b", 64), model=get_model("7b", seq_len=262_144), batch_tokens=2.0**26)
    settled = settle(long)
    assert settled.fits and memory(long).activations_bytes > 130e9
    assert settled.fit.options.micro_batch_tokens in [262_144 / 2**k for k in range(1, 5)]
    assert memory(settled.run, settled.fit.options).fits


def test_huge_micro_batches_are_said() -> None:
    huge = fit(make_run("7b", 8), MemoryOptions(micro_batch_tokens=1e9))
    assert huge.nearest is None and "fewer tokens in a micro-batch" in huge.sentence
