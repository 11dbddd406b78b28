"""Saving in chains, in the background, over several ranks and into any storage: all that is there loads as meant.

pytest tests/checkpoint/test_writer.py
"""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import torch

from diloco.checkpoint import KINDS, Policy, Store, Writer, load, read_tree
from diloco.checkpoint.manifest import read_record
from diloco.checkpoint.parts import PartFile
from diloco.errors import BadInput

PLACES = ["folder", "memory", "file"]


def place(kind: str, folder: Path) -> str:
    return {"folder": str(folder), "memory": f"memory://{uuid.uuid4().hex}", "file": f"file://{folder}"}[kind]


def trees(step: int) -> dict:
    """Weights that move a little each step, moments that move a lot, an anchor that the weights sit on."""
    generator = torch.Generator().manual_seed(step)
    noise = torch.randn(40, 50, generator=generator)
    weight = torch.randn(40, 50, generator=torch.Generator().manual_seed(99)) + 1e-3 * step * noise
    replica = {
        "model": {
            "w": weight.clone(),
            "bf16": weight.bfloat16(),
            "count": torch.tensor(step),
            "none": torch.empty(0, 3),
        },
        "optimizer": {"w": {"exp_avg": noise, "exp_avg_sq": noise.square(), "step": torch.tensor(float(step))}},
        "counts": {"step": step, "betas": (0.9, 0.95), "best": float("inf")},
    }
    return {"global.0": {"anchor": {"w": weight}}, "replica-0.0": replica}


def write(store: Store, steps: range, **options) -> None:
    writer = Writer(store, keep=Policy(last=0), **options)
    for step in steps:
        writer.settle()
        parts = trees(step)
        writer.save(step, parts, list(parts), {"step": step}, base=writer.next_base())
        for tensor in (parts["global.0"]["anchor"]["w"], *parts["replica-0.0"]["optimizer"]["w"].values()):
            tensor.fill_(-1)  # training goes on while the copy is written
    writer.settle()
    writer.close()


def check(store: Store, step: int, exact: bool) -> None:
    saved = store.open(step)
    assert saved.meta == {"step": step} and saved.units == ["global", "replica-0"]
    for part, meant in trees(step).items():
        found = read_tree(saved.tree(part.removesuffix(".0")))
        compare(found, meant, exact)


def compare(found, meant, exact: bool) -> None:
    assert type(found) is type(meant)
    if isinstance(meant, dict):
        assert list(found) == list(meant)
        for key in meant:
            compare(found[key], meant[key], exact)
    elif isinstance(meant, torch.Tensor):
        assert found.dtype == meant.dtype and found.shape == meant.shape
        if exact or meant.dtype != torch.float32:
            assert torch.equal(found, meant)
        elif meant.numel():
            assert (found - meant).abs().max() <= 0.05 * meant.abs().max()
    else:
        assert found == meant


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
    import threading

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


# -- several ranks


def test_the_rank_that_commits_waits_for_all_and_only_for_this_run(tmp_path):
    store = Store(tmp_path)
    ranks = [Writer(store, "this run") for _ in range(2)]
    stranger = Writer(store, "a killed run", background=False)
    everyone = ["x.0", "x.1"]
    stranger.save(1, {"x.1": {"b": torch.zeros(300)}}, everyone, None)
    said = [read_record(store.storage, 1, "x.1", session) for session in ("a killed run", "this run")]
    assert said[0].name == "x.1" and said[1] is None
    ranks[0].save(1, {"x.0": {"a": torch.ones(300)}}, everyone, {})
    assert store.steps() == []
    ranks[1].save(1, {"x.1": {"b": torch.ones(300)}}, everyone, None)
    assert ranks[1].settle() is None and ranks[0].settle() == 1
    found, _ = load(tmp_path / "step-00000001")
    assert torch.equal(found["x"]["a"], torch.ones(300)) and torch.equal(found["x"]["b"], torch.ones(300))
    assert sorted(p.name for p in (tmp_path / "step-00000001").iterdir()) == [
        "manifest.json", "x.0.json", "x.0.safetensors", "x.1.json", "x.1.safetensors",
    ]  # fmt: skip


