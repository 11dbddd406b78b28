"""A run's checkpoints: where they go, of which kind, what stays, and what happens when one cannot be written.

pytest tests/train/test_saving.py
"""

from __future__ import annotations

import dataclasses
import os
import re
import uuid
from pathlib import Path

import pytest
import torch
from support.training import (
    assert_same_run,
    checkpoint_bits,
    curve,
    events,
    job_over_ranks,
    quiet_train,
    tiny,
    train_over_ranks,
)

from diloco.checkpoint import Store, job, load
from diloco.checkpoint.parts import PartFile
from diloco.errors import BadInput
from diloco.selftest.worker import Messages
from diloco.train import place_check
from diloco.train.checkpoint_options import CheckpointOptions
from diloco.train.config import TrainConfig
from diloco.train.loop import Job
from diloco.train.run import run_path
from diloco.train.saving import Checkpoints
from diloco.train.state import GLOBAL
from diloco.train.world import enter_world
from diloco.watch import runfolder

STREAMING = {"fragments": "balanced:3", "overlap": "2", "mixing": "0.5", "codec": "int8+ef"}


def store_of(config) -> Store:
    return config.build_store(run_path(config) / runfolder.CHECKPOINTS)


def bases(store: Store) -> list[int | None]:
    found = [store.manifest(step).base for step in store.steps()]
    return [base and base.step for base in found]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, STREAMING], ids=["plain", "streaming"])
@pytest.mark.parametrize("background", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_resumed_from_the_middle_of_a_chain_is_bit_equal(tmp_path: Path, options: dict, background: bool) -> None:
    """Stopped in mid-window too, with a fragment under way, at a link that is a difference."""
    options = {**options, "checkpoint_every": 1, "checkpoint_background": background, "keep": 0}
    whole, parts = (tiny(tmp_path, name=name, **options) for name in ("whole", "parts"))
    receipt = quiet_train(whole)
    assert bases(store_of(whole)) == [None, 4, 8, 12, 16]
    for stop in (10, 13):
        quiet_train(parts, stop_at=stop, resume=stop > 10)
    assert bases(store_of(parts)) == [None, 4, 8, None, 12]
    assert_same_run(whole, receipt, parts, quiet_train(parts, resume=True))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "lossy"])
def test_other_kinds_resume(tmp_path: Path, kind: str) -> None:
    whole, parts = (tiny(tmp_path, name=name, checkpoint_every=1, checkpoint_kind=kind) for name in ("whole", "parts"))
    receipt = quiet_train(whole)
    quiet_train(parts, stop_at=9)
    last = quiet_train(parts, resume=True)
    if kind == "plain":
        assert_same_run(whole, receipt, parts, last)
    assert last["loss"] == pytest.approx(receipt["loss"], rel=1e-2) and len(curve(parts)) == 17


@pytest.mark.parametrize("scheme", ["memory", pytest.param("file", marks=pytest.mark.slow)])
def test_checkpoints_go_where_they_are_told_to(tmp_path: Path, scheme: str) -> None:
    place = {"memory": f"memory://{uuid.uuid4().hex}/run", "file": f"file://{tmp_path}/elsewhere"}[scheme]
    whole, parts = tiny(tmp_path, name="whole"), tiny(tmp_path, name="parts", checkpoint_to=place)
    receipt = quiet_train(whole)
    quiet_train(parts, stop_at=10)
    last = quiet_train(parts, resume=True)
    assert not (run_path(parts) / runfolder.CHECKPOINTS).exists() and Store(place).steps() == [10, 17]
    assert curve(whole) == curve(parts) and last["loss"] == receipt["loss"] and last["checksum"] == receipt["checksum"]
    assert [e["path"] for e in events(parts, "checkpoint")][-1].endswith("step-00000017")
    with pytest.raises(BadInput, match="already holds checkpoints: give another place with --checkpoint-to"):
        quiet_train(parts, name="another")


def test_a_place_that_cannot_be_is_refused_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nonsense://x is no place that fsspec reaches"):
        quiet_train(tiny(tmp_path, checkpoint_to="nonsense://x"))


