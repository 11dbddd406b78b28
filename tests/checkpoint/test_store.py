"""A checkpoint is whole or not there; damage is refused with its name.

pytest tests/checkpoint/test_store.py
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from diloco import checkpoint
from diloco.checkpoint import Policy, Store, Writer, drop_after, latest_whole, load, save, steps
from diloco.errors import BadInput


def trees(value: float) -> dict:
    return {"global": {"w": torch.full((100,), value)}, "replica-0": {"step": int(value), "m": torch.full((3,), value)}}


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def folders(*numbers: int) -> list[str]:
    return [f"step-{number:08d}" for number in numbers]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    """Made once, since a save waits for the disk; tests work on copies."""
    two, chain = tmp_path_factory.mktemp("two"), tmp_path_factory.mktemp("chain")
    for step in (1, 2):
        save(two, step, trees(step), {})
    writer = Writer(Store(chain), full_every=3, background=False, keep=Policy(last=0))
    w = torch.linspace(1, 2, 300)
    for step in range(1, 5):
        parts = {"global.0": {"w": w + step / 1000}, "replica-0.0": {"m": w * step}}
        writer.save(step, parts, list(parts), {}, base=writer.next_base())
    writer.close()
    return {"two": two, "chain": chain}


@pytest.fixture
def two_steps(models, tmp_path) -> Path:
    return shutil.copytree(models["two"], tmp_path, dirs_exist_ok=True)


@pytest.fixture
def chain(models, tmp_path) -> Path:
    """Step 1 is full, 2 and 3 are differences, 4 is full again."""
    return shutil.copytree(models["chain"], tmp_path, dirs_exist_ok=True)


def test_save_and_load(tmp_path):
    path = save(tmp_path / "new" / "root", 7, trees(7.0), {"tokens": 123})
    loaded, meta = load(path)
    assert path.name == "step-00000007" and meta == {"tokens": 123}
    assert list(loaded) == ["global", "replica-0"] and loaded["replica-0"]["step"] == 7
    assert torch.equal(loaded["global"]["w"], torch.full((100,), 7.0))
    assert names(tmp_path / "new" / "root") == folders(7)


def test_a_saved_file_is_plain_safetensors(two_steps):
    from safetensors.torch import load_file

    assert torch.equal(load_file(two_steps / "step-00000002" / "global.0.safetensors")["w"], torch.full((100,), 2.0))


def test_one_unit_alone(two_steps):
    loaded, _ = load(two_steps / "step-00000002", ["replica-0"])
    assert list(loaded) == ["replica-0"]
    with pytest.raises(BadInput, match="no part 'replica-9': it holds global, replica-0"):
        load(two_steps / "step-00000002", ["replica-9"])


def test_every_tied_reference_comes_back_as_one_tensor(tmp_path):
    weight = torch.randn(100)
    loaded, _ = load(save(tmp_path, 1, {"m": {"embed": weight, "head": weight}}, {}))
    assert loaded["m"]["embed"] is loaded["m"]["head"]


def test_equal_tensors_are_stored_once_and_come_back_apart(tmp_path):
    """Right after a sync each replica's weights are the anchor."""
    value = torch.randn(10_000)
    same = {f"replica-{m}": {"model": {"w": value.clone()}} for m in range(4)}
    path = save(tmp_path, 1, {"global": {"anchor": {"w": value}}, **same}, {})
    assert sum(file.stat().st_size for file in path.iterdir()) < 1.2 * value.nbytes
    loaded, _ = load(path)
    assert all(torch.equal(loaded[f"replica-{m}"]["model"]["w"], value) for m in range(4))
    assert loaded["replica-0"]["model"]["w"].data_ptr() != loaded["replica-1"]["model"]["w"].data_ptr()


@pytest.mark.parametrize("keep, left", [(1, [4]), (2, [3, 4]), (0, [1, 2, 3, 4])])
def test_retention(tmp_path, keep, left):
    for step in (1, 2, 3, 4):
        save(tmp_path, step, trees(step), {}, keep=keep)
    assert names(tmp_path) == folders(*left)


def test_retention_counts_whole_checkpoints_only(two_steps):
    (two_steps / "step-00000002" / "global.0.json").unlink()
    save(two_steps, 3, trees(3.0), {}, keep=2)
    assert names(two_steps) == folders(1, 2, 3)
    save(two_steps, 4, trees(4.0), {}, keep=2)
    assert names(two_steps) == folders(3, 4)


def test_a_checkpoint_is_not_written_over_and_a_torn_one_is(two_steps):
    before = (two_steps / "step-00000002" / "manifest.json").read_bytes()
    with pytest.raises(BadInput, match="step-00000002 holds a checkpoint already"):
        save(two_steps, 2, trees(5.0), {})
    assert (two_steps / "step-00000002" / "manifest.json").read_bytes() == before
    (two_steps / "step-00000002" / "global.0.safetensors").write_bytes(b"")
    save(two_steps, 2, trees(5.0), {})
    assert load(two_steps / "step-00000002")[0]["replica-0"]["step"] == 5
    assert names(two_steps) == folders(1, 2)