def test_a_rank_that_fails_costs_one_checkpoint(tmp_path):
    """The others are told to give up; what was there stays, and the next one is full."""
    store = Store(tmp_path)
    ranks = [Writer(store, "run", full_every=9) for _ in range(2)]

    def save(step: int, base: int | None) -> None:
        for i, rank in enumerate(ranks):
            rank.save(
                step,
                {f"x.{i}": {f"w{i}": torch.full((300,), float(step))}},
                ["x.0", "x.1"],
                {} if i == 0 else None,
                base,
            )

    save(1, None)
    assert ranks[0].settle() == 1 and ranks[0].next_base() == 1
    ranks[0].save(2, {"x.0": {"w0": torch.zeros(300)}}, ["x.0", "x.1"], {}, base=1)
    ranks[0].written()
    ranks[0].give_up()
    with pytest.raises(OSError, match="step-00000002 was not finished, since x.1 did not come"):
        ranks[0].settle()
    assert store.latest_whole() == (1, []) and ranks[0].next_base() is None
    save(3, None)
    assert ranks[0].settle() == 3 and store.steps() == [1, 3] and store.manifest(3).base is None
    save(4, 3)
    assert ranks[0].settle() == 4 and ranks[1].settle() is None
    found, _ = load(tmp_path / "step-00000004")
    assert found["x"]["w0"][0] == found["x"]["w1"][0] == 4
    assert not (tmp_path / "step-00000002").exists()


def test_a_value_that_two_parts_give_differently_is_refused(tmp_path):
    writer = Writer(Store(tmp_path), background=False)
    writer.save(1, {"x.0": {"rounds": [1, 2]}, "x.1": {"rounds": [1, 3]}}, ["x.0", "x.1"], {})
    with pytest.raises(BadInput, match="the parts of x/rounds/1 contradict each other"):
        load(tmp_path / "step-00000001")


def test_what_another_rank_writes_is_only_referred_to(tmp_path):
    """After a sync the weights are the anchor, which replica 0 writes; a weight that is not, is stored. The next
    checkpoint, in mid-window, holds the difference to what was only referred to."""
    store = Store(tmp_path)
    anchor = {"w": torch.randn(5000), "v": torch.randn(5000)}
    model = {"w": anchor["w"].clone(), "v": anchor["v"] + 1}
    first, second = (Writer(store, "run") for _ in range(2))
    everyone = ["global.0", "replica-1.0"]
    first.save(1, {"global.0": {"anchor": anchor}}, everyone, {})
    elsewhere = {("global.0", f"anchor/{name}"): value for name, value in anchor.items()}
    second.save(1, {"replica-1.0": {"model": model}}, everyone, None, elsewhere=elsewhere)
    second.settle(), first.settle()
    found, _ = load(tmp_path / "step-00000001")
    assert all(torch.equal(found["replica-1"]["model"][name], model[name]) for name in model)
    folder = tmp_path / "step-00000001"
    with torch.no_grad():
        part = PartFile(folder / "replica-1.0.safetensors", folder / "replica-1.0.json", "replica-1.0")
    assert part.entries["model/w"]["same"] == ["global.0", "anchor/w"] and "same" not in part.entries["model/v"]
    model = {name: value + 1e-4 * torch.randn(5000) for name, value in model.items()}
    first.save(2, {"global.0": {"anchor": anchor}}, everyone, {}, base=1)
    second.save(2, {"replica-1.0": {"model": model}}, everyone, None, base=1, elsewhere=elsewhere)
    second.settle(), first.settle()
    found, _ = load(tmp_path / "step-00000002")
    assert all(torch.equal(found["replica-1"]["model"][name], model[name]) for name in model)
    assert all(torch.equal(found["global"]["anchor"][name], anchor[name]) for name in model)
    assert store.manifest(2).stored_bytes < 0.6 * store.manifest(1).stored_bytes


# -- what goes wrong


def broken(error: int, monkeypatch) -> None:
    def fail(path, write):
        raise OSError(error, os.strerror(error), str(path))

    monkeypatch.setattr("diloco.checkpoint.storage.replace_durably", fail)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
@pytest.mark.parametrize("background", [True, False])
def test_a_failed_save_is_one_sentence_and_costs_nothing_earlier(tmp_path, monkeypatch, error, background):
    store, writer = Store(tmp_path), Writer(Store(tmp_path), background=background)

    def save(step: int) -> None:
        parts = trees(step)
        writer.save(step, parts, list(parts), {"step": step}, base=writer.next_base())
        writer.settle()

    save(1)
    with monkeypatch.context() as patch:
        broken(error, patch)
        reason = os.strerror(error)
        with pytest.raises(OSError, match=rf"step-00000002/global.0.safetensors cannot be written \({reason}\)"):
            save(2)
    assert store.latest_whole() == (1, [])
    save(3)
    assert store.manifest(3).base is None and store.latest_whole() == (3, [])
    for step in (1, 3):
        check(store, step, exact=True)


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("failing", ["replica-0.0.safetensors", "replica-0.0.json", "manifest.json"])
def test_a_failed_save_leaves_nothing_behind(tmp_path, monkeypatch, where, failing):
    """At once, not only after the next one succeeds: on a full disk there would be no room for that."""
    store = Store(place(where, tmp_path / "store"))
    writer = Writer(store, background=False)
    parts, good = trees(1), store.storage.write

    def write(path, fill):
        if path.endswith(failing):
            raise OSError(f"{path} cannot be written (No space left on device): choose another place")
        good(path, fill)

    with monkeypatch.context() as patch:
        patch.setattr(store.storage, "write", write)
        for step in (1, 2):
            with pytest.raises(OSError, match=failing):
                writer.save(step, parts, list(parts), {"step": step})
            assert store.storage.names("") == []
    writer.save(3, parts, list(parts), {"step": 3})
    assert store.storage.names("") == ["step-00000003"]


