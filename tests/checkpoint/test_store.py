"""A checkpoint is whole or not there; damage is refused with its name.

pytest tests/checkpoint/test_store.py
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from diloco import checkpoint
from diloco.checkpoint import PartInfo, commit, drop_after, latest, latest_whole, load, save, tmp_folder, write_part
from diloco.errors import BadInput


def trees(value: float) -> dict:
    return {"global": {"w": torch.full((5,), value)}, "replica-0": {"step": int(value), "m": torch.full((3,), value)}}


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


@pytest.fixture
def two_steps(tmp_path):
    save(tmp_path, 1, trees(1.0), {})
    save(tmp_path, 2, trees(2.0), {})
    return tmp_path


def test_save_and_load(tmp_path):
    path = save(tmp_path / "new" / "root", 7, trees(7.0), {"tokens": 123})
    loaded, meta = load(path)
    assert path.name == "step-00000007" and meta == {"tokens": 123}
    assert list(loaded) == ["global", "replica-0"] and loaded["replica-0"]["step"] == 7
    assert torch.equal(loaded["global"]["w"], torch.full((5,), 7.0))
    assert names(tmp_path / "new" / "root") == ["step-00000007"]


def test_one_part_alone(two_steps):
    loaded, _ = load(latest(two_steps), ["replica-0"])
    assert list(loaded) == ["replica-0"]
    with pytest.raises(BadInput, match="no part 'replica-9': it holds global, replica-0"):
        load(latest(two_steps), ["replica-9"])


def test_ranks_write_and_rank_zero_commits(tmp_path):
    temporary = tmp_folder(tmp_path, 3)
    parts = [write_part(temporary, f"replica-{rank}", {"w": torch.ones(rank + 1)}) for rank in range(3)]
    sent = [PartInfo(**json.loads(json.dumps(asdict(part)))) for part in parts]
    assert latest(tmp_path) is None
    path = commit(tmp_path, 3, sent, {})
    assert latest(tmp_path) == path
    assert torch.equal(load(path)[0]["replica-2"]["w"], torch.ones(3))


def test_part_that_a_rank_wrote_elsewhere_is_missed(tmp_path):
    part = write_part(tmp_folder(tmp_path / "other_disk", 3), "replica-1", {})
    with pytest.raises(BadInput, match="replica-1.safetensors is missing: all ranks must write to the same disk"):
        commit(tmp_path, 3, [part], {})


def test_leftovers_of_killed_runs_go(two_steps):
    write_part(tmp_folder(two_steps, 1), "global", {})
    write_part(tmp_folder(two_steps, 3), "replica-7", {})
    write_part(tmp_folder(two_steps, 9), "another-rank-is-ahead", {})
    path = commit(two_steps, 3, [write_part(tmp_folder(two_steps, 3), "global", {})], {})
    assert names(path) == ["global.json", "global.safetensors", "manifest.json"]
    assert names(two_steps) == [".step-00000009.tmp", "step-00000001", "step-00000002", "step-00000003"]
    drop_after(two_steps, 3)
    assert names(two_steps) == ["step-00000001", "step-00000002", "step-00000003"]


@pytest.mark.parametrize("keep, left", [(1, [4]), (2, [3, 4]), (0, [1, 2, 3, 4])])
def test_retention(tmp_path, keep, left):
    for step in (1, 2, 3, 4):
        save(tmp_path, step, trees(step), {}, keep=keep)
    assert names(tmp_path) == [f"step-{step:08d}" for step in left]


def test_retention_never_drops_what_was_just_saved(tmp_path):
    save(tmp_path, 9, trees(9.0), {})
    save(tmp_path, 2, trees(2.0), {}, keep=1)
    assert names(tmp_path) == ["step-00000002", "step-00000009"]


def test_retention_counts_whole_checkpoints_only(two_steps):
    (two_steps / "step-00000002" / "global.json").unlink()
    save(two_steps, 3, trees(3.0), {}, keep=2)
    assert names(two_steps) == ["step-00000001", "step-00000002", "step-00000003"]
    save(two_steps, 4, trees(4.0), {}, keep=2)
    assert names(two_steps) == ["step-00000003", "step-00000004"]


def test_same_content_again_is_fine_and_other_content_is_refused(two_steps):
    before = (two_steps / "step-00000002" / "manifest.json").read_bytes()
    save(two_steps, 2, trees(2.0), {})
    assert (two_steps / "step-00000002" / "manifest.json").read_bytes() == before
    with pytest.raises(BadInput, match="step-00000002 already holds another checkpoint"):
        save(two_steps, 2, trees(5.0), {})
    assert names(two_steps) == ["step-00000001", "step-00000002"]


def test_torn_checkpoint_of_the_same_step_is_replaced(two_steps):
    (two_steps / "step-00000002" / "global.safetensors").write_bytes(b"")
    save(two_steps, 2, trees(5.0), {})
    assert load(two_steps / "step-00000002")[0]["replica-0"]["step"] == 5
    assert names(two_steps) == ["step-00000001", "step-00000002"]


def test_drop_after(two_steps):
    assert drop_after(two_steps, 1) == [two_steps / "step-00000002"]
    assert names(two_steps) == ["step-00000001"]
    assert drop_after(two_steps / "nowhere", 1) == []


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip_byte(path):
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "truncated": truncate,
    "empty": lambda path: path.write_bytes(b""),
    "flipped byte": flip_byte,
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("file", ["global.safetensors", "replica-0.safetensors", "replica-0.json", "manifest.json"])
def test_any_damaged_file_fails_loudly_report_22(two_steps, file, damage):
    """With any piece of the state gone or changed, load names it and resume falls back to the checkpoint before."""
    newest = two_steps / "step-00000002"
    damage(newest / file)
    with pytest.raises(BadInput, match=file):
        load(newest)
    assert checkpoint.verify(newest) and file in checkpoint.verify(newest)[0]
    path, skipped = latest_whole(two_steps)
    assert path == two_steps / "step-00000001"
    assert len(skipped) == 1 and file in skipped[0]


def edit_manifest(path: Path, **changes) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, **changes}))


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"version": 2}, "has format version 2, but this program reads 1"),
        ({"format": "other"}, "is not a diloco-checkpoint manifest"),
        ({"meta": {"tokens": 1}}, "does not match its own sha256"),
        ({"extra": 1}, "does not match its own sha256"),
        ({"parts": []}, "does not match its own sha256"),
    ],
)
def test_edited_manifest_is_refused(two_steps, changes, reason):
    edit_manifest(two_steps / "step-00000002", **changes)
    with pytest.raises(BadInput, match=reason):
        load(two_steps / "step-00000002")
    assert latest(two_steps).name == "step-00000001"


def test_extra_tensor_is_refused_even_without_hashes(tmp_path):
    from safetensors.torch import save_file

    path = save(tmp_path, 1, {"global": {"w": torch.ones(64)}}, {})
    size_bytes = (path / "global.safetensors").stat().st_size
    for elements in range(1, 64):
        save_file({"w": torch.ones(elements), "extra": torch.ones(1)}, path / "global.safetensors")
        if (path / "global.safetensors").stat().st_size == size_bytes:
            break
    with pytest.raises(BadInput, match="'extra' belongs nowhere"):
        load(path, verify=False)


def test_sizes_are_checked_even_without_hashes(two_steps):
    truncate(two_steps / "step-00000002" / "global.safetensors")
    with pytest.raises(BadInput, match="global.safetensors has .* bytes instead of"):
        load(two_steps / "step-00000002", verify=False)
    assert latest(two_steps).name == "step-00000001"


def test_not_a_checkpoint(tmp_path):
    with pytest.raises(BadInput, match="manifest.json is missing"):
        load(tmp_path / "nowhere")
    assert latest(tmp_path / "nowhere") is None
    assert latest_whole(tmp_path) == (None, [])
    with pytest.raises(BadInput, match="name one called step-00000123"):
        checkpoint.step_of(tmp_path)


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "manifest", "a b"])
def test_part_names_are_file_names(tmp_path, name):
    with pytest.raises(ValueError, match="part name"):
        write_part(tmp_path / "x", name, {})
    assert names(tmp_path) == []


def test_parts_must_differ(tmp_path):
    part = write_part(tmp_folder(tmp_path, 1), "a", {})
    for parts in ([], [part, part]):
        with pytest.raises(ValueError, match="parts with different names"):
            commit(tmp_path, 1, parts, {})


def test_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BadInput, match="file cannot be written .*: choose another"):
        save(tmp_path / "file", 1, trees(1.0), {})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(BadInput, match="cannot be written"):
        save(tmp_path, 1, trees(1.0), {})


@pytest.mark.parametrize("writer", ["_write_tensors", "_write_json"])
def test_full_disk_leaves_the_checkpoints_before_it(two_steps, monkeypatch, writer):
    def write_half(path, content):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(f"diloco.checkpoint.store.{writer}", write_half)
    with pytest.raises(OSError, match="No space left"):
        save(two_steps, 3, trees(3.0), {})
    assert names(two_steps) == ["step-00000001", "step-00000002"]
    assert latest_whole(two_steps) == (two_steps / "step-00000002", [])


def test_failing_writer_of_the_library_is_an_oserror(tmp_path):
    from diloco.checkpoint.store import _write_tensors

    with pytest.raises(OSError, match="cannot write .*nowhere"):
        _write_tensors(tmp_path / "nowhere" / "x.safetensors", {"w": torch.ones(1)})
