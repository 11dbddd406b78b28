"""What a `DiLoCo` is across a restart. Tensors of sharded parameters are DTensors, sharded as they are.

anchor, outer, buffers, rounds    the same on every replica
local                             this replica's own: error feedback, and what late outer gradients keep
counts                            counters, the timetable, and what is under way
"""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from diloco.errors import BadInput
from diloco.outer.fragment import Fragment
from diloco.outer.report import RoundReport
from diloco.outer.round import Round
from diloco.outer.schedule import Timetable
from diloco.shards import local
from diloco.sync.airborne import Airborne

if TYPE_CHECKING:
    from diloco.sync.diloco import DiLoCo

COUNTS = (
    "inner_step",
    "stepped",
    "tokens",
    "rounds_planned",
    "steps_dropped",
    "reset_step",
    "noises",
    "compute_s",
    "site_averages",
    "site_bytes_sent",
    "site_s",
)
FRAGMENT_COUNTS = ("sent_step", "sent_tokens", "outer_steps")


def reset_counts(sync: DiLoCo) -> None:
    sync.inner_step = 0
    # Steps each of several optimizers has taken in an inner step that is not over.
    sync.stepped = [0] * len(sync.optimizers)
    sync.tokens = sync.rounds_planned = sync.steps_dropped = 0
    # The inner step after which moments were last cleared, since they were not finite.
    sync.reset_step = 0
    sync.noises = [None] * len(sync.fragments)
    sync.compute_s = sync.site_s = 0.0
    sync.site_averages = sync.site_bytes_sent = 0
    sync.rounds, sync.airborne = [], []


def save(sync: DiLoCo) -> dict:
    return {
        "anchor": sync.anchor(),
        "outer": _outer(sync.fragments),
        "buffers": _buffers(sync),
        "rounds": [dict(vars(report)) for report in sync.rounds],  # there may be thousands, and asdict takes 40 us each
        "local": _local(sync),
        "counts": {
            **{name: getattr(sync, name) for name in COUNTS},
            "timetable": sync.timetable.to_dict(),
            "fragments": [{name: getattr(f, name) for name in FRAGMENT_COUNTS} for f in sync.fragments],
            "airborne": [_airborne(a) for a in sync.airborne],
        },
    }


def load(sync: DiLoCo, saved: dict) -> None:
    for key in ("anchor", "outer", "buffers", "counts", "rounds"):
        if key not in saved:
            raise BadInput(f"the state of DiLoCo lacks {key!r}: it cannot be resumed without repeating or losing work")
    counts = saved["counts"]
    _check_names("anchor", saved["anchor"], sync.anchor())
    _check_names("counts", counts, dict.fromkeys([*COUNTS, "timetable", "fragments", "airborne"]))
    if len(counts["fragments"]) != len(sync.fragments):
        raise BadInput(
            f"the saved state has {len(counts['fragments'])} fragments, this run {len(sync.fragments)}: load it with "
            "the fragments it was saved with"
        )
    _load_outer(saved["outer"], sync.fragments)
    for name, tensors in (("anchor", sync.anchor()), ("buffers", _buffers(sync))):
        _check_names(name, saved[name], tensors)
        _copy(saved[name], tensors)
    for name in COUNTS:
        setattr(sync, name, copy.copy(counts[name]))
    for fragment, values in zip(sync.fragments, counts["fragments"], strict=True):
        for name in FRAGMENT_COUNTS:
            setattr(fragment, name, values[name])
    sync.timetable = Timetable.from_dict(counts["timetable"])
    sync.rounds = [RoundReport(**r) for r in saved["rounds"]]
    sync.airborne = [_restored(sync, a) for a in counts["airborne"]]
    _load_local(sync, saved.get("local"))


# -- outer state


def _outer(fragments: list[Fragment]) -> dict:
    """By state name and parameter name, whatever the fragments; of torch's optimizers one state a fragment."""
    states = [f.state.state_dict() for f in fragments]
    if "param_groups" in states[0]:
        return {"torch": states}
    found: dict[str, dict[str, Tensor]] = {key: {} for key in states[0]}
    for fragment, state in zip(fragments, states, strict=True):
        for key, value in state.items():
            found[key] |= fragment.sharded(value)
    return found