@pytest.mark.parametrize("place", ["/proc/nope", "{tmp}/file/inside"])
def test_a_place_that_cannot_be_written_is_refused_before_the_first_step(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("in the way")
    config = tiny(tmp_path, checkpoint_to=place.format(tmp=tmp_path))
    with pytest.raises(BadInput, match=r"cannot be written \(N.*\): choose another place with --checkpoint-to$"):
        quiet_train(config)
    assert not run_path(config).exists()


@pytest.mark.parametrize("place", ["runs/first", "runs/first/checkpoints", "moved"])
def test_another_run_s_folder_is_no_place_for_checkpoints(tmp_path: Path, monkeypatch, place: str) -> None:
    """Where one name would stand for the checkpoints of both."""
    first = tiny(tmp_path, name="first", stop_at=4, checkpoint_to="moved")
    monkeypatch.chdir(tmp_path)
    quiet_train(first)
    run_path(first).joinpath("checkpoints").mkdir()
    Path("moved/config.json").write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    for to in (place, str(tmp_path / place), f"file://{tmp_path / place}"):
        with pytest.raises(BadInput, match=r"^checkpoint_to is .*, but .* is a run folder: it holds (ev|co).*json"):
            quiet_train(tiny(tmp_path, name="second", checkpoint_to=to))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("place", ["runs/x", "runs/x/checkpoints"])
def test_a_run_s_own_folder_is(tmp_path: Path, monkeypatch, place: str) -> None:
    monkeypatch.chdir(tmp_path)
    config = tiny(tmp_path, name="x", checkpoint_to=place)
    quiet_train(config, stop_at=4)
    assert quiet_train(config, resume=True)["finished"] and Store(place).steps() == [4, 17]


def test_looking_at_a_place_leaves_no_trace(tmp_path: Path) -> None:
    elsewhere = tmp_path / "new" / "place"
    for options in ({}, {"checkpoint_to": str(elsewhere)}):
        config = tiny(tmp_path, name="x", **options)
        with enter_world(config) as world:
            Checkpoints(config, world).close()
        assert not run_path(config).exists() and not elsewhere.parent.exists()


def refused_over_ranks(config: TrainConfig) -> str:
    """The one sentence that both of two ranks say."""
    first, second = (re.sub(r"checkpoints/\d", "checkpoints", said) for said in train_over_ranks(config, 2))
    assert first == second and first.startswith("BadInput: "), (first, second)
    assert not (run_path(config) / runfolder.EVENTS).exists()
    return first


@pytest.mark.slow
def test_memory_is_no_place_for_several_processes(tmp_path: Path) -> None:
    said = refused_over_ranks(tiny(tmp_path, checkpoint_to=f"memory://{uuid.uuid4().hex}"))
    assert "which each of the 2 processes has for itself: give a folder or URL that all share" in said


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["", "replica=1,fsdp=2"])
def test_a_place_that_the_ranks_do_not_share_is_refused_before_the_first_step(tmp_path, monkeypatch, mesh: str) -> None:
    """As on hosts that have each a folder of this name."""
    good = CheckpointOptions.build_store

    def build_store(self: CheckpointOptions, folder: Path) -> Store:
        return good(self, folder / os.environ["RANK"])

    monkeypatch.setattr(CheckpointOptions, "build_store", build_store)
    monkeypatch.setattr(place_check, "SEEN_S", 0.2)
    said = refused_over_ranks(tiny(tmp_path, mesh=mesh, replicas=1 if mesh else 2))
    assert "rank 1 does not see there what rank 0 writes" in said and "--checkpoint-to" in said
    assert list(tmp_path.rglob("probe*")) == []


@pytest.mark.slow
def test_the_rank_that_cannot_write_is_named(tmp_path: Path, monkeypatch) -> None:
    good = CheckpointOptions.build_store

    def build_store(self: CheckpointOptions, folder: Path) -> Store:
        return good(self, folder if os.environ["RANK"] == "0" else Path("/proc/nope"))

    monkeypatch.setattr(CheckpointOptions, "build_store", build_store)
    said = refused_over_ranks(tiny(tmp_path))
    assert "rank 1: /proc/nope/probe-" in said and "choose another place with --checkpoint-to" in said


def fail_at(steps: list[int], monkeypatch: pytest.MonkeyPatch, fault: Exception | None = None) -> None:
    good = job.write_part

    def write(storage, step: int, *rest):
        if step in steps:
            raise fault or OSError(f"step {step} cannot be written (No space left on device): choose another place")
        return good(storage, step, *rest)

    monkeypatch.setattr(job, "write_part", write)


