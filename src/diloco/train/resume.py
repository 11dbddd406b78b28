"""Going on from a checkpoint: with the same replicas bit for bit, with others from what they have in common."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

from diloco.checkpoint import Saved, Store
from diloco.errors import BadInput
from diloco.train.checkpoint_options import CheckpointOptions
from diloco.train.config import TrainConfig, to_dict
from diloco.train.parallel_options import ParallelOptions
from diloco.train.replica import Replica
from diloco.train.run import run_path
from diloco.train.saving import Checkpoints
from diloco.train.sent import SENT
from diloco.train.state import GLOBAL, Reader, restore, unit_of
from diloco.train.world import World
from diloco.watch import runfolder
from diloco.wire.choose import AUTO

# What may change between two legs of one run; anything else would make it another run.
FREE = (
    *(f.name for kind in (CheckpointOptions, ParallelOptions) for f in dataclasses.fields(kind)),
    "replicas",
    "stop_at",
    "eval_every",
    "device",
    "threads",
    "runs",
    "name",
    "resume",
    "anchor_device",
    "link",
    "data.cache_dir",
)


class Resumed(NamedTuple):
    step: int
    seconds: float
    """What the run has taken up to there."""
    replicas: int
    """With how many it was saved."""
    notes: list[str]
    """What could not be carried over, a sentence each."""


def codec_of(store: Store, config: TrainConfig) -> str:
    """The configured codec; where that is `auto` and there is a run to resume, what was chosen at its start."""
    if config.codec != AUTO or not config.resume:
        return config.codec
    step, _ = store.latest_whole(content=False)
    return (step is not None and store.manifest(step).meta.get("codec")) or config.codec


def load(checkpoints: Checkpoints, config: TrainConfig, world: World, replicas: list[Replica]) -> Resumed:
    """Restores the newest whole checkpoint; a run that was killed before its first begins anew. All processes call it.

    Raises BadInput where all are damaged or lack something, or where the run has other settings.
    """
    store = checkpoints.store
    # Every byte is looked at once, by the main process; the others check what they read themselves.
    step, skipped = checkpoints.share(world.together(lambda: store.latest_whole() if world.main else None))
    if step is None:
        _check_anew(store, skipped, config)
        return Resumed(0, 0.0, config.replicas, ["it had no checkpoint yet, so it began anew"])
    saved = store.open(step, verify=not world.main)
    _check_same_run(saved.meta["config"], to_dict(config), saved.name)
    for_replicas = 1 if config.method == "dp" else saved.meta["replicas"]
    with_local = config.method == "dp" or for_replicas == config.replicas
    shared: dict[str, Any] = {}
    for m, replica in zip(world.mine, replicas, strict=False):
        reader = Reader(saved, replica, in_island=world.exchange.island.size > 1)
        if not shared:
            stored = reader.stored(GLOBAL)
            shared = reader.read(stored, stored)
        _restore(reader, replica, unit_of(m % for_replicas), shared, with_local)
    if world.virtual_s is not None and saved.meta.get("clock"):
        world.exchange.clock.load_state_dict(_clock_of(saved.meta["clock"], config.replicas))
    notes = [f"skipped a damaged checkpoint: {reason}" for reason in skipped]
    if world.main and (dropped := store.drop_after(step)):
        named = ", ".join(f"step {newer}" for newer in dropped)
        notes.append(f"removed {named}, which the run writes anew: it goes on from step {step}")
    return Resumed(step, saved.meta["seconds"], saved.meta["replicas"], notes)


def _check_anew(store: Store, skipped: list[str], config: TrainConfig) -> None:
    if skipped:
        raise BadInput(
            f"{store} holds no whole checkpoint to resume from ({'; '.join(store.causes())}): start another run with "
            "--name"
        )
    file = run_path(config) / runfolder.CONFIG
    if not file.is_file() or "config" not in (record := runfolder.read_json(file)):
        raise BadInput(f"{file} does not say what run this was, and there is no checkpoint: start another with --name")
    _check_same_run(record["config"], to_dict(config), file)


def _restore(reader: Reader, replica: Replica, unit: str, shared: dict, with_local: bool) -> None:
    """`with_local`: what a replica has not got across yet is its own, and means nothing to another number of them."""
    stored, where = reader.stored(unit), f"{reader.saved.name}/{unit}"
    _check_complete(where, stored, replica, just_reset=_just_reset(stored, reader.saved))
    keys = ("model", "optimizer", "counts", SENT, *(("local",) if with_local else ()))
    restore(replica, reader.read(stored, keys), shared, where)


def _clock_of(saved: dict[str, list[float]], replicas: int) -> dict[str, list[float]]:
    """The saved virtual clock; where replicas are others now, one on which all go on from the latest time."""
    if len(saved["now_s"]) == replicas:
        return saved
    now = [max(saved["now_s"])] * replicas
    return {"now_s": now, "line_free_s": now, "stalled_s": [0.0] * replicas}


def _check_complete(where: str, tree: dict, replica: Replica, just_reset: bool) -> None:
    """Raises BadInput where a part would restore less than it should: moments that start from zero shock the loss."""
    wanted = ["model", "optimizer", *(["counts", "local"] if replica.sync is not None else [])]
    missing = [key for key in wanted if key not in tree or (key in ("model", "optimizer") and not tree[key])]
    if missing and not (missing == ["optimizer"] and just_reset):
        raise BadInput(
            f"{where} lacks {missing[0]}, without which the run would not be the same: use another checkpoint"
        )


def _just_reset(stored: dict, saved: Saved) -> bool:
    """Whether the replica was reset at this very step, which clears moments that were not finite."""
    return stored.get("counts", {}).get("reset_step") == saved.step


def change_replicas(replicas: list[Replica], saved: int) -> list[str]:
    """Another number of replicas than the `saved` one: all start from the anchor, since an open window cannot be
    divided among them. Rounds that were under way land. Returns what there is to say, a sentence each."""
    now, sync = replicas[0].world.replicas, replicas[0].sync
    if sync is None or now == saved:
        return []
    lost = [r.sync.restart_window() for r in replicas][0]
    notes = [f"resumed with {now} replicas instead of {saved}: inner optimizer states were taken over in turn"]
    if lost:
        notes.append(f"the {lost} inner steps since the last sync were dropped")
    if sync.codec.feedback:
        notes.append("what error feedback had kept back was dropped")
    return notes


def _check_same_run(saved: dict, now: dict, path: Path | str, prefix: str = "") -> None:
    for key, value in now.items():
        was = saved.get(key)
        if isinstance(value, dict) and isinstance(was, dict):
            _check_same_run(was, value, path, f"{key}.")
        elif prefix + key not in FREE and was != value:
            raise BadInput(
                f"{prefix}{key} is {value!r} but {path} was saved with {was!r}: resume with the same value, or start "
                "another run with --name"
            )