def test_what_killed_runs_left_is_no_checkpoint_and_goes(two_steps):
    for step in (1, 2, 3, 9):
        folder = two_steps / f"step-{step:08d}"
        folder.mkdir(exist_ok=True)
        (folder / "replica-7.0.safetensors").write_bytes(b"half")
    assert [p.name for p in steps(two_steps)] == folders(1, 2)
    path = save(two_steps, 4, trees(4.0), {}, keep=0)
    assert names(two_steps) == folders(1, 2, 4, 9) and latest_whole(two_steps) == (path, [])
    assert drop_after(two_steps, 3) == [path]
    assert names(two_steps) == folders(1, 2)


def test_parts_of_a_killed_run_with_more_ranks_go(tmp_path):
    folder = tmp_path / "step-00000003"
    folder.mkdir()
    (folder / "replica-7.0.safetensors").write_bytes(b"half")
    assert sorted(load(save(tmp_path, 3, trees(3.0), {}))[0]) == ["global", "replica-0"]
    assert "replica-7.0.safetensors" not in names(folder)


def test_drop_after(two_steps):
    assert drop_after(two_steps, 1) == [two_steps / "step-00000002"]
    assert names(two_steps) == folders(1)
    assert drop_after(two_steps / "nowhere", 1) == []


# -- damage


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
FILES = ["global.0.safetensors", "replica-0.0.safetensors", "replica-0.0.json", "manifest.json"]


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_any_damaged_file_fails_loudly_report_22(two_steps, file, damage):
    """With any piece of the state gone or changed, load names it and resume falls back to the checkpoint before."""
    newest = two_steps / "step-00000002"
    damage(newest / file)
    with pytest.raises(BadInput, match=file):
        load(newest)
    assert checkpoint.verify(newest) and file in checkpoint.verify(newest)[0]
    path, skipped = latest_whole(two_steps)
    assert path == two_steps / "step-00000001"
    gone = file == "manifest.json" and not (newest / file).exists()  # as if it had never been finished
    assert gone or (len(skipped) == 1 and file in skipped[0])


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("hurt, whole, spoilt", [(1, 4, [1, 2, 3]), (2, 4, [2, 3]), (3, 4, [3]), (4, 3, [4])])
def test_a_damaged_link_spoils_those_that_rest_on_it_and_no_others(chain, file, damage, hurt, whole, spoilt):
    damage(chain / f"step-{hurt:08d}" / file)
    store = Store(chain)
    for step in range(1, 5):
        problems = store.verify(step)
        assert bool(problems) == (step in spoilt)
        assert all(f"step-{hurt:08d}/{file}" in problem or "rest on it" in problem for problem in problems)
    for step in spoilt:
        with pytest.raises(BadInput, match=f"step-{hurt:08d}"):
            load(chain / f"step-{step:08d}")
    assert store.latest_whole()[0] == whole
    if hurt < 4:
        store.remove(4)
        assert store.latest_whole()[0] == (hurt - 1 or None)


def test_a_missing_link_is_named(chain):
    Store(chain).remove(2)
    assert Store(chain).latest_whole() == (4, [])
    (problem,) = Store(chain).verify(3)
    assert "step-00000002/manifest.json is missing" in problem and "step-00000003 holds differences" in problem


def test_another_checkpoint_in_a_links_place_is_refused(chain):
    """Whole in itself, yet not what the difference was taken to."""
    Store(chain).remove(2)
    save(chain, 2, trees(2.0), {}, keep=0)
    assert Store(chain).verify(2) == []
    assert "step-00000002 is not the checkpoint that" in Store(chain).verify(3)[0]


def edit_manifest(path: Path, **changes) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, **changes}))


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"version": 1}, "has format version 1, but this program reads 2: use a matching release"),
        ({"format": "other"}, "is not a diloco-checkpoint manifest"),
        ({"meta": {"tokens": 1}}, "does not match its own sha256"),
        ({"extra": 1}, "does not match its own sha256"),
        ({"parts": {}}, "does not match its own sha256"),
    ],
)
def test_edited_manifest_is_refused(two_steps, changes, reason):
    edit_manifest(two_steps / "step-00000002", **changes)
    with pytest.raises(BadInput, match=reason):
        load(two_steps / "step-00000002")
    assert latest_whole(two_steps)[0].name == "step-00000001"


def test_files_that_do_not_belong_together_are_refused_even_without_hashes(tmp_path):
    from safetensors.torch import save_file

    path = save(tmp_path, 1, {"global": {"w": torch.ones(64)}}, {})
    file = path / "global.0.safetensors"
    size_bytes = file.stat().st_size
    for elements in range(1, 64):
        save_file({"w": torch.ones(elements), "extra": torch.ones(1)}, file)
        if file.stat().st_size == size_bytes:
            break
    with pytest.raises(BadInput, match="'extra' is in only one of them"):
        load(path, verify=False)