def test_a_checkpoint_that_fails_is_said_and_the_run_goes_on(tmp_path: Path, monkeypatch) -> None:
    whole, hurt = (tiny(tmp_path, name=name, checkpoint_every=1, keep=0) for name in ("whole", "hurt"))
    receipt = quiet_train(whole)
    fail_at([8], monkeypatch)
    last = quiet_train(hurt)
    assert last["ok"] and curve(whole) == curve(hurt) and checkpoint_bits(whole) == checkpoint_bits(hurt)
    assert store_of(hurt).steps() == [4, 12, 16, 17] and bases(store_of(hurt)) == [None, None, 12, 16]
    (note,) = [e["text"] for e in events(hurt, "note")]
    assert note == (
        "a checkpoint was not written: step 8 cannot be written (No space left on device): choose another place"
    )
    assert receipt["loss"] == last["loss"]


@pytest.mark.parametrize(("fault", "why"), [(MemoryError(), "MemoryError"), (KeyError("x"), "KeyError: 'x'")])
def test_any_fault_of_the_writer_s_thread_names_the_save(tmp_path: Path, monkeypatch, fault, why: str) -> None:
    config = tiny(tmp_path, checkpoint_every=1, keep=0)
    fail_at([8, 17], monkeypatch, fault)
    with pytest.raises(OSError, match=rf"step-00000017 could not be written \({why}\)$"):
        quiet_train(config)
    assert store_of(config).steps() == [4, 12, 16] and bases(store_of(config)) == [None, None, 12]
    (note,) = [e["text"] for e in events(config, "note")]
    assert note.startswith("a checkpoint was not written: ") and note.endswith(f"8 could not be written ({why})")


