"""What a checkpoint of a run holds, and going on from it.

Parts: `global` (anchor, outer state, rounds) once, and `replica-m` (local weights, inner optimizer state, counters) for
each replica. Data order, learning rates and random numbers are functions of the step, so they need no state.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from diloco import checkpoint
from diloco.checkpoint.manifest import read_manifest
from diloco.errors import BadInput
from diloco.train.config import TrainConfig, config_hash, to_dict
from diloco.train.replica import Replica
from diloco.train.world import World

FORMAT = 1

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
    "data.cache_dir",
)


def save(root: Path, step: int, config: TrainConfig, world: World, replicas: list[Replica]) -> Path | None:
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
        "replicas": config.replicas,
        "config": to_dict(config),
        "config_hash": config_hash(config),
    }
    return checkpoint.commit(
        root, step, [checkpoint.PartInfo(**p) for own in everyone for p in own], meta, keep=config.keep
    )


def _refuse_nonfinite(trees: dict, step: int, world: World) -> None:
    bad = [f"{name}/{where}" for name, tree in trees.items() if (where := checkpoint.first_nonfinite(_weights(tree)))]
    found = [name for names in world.gather_json([bad] + [[]] * (len(world.mine) - 1)) for name in names]
    if found:
        raise FloatingPointError(
            f"{found[0]} is not finite after inner step {step}: no checkpoint was written, earlier ones were kept"
        )


def load(root: Path, config: TrainConfig, world: World, replicas: list[Replica]) -> tuple[int, list[str]]:
    """Restores the newest whole checkpoint; returns its step, and what could not be carried over, a sentence each.

    Raises BadInput where there is none, or where it belongs to a run with other settings.
    """
    path, skipped = checkpoint.latest_whole(root)
    if path is None:
        raise BadInput(
            f"{root} holds no whole checkpoint to resume from"
            + (f" ({'; '.join(skipped)})" if skipped else "")
            + ": start afresh"
        )
    meta = read_manifest(path)["meta"]
    if meta.get("format") != FORMAT:
        raise BadInput(
            f"{path} has checkpoint format {meta.get('format')!r}, this version reads {FORMAT}: use the version that wrote it"
        )
    _check_same_run(meta["config"], to_dict(config), path)
    saved = 1 if config.method == "dp" else meta["replicas"]
    names = [f"replica-{m % saved}" for m, _ in zip(world.mine, replicas, strict=False)]
    trees, _ = checkpoint.load(path, ["global", *sorted(set(names))], verify=False)  # latest_whole has just verified it
    for name, replica in zip(names, replicas, strict=True):
        _restore(replica, trees[name], trees["global"])
    if world.main:
        checkpoint.drop_after(root, meta["step"])
    notes = [f"skipped a damaged checkpoint: {reason}" for reason in skipped]
    if config.method != "dp" and saved != config.replicas:
        notes += _change_replicas(replicas, saved)
    return meta["step"], notes


def _replica_tree(replica: Replica) -> dict:
    tree = {"model": replica.model.state_dict(), "optimizers": [o.state_dict() for o in replica.optimizers]}
    if replica.sync is not None:
        tree["counts"] = replica.sync.state_dict()["counts"]
    return tree


def _global_tree(replica: Replica) -> dict:
    if replica.sync is None:
        return {}
    state = replica.sync.state_dict()
    return {key: state[key] for key in ("anchor", "outer", "rounds")}


def _weights(tree: dict) -> dict:
    return {key: tree[key] for key in ("model", "anchor") if key in tree}


def _restore(replica: Replica, tree: dict, shared: dict) -> None:
    replica.model.load_state_dict(tree["model"])
    for optimizer, state in zip(replica.optimizers, tree["optimizers"], strict=True):
        optimizer.load_state_dict(state)
    if replica.sync is not None:
        replica.sync.load_state_dict({**shared, "counts": tree["counts"]})


def _change_replicas(replicas: list[Replica], saved: int) -> list[str]:
    """With another number of replicas all start from the anchor, and an open window cannot be divided among them."""
    lost = [r.sync.restart_window() for r in replicas if r.sync is not None][0]
    notes = [
        f"resumed with {replicas[0].world.replicas} replicas instead of {saved}: inner optimizer states were taken over in turn"
    ]
    return notes + ([f"the {lost} inner steps since the last sync were dropped"] if lost else [])


def _check_same_run(saved: dict, now: dict, path: Path, prefix: str = "") -> None:
    for key, value in now.items():
        was = saved.get(key)
        if isinstance(value, dict) and isinstance(was, dict):
            _check_same_run(was, value, path, f"{key}.")
        elif prefix + key not in FREE and was != value:
            raise BadInput(
                f"{prefix}{key} is {value!r} but {path} was saved with {was!r}: resume with the same value, or start another run with --name"
            )
