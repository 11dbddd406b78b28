"""A checkpoint of several ranks: it waits for all, and a rank that fails costs that one only.

pytest tests/checkpoint/test_writer_ranks.py
"""

from __future__ import annotations

import pytest
import torch

from diloco.checkpoint import Store, Writer, load
from diloco.checkpoint.manifest import read_record
from diloco.checkpoint.parts import PartFile
from diloco.errors import BadInput


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


def test_a_rank_that_writes_nothing_may_come_after_the_others_have_finished(tmp_path):
    """Of data parallel replicas only the first writes. One that does write is refused."""
    store = Store(tmp_path)
    first, second = (Writer(store, "run", background=False) for _ in range(2))
    first.save(1, {"x.0": {"a": torch.ones(3)}}, ["x.0"], {})
    second.save(1, {}, ["x.0"], None)
    for parts, meta in (({"x.0": {}}, None), ({}, {})):
        with pytest.raises(BadInput, match="step-00000001 holds a checkpoint already"):
            second.save(1, parts, ["x.0"], meta)
    assert store.verify(1) == []