@pytest.mark.parametrize("background", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_last_checkpoint_that_fails_fails_the_run(tmp_path: Path, monkeypatch, background: bool) -> None:
    """What was there before stays, and the run can be resumed from it."""
    options = {"checkpoint_every": 1, "checkpoint_background": background}
    whole, hurt = (tiny(tmp_path, name=name, **options) for name in ("whole", "hurt"))
    receipt = quiet_train(whole)
    with monkeypatch.context() as patch:
        fail_at([17], patch)
        with pytest.raises(OSError, match="^step 17 cannot be written"):
            quiet_train(hurt)
    assert store_of(hurt).latest_whole() == (16, [])
    assert_same_run(whole, receipt, hurt, quiet_train(hurt, resume=True))


def test_the_best_stay(tmp_path: Path) -> None:
    """Their loss is that of the very weights they hold."""
    config = tiny(tmp_path, checkpoint_every=1, keep=1, keep_best=2, full_every=1, eval_every=-1)
    quiet_train(config)
    losses = {e["step"]: e["loss"] for e in events(config, "eval")}
    assert list(losses) == [4, 8, 12, 16, 17]
    best = sorted(losses, key=losses.get)[:2]
    store = store_of(config)
    assert store.steps() == sorted({17, *best})
    assert all(store.manifest(step).meta["loss"] == losses[step] for step in store.steps())


def test_every_so_many_th_stays(tmp_path: Path) -> None:
    config = tiny(tmp_path, checkpoint_every=1, keep=1, keep_every=2, full_every=1)
    quiet_train(config)
    assert store_of(config).steps() == [8, 16, 17]


def test_weights_that_are_the_anchor_are_stored_once(tmp_path: Path) -> None:
    """Right at a sync, in one process and in two, where another one writes the anchor."""
    config = tiny(tmp_path, stop_at=8, checkpoint_kind="plain")
    quiet_train(config)
    folder = run_path(config) / runfolder.CHECKPOINTS / "step-00000008"
    weights = load(folder, [GLOBAL])[0][GLOBAL]["anchor"]
    size_bytes = sum(w.nbytes for w in weights.values())
    assert sum(f.stat().st_size for f in folder.iterdir()) < 6.5 * size_bytes  # anchor, momentum, 2 x 2 moments


@pytest.mark.slow
def test_in_two_processes_they_are_too(tmp_path: Path) -> None:
    config = tiny(tmp_path, stop_at=8)
    one, many = (dataclasses.replace(config, name=name) for name in ("one", "many"))
    quiet_train(one), train_over_ranks(many, 2)
    assert checkpoint_bits(one) == checkpoint_bits(many)
    folder = run_path(many) / runfolder.CHECKPOINTS / "step-00000008"
    part = PartFile(folder / "replica-1.0.safetensors", folder / "replica-1.0.json", "replica-1.0")
    shared = [entry["same"][0] for name, entry in part.entries.items() if name.startswith("model/") and "same" in entry]
    assert set(shared) == {"global.0"} and len(shared) == sum(name.startswith("model/") for name in part.entries)


def test_stalls_are_written_down(tmp_path: Path) -> None:
    config = tiny(tmp_path, checkpoint_every=2)
    quiet_train(config)
    assert all(0 <= e["stall_s"] < 60 for e in events(config, "checkpoint")) and len(events(config, "checkpoint")) == 3


def test_values_are_those_of_the_moment_of_saving(tmp_path: Path, monkeypatch) -> None:
    """Training goes on while a slow disk takes the copy; what is written is not touched by it."""
    import threading

    gate, good = threading.Event(), job.write_part
    config = tiny(tmp_path, checkpoint_every=1, keep=0, stop_at=7, name="slow")
    reference = tiny(tmp_path, checkpoint_every=1, keep=0, stop_at=7, checkpoint_background=False, name="reference")
    quiet_train(reference)
    steps: list[int] = []
    inner_step = Job.inner_step

    def step(self: Job, number: int) -> None:
        inner_step(self, number)
        steps.append(number)
        if number == 6:
            gate.set()

    monkeypatch.setattr(Job, "inner_step", step)
    monkeypatch.setattr(job, "write_part", lambda *args: gate.wait() and good(*args))
    quiet_train(config)
    for number in (4, 7):
        one, two = (load(run_path(c) / runfolder.CHECKPOINTS / f"step-{number:08d}")[0] for c in (config, reference))
        for unit in one:
            assert all(torch.equal(one[unit]["model"][n], two[unit]["model"][n]) for n in one[unit].get("model", {}))
        assert all(torch.equal(one[GLOBAL]["anchor"][n], two[GLOBAL]["anchor"][n]) for n in one[GLOBAL]["anchor"])


def fail_on_rank_one(storage, step: int, part: str, *rest):
    if step == 8 and part == "replica-1.0":
        raise OSError(f"{part} of step {step} cannot be written (No space left on device): choose another place")
    return good_write_part(storage, step, part, *rest)


good_write_part = job.write_part


@pytest.mark.slow
@pytest.mark.parametrize("background", [True, False])
def test_a_rank_that_cannot_write_holds_nobody_up(tmp_path: Path, monkeypatch, background: bool) -> None:
    """All learn of it at the next checkpoint, which is full again."""
    monkeypatch.setattr(job, "write_part", fail_on_rank_one)
    config = tiny(tmp_path, checkpoint_every=1, keep=0, checkpoint_background=background)
    receipts = train_over_ranks(config, 2)
    assert all(isinstance(receipt, dict) and receipt["ok"] for receipt in receipts), receipts
    assert store_of(config).steps() == [4, 12, 16, 17] and bases(store_of(config)) == [None, None, 12, 16]
    assert "replica-1.0 of step 8 cannot be written" in events(config, "note")[-1]["text"]
    assert not Path(store_of(config).name(8)).exists()
    failing = dataclasses.replace(config, name="last", stop_at=8)
    assert all("OSError: replica-1.0 of step 8 cannot" in receipt for receipt in train_over_ranks(failing, 2))
    assert not Path(store_of(failing).name(8)).exists()


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "messages"), [("", 2), ("replica=2,fsdp=2", 2 * 2 + 2)])
def test_ranks_tell_one_another_two_things_a_save(tmp_path: Path, mesh: str, messages: int) -> None:
    """Each message takes a journey over the slow link, with an island a second one inside; there the ranks say besides
    what they hold, in a short message and a long one."""
    config = tiny(tmp_path, mesh=mesh, checkpoint_every=0, size="100k")

    def work(job: Job) -> list[int]:
        counts = []
        for step in range(6):
            job.inner_step(step)
            with Messages() as sent:
                job.checkpoints.save(step + 1, job.replicas, 0.0)
            counts.append(sent.count)
        job.checkpoints.finish()
        return counts

    found = job_over_ranks(config, 4 if mesh else 2, work)
    assert found == [[messages] * 6] * len(found)
