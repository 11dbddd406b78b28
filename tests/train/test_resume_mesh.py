"""Going on under the same mesh to the bit, and under any other from the same files.

pytest tests/train/test_resume_mesh.py
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from support.processes import fork_ranks
from support.training import assert_same_numbers, curve, events, free_port, quiet_train, tiny, train_over_ranks

from diloco import checkpoint
from diloco.checkpoint.shards import chunk_of, whole
from diloco.shards import is_sharded, local
from diloco.train import loop
from diloco.train.config import TrainConfig
from diloco.train.run import run_path
from diloco.train.state import trees_of
from diloco.train.trained import open_trained
from diloco.watch import runfolder

pytestmark = pytest.mark.slow

STREAMING = {"fragments": "strided:2", "overlap": "2", "mixing": "0.5", "codec": "e3m0+ef"}


def newest(config: TrainConfig) -> tuple[dict[str, Any], dict]:
    path, skipped = checkpoint.latest_whole(run_path(config) / runfolder.CHECKPOINTS)
    assert skipped == []
    return checkpoint.load(path)


@pytest.mark.parametrize("mesh", ["fsdp=2", "tp=2", "pp=2", "dp=2"])
def test_the_same_mesh_goes_on_to_the_bit(tmp_path: Path, mesh: str) -> None:
    """Stopped in mid-window, with a fragment under way and residuals kept back, at a difference to the one before."""
    options = {"mesh": f"replica=2,{mesh}", "checkpoint_every": 1, "keep": 0, **STREAMING}
    unbroken, parts = (tiny(tmp_path, name=name, **options) for name in ("unbroken", "parts"))
    first = train_over_ranks(unbroken, 4)
    for stop in (9, 0):
        last = train_over_ranks(dataclasses.replace(parts, stop_at=stop, resume=stop == 0), 4)
    assert all(isinstance(receipt, dict) for receipt in first + last), first + last
    assert [receipt["checksum"] for receipt in first] == [receipt["checksum"] for receipt in last]
    assert_same_numbers(unbroken, parts)


# -- another mesh, another number of replicas


def differences(job: loop.Job, saved: dict[str, Any], replicas: int) -> list[str]:
    """Anchor, outer momentum and inner moments on this rank that are not, bit for bit, the checkpoint's."""
    replica, shared = job.replicas[0], saved["global"]
    state, own = replica.sync.state_dict(), saved[f"replica-{job.world.mine[0] % replicas}"]
    pairs = {f"anchor {n}": (t, shared["anchor"][n]) for n, t in state["anchor"].items()}
    pairs |= {f"momentum {n}": (t, shared["outer"]["momentum"][n]) for n, t in state["outer"]["momentum"].items()}
    for name, moments in trees_of(replica)[0]["optimizer"].items():
        pairs |= {f"{kind} {name}": (t, own["optimizer"][name][kind]) for kind, t in moments.items()}
    found = []
    for name, (tensor, meant) in pairs.items():
        box = (chunk_of(tensor) if is_sharded(tensor) else whole(tensor.shape)).inside(whole(tensor.shape))
        if not torch.equal(local(tensor), meant.view(tensor.shape)[box]):
            found.append(name)
    return found if len(pairs) > 20 else [f"only {list(pairs)}"]


def go_on(config: TrainConfig) -> list[str]:
    """Resumes, compares with what was saved, and trains to the leg's end."""
    saved, meta = newest(config)
    found: list[str] = []
    good = loop.Job.start

    def start(self: loop.Job) -> int:
        step = good(self)
        found.extend(differences(self, saved, meta["replicas"]))
        return step

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Job, "start", start)
        loop.train(config, quiet=True)
    return found


def one_rank(rank: int, results: Any, ranks: int, port: int, config: TrainConfig) -> None:
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
    )  # fmt: skip
    try:
        value: Any = go_on(config)
    except Exception as error:
        value = [f"{type(error).__name__}: {error}"]
    results.put((rank, value))
    results.close()
    results.join_thread()


LEGS = (
    # processes (None: all replicas in this one), mesh, replicas, stop
    (4, "replica=2,fsdp=2", 2, 6),
    (4, "replica=2,tp=2", 2, 7),
    (None, "", 2, 9),
    (4, "replica=1,fsdp=4", 1, 10),
    (4, "", 4, 11),
    (4, "replica=2,pp=2", 2, 13),
    (4, "replica=1,fsdp=2,tp=2", 1, 14),
    (None, "", 1, 17),
)


