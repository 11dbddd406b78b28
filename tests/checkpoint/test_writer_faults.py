"""Disks that are full, read-only or broken: one sentence, and nothing earlier is lost.

pytest tests/checkpoint/test_writer_faults.py
"""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.chains import PLACES, check, place, trees, write

from diloco.checkpoint import Store, Writer


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
