"""Saving in chains, in the background and into any storage: all that is there loads as meant.

pytest tests/checkpoint/test_writer.py
"""

from __future__ import annotations

import threading

import pytest
import torch
from support.chains import PLACES, check, compare, place, trees, write

from diloco.checkpoint import KINDS, Policy, Store, Writer, load, read_tree
from diloco.errors import BadInput


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("full_every", [1, 2, 3])
def test_every_link_of_every_chain_loads(tmp_path, kind, where, full_every):
    """Chains of 1, 2, F and F + 1."""
    store = Store(place(where, tmp_path))
    write(store, range(1, 5), kind=kind, full_every=full_every)
    assert store.steps() == [1, 2, 3, 4] and store.latest_whole() == (4, [])
    for step in range(1, 5):
        full = kind == "plain" or (step - 1) % full_every == 0
        manifest = store.manifest(step)
        assert (manifest.base and manifest.base.step) == (None if full else step - 1)
        assert (manifest.number, manifest.kind) == (step, kind) and len(store.chain(step)) <= full_every
        assert store.verify(step) == []
        check(store, step, exact=kind != "lossy")


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_writer_begins_a_new_chain_and_counts_on(tmp_path, kind):
    store = Store(tmp_path)
    write(store, range(1, 3), kind=kind, full_every=4)
    write(store, range(3, 5), kind=kind, full_every=4)
    bases = [store.manifest(step).base for step in store.steps()]
    assert [base and base.step for base in bases] == ([None, 1, None, 3] if kind != "plain" else [None] * 4)
    assert [store.manifest(step).number for step in store.steps()] == [1, 2, 3, 4]
    for step in store.steps():
        check(store, step, exact=kind != "lossy")


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_that_come_go_and_change(tmp_path, kind):
    """Error feedback appears with the first round; what has no earlier self is coded by itself."""
    store = Store(tmp_path)
    writer = Writer(store, kind=kind, background=False, keep=Policy(last=0))
    shapes = [{"a": (300,)}, {"a": (300,), "b": (20, 20)}, {"a": (100, 5), "b": (20, 20)}, {"b": (400,)}]
    states = [{n: torch.randn(s) for n, s in named.items()} for named in shapes]
    states[3]["b"] = states[3]["b"].double()
    for step, state in enumerate(states):
        writer.save(step, {"x.0": state}, ["x.0"], {}, base=writer.next_base())
    assert len(store.chain(3)) == (4 if kind != "plain" else 1)
    for step, state in enumerate(states):
        found = load(tmp_path / f"step-{step:08d}")[0]["x"]
        compare(found, state, exact=kind != "lossy" or step == 3)


def test_differences_are_smaller(tmp_path):
    store = Store(tmp_path)
    write(store, range(1, 3), full_every=2)
    full, difference = store.manifest(1), store.manifest(2)
    assert full.raw_bytes == difference.raw_bytes
    assert difference.stored_bytes < full.stored_bytes < full.raw_bytes


def test_a_lossy_chain_does_not_drift(tmp_path):
    """Each difference is taken to what a reader has, so errors do not add up."""
    store, writer = Store(tmp_path), Writer(Store(tmp_path), kind="lossy", full_every=50, background=False)
    errors, value = [], torch.randn(5000)
    for step in range(20):
        value = value + 1e-3 * torch.randn(5000)
        writer.save(step, {"x.0": {"w": value}}, ["x.0"], {}, base=writer.next_base())
        errors.append((read_tree(store.open(step).tree("x"))["w"] - value).abs().max().item())
    assert max(errors[5:]) <= 2 * errors[5] < errors[0]


def test_writing_begins_at_once_and_holds_nobody_up(tmp_path, monkeypatch):
    """`save` returns while the file system stands still; the next save waits for it."""
    from diloco.checkpoint import job as module

    gate, good = threading.Event(), module.write_part
    monkeypatch.setattr(module, "write_part", lambda *args: gate.wait() and good(*args))
    store, writer = Store(tmp_path), Writer(Store(tmp_path))
    parts = trees(1)
    writer.save(1, parts, list(parts), {"step": 1})
    assert store.steps() == [] and writer.committed is None
    gate.set()
    assert writer.settle() == 1 and store.steps() == [1]
    check(store, 1, exact=True)


def test_what_cannot_be_saved_is_refused_before_anything_is_written(tmp_path):
    writer = Writer(Store(tmp_path))
    with pytest.raises(TypeError, match="cannot save a/b"):
        writer.save(1, {"x.0": {"a": {"b": object()}}}, ["x.0"], {})
    with pytest.raises(ValueError, match="parts with different names"):
        writer.save(1, {"x.0": {}}, ["x.0", "x.0"], {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [{"kind": "zip"}, {"full_every": 0}])
def test_options_that_cannot_be_are_refused(tmp_path, options):
    with pytest.raises(BadInput, match="'zip': give plain, lossless or lossy|full_every is 0: give 1"):
        Writer(Store(tmp_path), **options)
