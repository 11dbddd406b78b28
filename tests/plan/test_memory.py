"""What a chip must hold, against sums by hand, and the nearest setting that fits.

OMP_NUM_THREADS=1 pytest tests/plan/test_memory.py
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from diloco.plan.catalogue import catalogue
from diloco.plan.hardware import Cluster, Link, Speed
from diloco.plan.memory import RESERVE, MemoryOptions, fit, memory
from diloco.plan.model import get_model
from diloco.plan.run import Island, Run


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
    found = fit(make_run("70b", 8))
    assert found.nearest is None and "give a replica 26 chips or more" in found.sentence
    assert fit(make_run("70b", 32)).memory.fits
    huge = fit(make_run("7b", 8), MemoryOptions(micro_batch_tokens=1e9))
    assert huge.nearest is None and "fewer tokens in a micro-batch" in huge.sentence
