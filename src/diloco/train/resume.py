"""What a checkpoint of a run holds, and going on from it.

Parts: `global` (anchor, outer state, rounds) once, and `replica-m` (local weights, inner optimizer state, counters) for
each replica. Data order, learning rates and random numbers are functions of the step, so they need no state.
"""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import NamedTuple

from diloco import checkpoint
from diloco.checkpoint.manifest import read_manifest
from diloco.errors import BadInput
from diloco.train.config import TrainConfig, config_hash, to_dict
from diloco.train.replica import Replica
from diloco.train.world import World
from diloco.watch import runfolder
from diloco.wire.choose import AUTO

FORMAT = 2

# What may change between two legs of one run; anything else would make it another run.
FREE = (
    "replicas",
    "stop_at",
    "keep",
    "checkpoint_every",
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


def save(
    root: Path, step: int, config: TrainConfig, world: World, replicas: list[Replica], seconds: float
) -> Path | None:
    """Every process writes its own parts and the main one commits them; returns the checkpoint's folder there.

    Raises FloatingPointError where the weights are not finite: such a checkpoint must not push out a good one.
    """
    trees = {f"replica-{m}": _replica_tree(r) for m, r in zip(world.mine, replicas, strict=False)}
    if config.method == "dp" and not world.main:
        trees = {}  # all ranks hold the same
    if world.main:
        trees["global"] = _global_tree(replicas[0])
    _refuse_nonfinite(trees, step, world)
    folder = checkpoint.tmp_folder(root, step)
    parts = [dataclasses.asdict(checkpoint.write_part(folder, name, tree)) for name, tree in trees.items()]
    everyone = world.gather_json([parts] + [[]] * (len(world.mine) - 1))
    if not world.main:
        return None
    meta = {
        "format": FORMAT,
        "step": step,
        "seconds": seconds,
        "replicas": config.replicas,
        "config": to_dict(config),
        "config_hash": config_hash(config),
        "codec": replicas[0].sync.codec.name if replicas[0].sync is not None else None,
        "clock": world.exchange.clock.state_dict() if world.virtual_s is not None else None,
    }
    return checkpoint.commit(
        root, step, [checkpoint.PartInfo(**p) for own in everyone for p in own], meta, keep=config.keep
    )


def codec_of(root: Path, config: TrainConfig) -> str:
    """The configured codec; where that is `auto` and there is a run to resume, what was chosen at its start."""
    if config.codec != AUTO or not config.resume:
        return config.codec
    path, _ = checkpoint.latest_whole(root)
    return (path and read_manifest(path)["meta"].get("codec")) or config.codec


def _refuse_nonfinite(trees: dict, step: int, world: World) -> None:
    bad = [f"{name}/{where}" for name, tree in trees.items() if (where := checkpoint.first_nonfinite(_weights(tree)))]
    found = [name for names in world.gather_json([bad] + [[]] * (len(world.mine) - 1)) for name in names]
    if found:
        raise FloatingPointError(
            f"{found[0]} is not finite after inner step {step}: no checkpoint was written, earlier ones were kept"
        )


def load(root: Path, config: TrainConfig, world: World, replicas: list[Replica]) -> Resumed:
    """Restores the newest whole checkpoint; a run that was killed before its first begins anew.

    Raises BadInput where all are damaged or lack something, or where the run has other settings.
    """
    path, skipped = checkpoint.latest_whole(root)
    if path is None and skipped:
        raise BadInput(
            f"{root} holds no whole checkpoint to resume from ({'; '.join(skipped)}): start another run with --name"
        )
    if path is None:
        file = root.parent / runfolder.CONFIG
        if not file.is_file() or "config" not in (record := runfolder.read_json(file)):
            raise BadInput(
                f"{file} does not say what run this was, and there is no checkpoint: start another with --name"
            )
        _check_same_run(record["config"], to_dict(config), file)
        return Resumed(0, 0.0, config.replicas, ["it had no checkpoint yet, so it began anew"])
    meta = read_manifest(path)["meta"]
    if meta.get("format") != FORMAT:
        raise BadInput(
            f"{path} has checkpoint format {meta.get('format')!r}, this version reads {FORMAT}: use the version that "
            "wrote it"
        )
    _check_same_run(meta["config"], to_dict(config), path)
    saved = 1 if config.method == "dp" else meta["replicas"]
    names = [f"replica-{m % saved}" for m, _ in zip(world.mine, replicas, strict=False)]
    trees, _ = checkpoint.load(path, ["global", *sorted(set(names))], verify=False)  # latest_whole has just verified it
    for name, replica in zip(names, replicas, strict=True):
        _check_complete(path / name, trees[name], replica, just_reset=_just_reset(trees["global"], name, meta["step"]))
        _restore(replica, trees[name], trees["global"], with_local=config.method == "dp" or saved == config.replicas)
    if world.virtual_s is not None and meta.get("clock"):
        world.exchange.clock.load_state_dict(_clock_of(meta["clock"], config.replicas))
    if world.main:
        checkpoint.drop_after(root, meta["step"])
    notes = [f"skipped a damaged checkpoint: {reason}" for reason in skipped]
    return Resumed(meta["step"], meta["seconds"], meta["replicas"], notes)


def _clock_of(saved: dict[str, list[float]], replicas: int) -> dict[str, list[float]]:
    """The saved virtual clock; where replicas are others now, one on which all go on from the latest time."""
    if len(saved["now_s"]) == replicas:
        return saved
    now = [max(saved["now_s"])] * replicas
    return {"now_s": now, "line_free_s": now, "stalled_s": [0.0] * replicas}


def _replica_tree(replica: Replica) -> dict:
    tree = {"model": replica.model.state_dict(), "optimizers": [o.state_dict() for o in replica.optimizers]}
    if replica.sync is not None:
        state = replica.sync.state_dict()
        tree |= {key: state[key] for key in ("counts", "local")}
    return tree


def _global_tree(replica: Replica) -> dict:
    if replica.sync is None:
        return {}
    state = replica.sync.state_dict()
    return {key: state[key] for key in ("anchor", "outer", "buffers", "rounds")}


def _weights(tree: dict) -> dict:
    return {key: tree[key] for key in ("model", "anchor") if key in tree}


def _check_complete(part: Path, tree: dict, replica: Replica, just_reset: bool) -> None:
    """Raises BadInput where a part would restore less than it should: moments that start from zero shock the loss."""
    wanted = ["model", "optimizers", *(["counts", "local"] if replica.sync is not None else [])]
    missing = [key for key in wanted if key not in tree]
    if not missing and not just_reset and len(tree["optimizers"]) == len(replica.optimizers):
        missing = [f"optimizers/{i}/state" for i, saved in enumerate(tree["optimizers"]) if not saved.get("state")]
    if missing:
        raise BadInput(
            f"{part} lacks {missing[0]}, without which the run would not be the same: use another checkpoint"
        )


def _just_reset(shared: dict, name: str, step: int) -> bool:
    """Whether the replica was reset in a round at this very step, which clears moments that were not finite."""
    last = shared["rounds"][-1] if shared.get("rounds") else None
    return last is not None and last["landed_step"] == step and name in [f"replica-{m}" for m in last["left_out"]]


def _restore(replica: Replica, tree: dict, shared: dict, with_local: bool) -> None:
    """`with_local`: what a replica has not got across yet is its own, and means nothing to another number of them."""
    replica.model.load_state_dict(tree["model"])
    for optimizer, state in zip(replica.optimizers, tree["optimizers"], strict=True):
        # Torch keeps the very tensors it is given, and several replicas may be restored from one part.
        optimizer.load_state_dict(copy.deepcopy(state))
    if replica.sync is not None:
        own = {key: tree[key] for key in ("counts", *(("local",) if with_local else ()))}
        replica.sync.load_state_dict({**shared, **own})


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


def _check_same_run(saved: dict, now: dict, path: Path, prefix: str = "") -> None:
    for key, value in now.items():
        was = saved.get(key)
        if isinstance(value, dict) and isinstance(was, dict):
            _check_same_run(was, value, path, f"{key}.")
        elif prefix + key not in FREE and was != value:
            raise BadInput(
                f"{prefix}{key} is {value!r} but {path} was saved with {was!r}: resume with the same value, or start "
                "another run with --name"
            )
