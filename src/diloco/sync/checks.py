"""What `DiLoCo` refuses, before the first step where it can."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from diloco.errors import BadInput
from diloco.outer.interval import Interval
from diloco.outer.late import LATE, check_late
from diloco.outer.merge import Merge
from diloco.outer.report import Mismatch
from diloco.outer.round import REBASE
from diloco.outer.schedule import check_overlap
from diloco.outer.tensors import Roster
from diloco.sync.build import reshard
from diloco.wire.collective import Collective
from diloco.wire.exchange import Exchange
from diloco.wire.local import Local

COUNTERS = ("keep", "max")


def as_exchange(value: Exchange | None) -> Exchange:
    """The default is the process group where torch.distributed is initialised, else this process alone."""
    if value is None:
        return Collective() if dist.is_available() and dist.is_initialized() else Local(1)
    if not all(hasattr(value, name) for name in ("join", "run", "start", "topology", "island")):
        raise BadInput(f"exchange is {value!r}: give Local(...), Collective(...) or Hierarchical(...)")
    return value


def as_offsets(value: Sequence[int] | None) -> Sequence[int] | None:
    if value is None or isinstance(value, Sequence) and not isinstance(value, str):
        return value
    raise BadInput(f"offsets is {value!r}: give a list of inner steps, one for each fragment")


def check_bucket_bytes(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadInput(f"bucket_bytes is {value!r}: give a whole number of bytes, 1 or more")
    return value


def check_counters(value: str) -> bool:
    """Whether counters are brought to their maximum."""
    if value not in COUNTERS:
        raise BadInput(f"counters is {value!r}: give one of {', '.join(COUNTERS)}")
    return value == "max"


def check_flight(overlap: object, mixing: object, interval: Interval, outer: object) -> tuple[int, str | None]:
    """Inner steps a fragment is under way, and how it is applied where that is a round late."""
    number = isinstance(mixing, int | float) and not isinstance(mixing, bool)
    if mixing != REBASE and not (number and 0 <= mixing <= 1):
        raise BadInput(
            f"mixing is {mixing!r}: give the weight of the local values, a number from 0 to 1, or {REBASE!r}"
        )
    if mixing and (overlap == 0 or overlap in LATE):
        warnings.warn(
            f"mixing={mixing!r} has no effect with overlap={overlap!r}: replicas restart from the anchor", stacklevel=4
        )
    if isinstance(overlap, str):
        if overlap not in LATE:
            raise BadInput(f"overlap is {overlap!r}: give a whole number of inner steps, or {' or '.join(LATE)}")
        check_late(overlap, outer)
        return 0, overlap
    check_overlap(interval, overlap)
    return overlap, None


def check_merge(merge: Merge, exchange: Exchange) -> None:
    least, replicas = merge.least_replicas, exchange.replicas
    if replicas < least:
        raise BadInput(
            f"merge is {merge.name!r}, which needs {least} replicas or more, and there are {replicas}: use 'mean'"
        )
    if len(exchange.topology.sites) > 1 and not merge.linear:
        raise BadInput(
            f"merge is {merge.name!r}, which has to see every replica's outer gradient, but a site's are summed before "
            "they leave it: use 'mean', 'tokens' or 'clipped'"
        )


def check_roster(model: nn.Module, tensors: Roster) -> None:
    """A parameter unfrozen or replaced since DiLoCo was built would train on each replica and never be merged."""
    reshard(model)
    known = {id(p) for p in tensors.trained.values()}
    strangers = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in known]
    if strangers:
        raise Mismatch(
            f"parameter {strangers[0]!r} became trainable, or was replaced, after DiLoCo was built and would never "
            "be merged: build DiLoCo once the model is as it will be trained"
        )


def check_optimizers(optimizers: list[torch.optim.Optimizer], trained: dict[str, Tensor]) -> None:
    stepped = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
    if not any(id(p) in stepped for p in trained.values()):
        raise BadInput(
            f"optimizer holds none of the model's {len(trained)} trainable tensors: give the optimizer that trains it"
        )


def as_device(name: str | torch.device | None) -> torch.device | None:
    try:
        device = torch.device(name) if name is not None else None
        if device is not None and device.type == "meta":
            raise RuntimeError("it holds no values")
    except RuntimeError as error:
        raise BadInput(
            f"anchor_device is {name!r}, which cannot be used ({error}): give cpu, or leave it out"
        ) from error
    return device