def test_one_run_over_many_meshes(tmp_path: Path) -> None:
    """fsdp 2 -> tp 2 -> unsharded -> fsdp 4, M 2 -> 4 -> 1, and pipeline stages between: anchor and outer momentum are
    bit-identical each time, and the run goes on."""
    config = tiny(tmp_path, checkpoint_every=1, keep=0, name="run")
    for number, (processes, mesh, replicas, stop) in enumerate(LEGS):
        leg = dataclasses.replace(config, mesh=mesh, replicas=replicas, stop_at=stop, resume=number > 0)
        if number == 0:
            assert all(isinstance(r, dict) for r in train_over_ranks(leg, processes))
        elif processes:
            assert fork_ranks(processes, one_rank, processes, free_port(), leg) == [[]] * processes, (mesh, replicas)
        else:
            assert go_on(leg) == []
    assert [row[0] for row in curve(config)] == list(range(1, 18))
    notes = [e["text"] for e in events(config, "note")]
    assert sum("replicas instead of" in text for text in notes) == 4
    assert curve(config)[-1][2] < curve(config)[0][2]


def test_sharded_runs_open_as_plain_models(tmp_path: Path) -> None:
    """Whatever the mesh, the global weights are those of the anchor in the model's own shapes."""
    for mesh in ("fsdp=2", "tp=2", "pp=2"):
        config = tiny(tmp_path, name=mesh.replace("=", ""), mesh=f"replica=1,{mesh}", replicas=1, stop_at=4)
        receipts = train_over_ranks(config, 2)
        assert all(isinstance(r, dict) for r in receipts), receipts
        model = open_trained(run_path(config)).model
        anchor = newest(config)[0]["global"]["anchor"]
        parameters = dict(model.named_parameters())
        assert anchor.keys() == parameters.keys()
        assert all(torch.equal(anchor[name].flatten(), p.detach().flatten()) for name, p in parameters.items())


def test_each_value_is_written_once(tmp_path: Path) -> None:
    """Norm gains and counters that several ranks hold are in one part, and sharded tensors in pieces."""
    sizes = {}
    for mesh in ("", "replica=1,fsdp=2", "replica=1,tp=2", "replica=1,pp=2"):
        name = mesh.replace("=", "").replace(",", "-") or "plain"
        config = tiny(tmp_path, name=name, mesh=mesh, replicas=1, stop_at=4, checkpoint_kind="plain")
        quiet_train(config) if not mesh else train_over_ranks(config, 2)
        manifest = checkpoint.Store(run_path(config) / runfolder.CHECKPOINTS).manifest(4)
        assert len(manifest.parts) == (4 if mesh else 2)
        sizes[name] = manifest.raw_bytes
    plain = sizes.pop("plain")
    # Both stages of a pipeline hold the tied embedding.
    assert all(plain <= size <= 1.01 * plain for name, size in sizes.items() if "pp" not in name), (plain, sizes)
    assert plain <= sizes["replica1-pp2"] < 2 * plain


def sent(receipt: dict) -> tuple[int, list[int], list[int]]:
    """Bytes of the run, of each round, and of each round inside its site."""
    return receipt["bytes_sent"], *([r[key] for r in receipt["rounds"]] for key in ("bytes_sent", "site_bytes_sent"))


@pytest.mark.parametrize("streaming", [{}, {"fragments": "strided:2", "overlap": "2"}], ids=["plain", "streaming"])
@pytest.mark.parametrize("sites", [1, 2])
def test_bytes_sent_are_the_replica_s_whatever_the_mesh(tmp_path: Path, streaming: dict, sites: int) -> None:
    """In fp32 the shards of two devices take what the whole takes, but for norm gains that each of them sends. Stopped
    in mid-window, with rounds under way; an old round never changes."""
    options = {**streaming, "sites": sites, "site_every": 2} if sites > 1 else streaming
    options = {"replicas": 2 * sites, "checkpoint_every": 0, **options}
    whole = tiny(tmp_path, name="whole", **options)
    expected = quiet_train(whole)
    legs = ((2, 6), (2, 9), (1, 11), (4 // sites, 14), (1, 17))
    config, before = tiny(tmp_path, name="parts", **options), None
    for number, (devices, stop) in enumerate(legs):
        mesh = f"replica={2 * sites},fsdp={devices}" if devices > 1 else ""
        leg = dataclasses.replace(config, mesh=mesh, stop_at=stop, resume=number > 0)
        receipt = train_over_ranks(leg, 2 * sites * devices)[0] if mesh else quiet_train(leg)
        assert isinstance(receipt, dict), receipt
        now = sent(receipt)
        if before is not None:
            assert now[0] >= before[0] and all(n[: len(b)] == b for n, b in zip(now[1:], before[1:], strict=True))
        if mesh:
            assert sum(receipt["bytes_sent_per_device"]) == receipt["bytes_sent"]
        before = now
    assert before[0] == pytest.approx(expected["bytes_sent"], rel=0.1)
    assert receipt["site_bytes_sent"] == pytest.approx(expected["site_bytes_sent"], rel=0.1)
    assert before[1] == pytest.approx(sent(expected)[1], rel=0.1)