def test_other_content_is_refused_even_without_hashes(tmp_path):
    """What decoding gives is compared too, so a base or a code that is not the right one cannot load wrong."""
    from safetensors.torch import save_file

    path = save(tmp_path, 1, {"global": {"w": torch.ones(64)}}, {})
    save_file({"w": torch.zeros(64)}, path / "global.0.safetensors")
    with pytest.raises(BadInput, match="'w' does not come out as it was saved"):
        load(path, verify=False)


def test_sizes_are_checked_even_without_hashes(two_steps):
    truncate(two_steps / "step-00000002" / "global.0.safetensors")
    with pytest.raises(BadInput, match="global.0.safetensors has .* bytes instead of"):
        load(two_steps / "step-00000002", verify=False)


RUBBISH = (None, 7, -1, 1e9, "x", "nn", [], [-1], ["x"], [10**30], {}, {"$shard": 1}, {"a": {}}, True)


def places(node, path=()):
    """The path of each value in a JSON document, its own first."""
    yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


def with_rubbish(document, path: tuple, rubbish):
    if not path:
        return rubbish
    copied = json.loads(json.dumps(document))
    node = copied
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = rubbish
    return copied


@pytest.mark.parametrize("kind", ["lossless", "lossy"])
def test_whatever_a_parts_json_says_is_refused_or_read_right(tmp_path, monkeypatch, kind):
    """Each value in turn as something else, with nothing verified: one sentence, never a fault of ours, no hanging."""
    writer = Writer(Store(tmp_path), kind=kind, background=False)
    w = torch.linspace(1, 2, 2000)
    tree = {"w": w, "twin": w.clone(), "few": torch.ones(3), "rounds": (1, float("inf")), "by": {1: 2}}
    for step in (1, 2):
        tree["w"] += 1e-3
        tree["twin"] = tree["w"].clone()
        writer.save(step, {"x.0": tree}, ["x.0"], {}, base=writer.next_base())
    monkeypatch.setattr("diloco.checkpoint.saved.file_problem", lambda *_: None)
    file = tmp_path / "step-00000002" / "x.0.json"
    right, meant = json.loads(file.read_text()), load(file.parent)[0]["x"]
    refused = 0
    for path in places(right):
        for rubbish in RUBBISH:
            file.write_text(json.dumps(with_rubbish(right, path, rubbish)))
            try:
                found = load(file.parent, verify=False)[0]["x"]
            except BadInput as error:
                refused += 1
                assert "step-00000002" in str(error) and "\n" not in str(error)
            else:
                # What is no tensor has no checksum of its own.
                assert path[0:1] != ("tensors",) or all(torch.equal(found[n], meant[n]) for n in ("w", "twin", "few"))
    assert refused > 300


def test_a_tensor_that_refers_to_itself_is_refused(tmp_path, monkeypatch):
    path = save(tmp_path, 1, {"x": {"a": torch.ones(300), "b": torch.ones(300)}}, {})
    monkeypatch.setattr("diloco.checkpoint.saved.file_problem", lambda *_: None)
    right = json.loads((path / "x.0.json").read_text())
    for entry in right["tensors"].values():
        entry["same"] = ["x.0", "b"]
    from safetensors.torch import save_file

    save_file({}, path / "x.0.safetensors")
    (path / "x.0.json").write_text(json.dumps(right))
    with pytest.raises(BadInput, match="it refers to itself"):
        load(path, verify=False)


def test_a_manifest_that_says_nonsense_is_refused(two_steps):
    from diloco.checkpoint.manifest import _digest

    file = two_steps / "step-00000002" / "manifest.json"
    right = json.loads(file.read_text())
    for changes in ({"parts": 1}, {"parts": {"x.0": 1}}, {"parts": {"x.0": {"a": 1}}}, {"base": 1}, {"more": 1}):
        body = {**right, **changes}
        file.write_text(json.dumps({**body, "sha256": _digest(body)}))
        with pytest.raises(BadInput, match="manifest.json is no manifest of this version"):
            load(file.parent)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_files_have_the_mode_that_the_umask_gives(tmp_path, mask):
    """The safetensors too, which their library lets nobody but the owner read."""
    before = os.umask(mask)
    try:
        path = save(tmp_path, 1, {"x": {"w": torch.ones(300)}}, {})
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o666 & ~mask}


def test_not_a_checkpoint(tmp_path):
    with pytest.raises(BadInput, match="manifest.json is missing"):
        load(tmp_path / "nowhere" / "step-00000001")
    assert latest_whole(tmp_path) == latest_whole(tmp_path / "nowhere") == (None, [])
    for path in (tmp_path, "memory://x/y"):
        with pytest.raises(BadInput, match="name one called step-00000123"):
            load(path)


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "a b", "a.b"])
def test_unit_names_are_file_names(tmp_path, name):
    with pytest.raises(ValueError, match="unit name"):
        save(tmp_path / "x", 1, {name: {}}, {})
    assert names(tmp_path) == []


def test_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="file/step-00000001/.* cannot be written .*choose another place"):
        save(tmp_path / "file", 1, trees(1.0), {})