def _load_outer(saved: dict, fragments: list[Fragment]) -> None:
    own = _outer(fragments)
    _check_names("outer state", saved, own)
    for key, views in own.items():
        if key == "torch":
            for fragment, state in zip(fragments, saved[key], strict=True):
                fragment.state.load_state_dict(state)
            continue
        _check_names(f"outer {key}", saved[key], views)
        _copy(saved[key], views)


# -- this replica's own


def _local(sync: DiLoCo) -> dict[str, dict[str, Tensor]]:
    """By what it is and parameter name."""
    found: dict[str, dict[str, Tensor]] = {}
    for fragment in sync.fragments:
        kept = {"residual": fragment.residual, "left": fragment.left}
        tensors = {key: value for key, value in kept.items() if value is not None}
        tensors |= sync.lates[fragment.index].tensors() if sync.lates else {}
        for key, value in tensors.items():
            found.setdefault(key, {}).update(fragment.sharded(value))
    return found


def _load_local(sync: DiLoCo, saved: dict | None) -> None:
    """None: of a run whose replicas were others. What they had not got across is lost, and they start anew."""
    for fragment in sync.fragments:
        # A fragment that had not been sent yet had no residual, and one that was not under way nothing left behind.
        fed_back, under_way = (_has(saved, key, fragment) for key in ("residual", "left"))
        fragment.residual = torch.zeros(fragment.flat.numel, device=sync.means.device) if fed_back else None
        fragment.left = torch.zeros_like(fragment.anchor) if under_way else None
    for late in sync.lates:
        late.reset()
    if not saved:
        return
    own = _local(sync)
    _check_names("local", saved, own)
    for key, views in own.items():
        _check_names(f"local {key}", saved[key], views)
        _copy(saved[key], views)


def _has(saved: dict | None, key: str, fragment: Fragment) -> bool:
    return bool(saved) and any(name in saved.get(key, {}) for name in fragment.flat.tensors)


# -- under way


def _airborne(airborne: Airborne) -> dict:
    round = airborne.round
    return {
        "fragment": round.fragment.index,
        "lands_at": airborne.lands_at,
        "arrival_s": airborne.flight.arrival_s,
        "report": dataclasses.asdict(round.report),
        "buffers": list(round.merged_buffers),
    }


def _restored(sync: DiLoCo, saved: dict) -> Airborne:
    fragment, report = sync.fragments[saved["fragment"]], RoundReport(**saved["report"])
    round = Round(fragment, sync.means, report, 0, sync._closed, flying=True)
    round.merged_buffers = [b.clone() for b in saved["buffers"]]
    return Airborne(round, saved["lands_at"], sync.exchange.arrived(sync.rank, round, saved["arrival_s"]))


# -- details


def _buffers(sync: DiLoCo) -> dict[str, Tensor]:
    return {name: b for f in sync.fragments for name, b in zip(f.averaged, f.synced_buffers, strict=True)}


def _copy(source: dict[str, Tensor], target: dict[str, Tensor]) -> None:
    for name, tensor in target.items():
        local(tensor).copy_(local(source[name]))


def _check_names(what: str, given: dict, wanted: dict) -> None:
    missing, extra = sorted(wanted.keys() - given.keys()), sorted(given.keys() - wanted.keys())
    if missing or extra:
        found = f"lacks {missing[0]!r}" if missing else f"has {extra[0]!r}, which this run has not"
        raise BadInput(
            f"{what} in the saved state {found}: load it with the model and outer optimizer it was saved from"
        )
    for name, tensor in wanted.items():
        if isinstance(tensor, Tensor) and local(given[name]).shape != local(tensor).shape:
            shapes = f"{tuple(local(given[name]).shape)}, here {tuple(local(tensor).shape)}"
            raise BadInput(f"{what} {name!r} was saved with shape {shapes}: load it with the model it was saved from")