def test_remains_that_could_not_be_removed_go_before_the_next_save_writes(tmp_path, monkeypatch):
    store = Store(tmp_path)
    writer, parts = Writer(store, background=False), trees(1)
    with monkeypatch.context() as patch:
        broken(errno.EROFS, patch)
        patch.setattr(store.storage, "remove", broken_remove)
        (tmp_path / "step-00000001").mkdir()
        (tmp_path / "step-00000001" / "global.0.safetensors").write_bytes(b"half")
        with pytest.raises(OSError, match="Read-only"):
            writer.save(1, parts, list(parts), {})
    assert (tmp_path / "step-00000001" / "global.0.safetensors").exists()
    seen, good = [], store.storage.write

    def write(path, fill):
        seen.append(store.storage.names("step-00000001"))
        good(path, fill)

    monkeypatch.setattr(store.storage, "write", write)
    writer.save(2, parts, list(parts), {})
    assert seen[0] == []


def broken_remove(path: str) -> None:
    raise OSError(errno.EROFS, "Read-only file system", path)


def test_what_another_rank_is_writing_is_left_alone(tmp_path):
    """A failed rank removes its own files; the one that commits those too whose ranks have said that they are done."""
    store = Store(tmp_path)
    everyone = ["x.0", "x.1", "x.2"]
    first, second = Writer(store, "run"), Writer(store, "run")
    under_way = tmp_path / "step-00000001" / ".x.2.safetensors.99"
    under_way.parent.mkdir()
    under_way.write_bytes(b"half")
    second.save(1, {"x.1": {"b": torch.ones(300)}}, everyone, None)
    second.settle()
    first.save(1, {"x.0": {"a": torch.ones(300)}}, everyone, {})
    first.give_up()
    with pytest.raises(OSError, match=r"was not finished, since x.2 did not come"):
        first.settle()
    assert [p.name for p in under_way.parent.iterdir()] == [under_way.name]


FULL_DISK = """
import sys, torch
from diloco.checkpoint import Store, Writer
writer = Writer(Store(sys.argv[1]), background=False, kind="plain")
for step in range(1, 99):
    writer.save(step, {"x.0": {"w": torch.randn(20_000 * step)}}, ["x.0"], {})
"""


def out_of_space(folder: Path, **options) -> str:
    ran = subprocess.run([sys.executable, "-c", FULL_DISK, str(folder)], capture_output=True, text=True, **options)
    assert ran.returncode == 1
    newest, skipped = Store(folder).latest_whole()
    assert newest and not skipped
    return ran.stderr.strip().splitlines()[-1]


@pytest.mark.slow
def test_a_file_that_may_not_grow_is_named(tmp_path):
    """As on a full disk, by a limit on the process."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))  # noqa: E731
    last = out_of_space(tmp_path, preexec_fn=limit)
    assert "x.0.safetensors cannot be written" in last and "File too large" in last


@pytest.mark.slow
def test_a_full_disk_is_named(tmp_path):
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "diloco", str(tmp_path)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no right to mount a small disk")
    try:
        last = out_of_space(tmp_path)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert "cannot be written (No space left on device): free some space" in last


@pytest.mark.slow
def test_a_full_disk_takes_the_next_save_when_there_is_room_again(tmp_path):
    """Two parts of which only one fits: what the failed saves had written of it must not stay."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "diloco", str(tmp_path)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no right to mount a small disk")
    parts = {name: {"w": torch.rand(75_000)} for name in ("x.0", "y.0")}
    try:
        fill = tmp_path / "fill"
        fill.write_bytes(b"x" * 550_000)
        store = Store(tmp_path / "store")
        writer = Writer(store, kind="plain", background=False)
        for step in (1, 2):
            with pytest.raises(OSError, match="No space left on device"):
                writer.save(step, parts, list(parts), {})
        fill.write_bytes(b"x" * 300_000)
        writer.save(3, parts, list(parts), {})
        assert store.latest_whole() == (3, [])
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.slow
def test_a_read_only_disk_is_named(tmp_path):
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,ro", "diloco", str(tmp_path)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no right to mount a small disk")
    try:
        with pytest.raises(OSError, match=r"step-00000001/global.0.safetensors cannot be written \(Read-only file"):
            write(Store(tmp_path), range(1, 2))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


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
