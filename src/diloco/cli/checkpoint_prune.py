"""`diloco checkpoint prune PLACE`: remove what a policy does not keep."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from diloco.cli.checkpoint_ls import row_of
from diloco.cli.checkpoint_place import open_place, refuse_step
from diloco.cli.options import Common, parse
from diloco.cli.show import print_json, progress
from diloco.errors import BadInput

if TYPE_CHECKING:
    from diloco.checkpoint import Plan


@dataclass(frozen=True, kw_only=True)
class PruneOptions(Common):
    """Removes a run's checkpoints but those that one of the options keeps, and those that these hold differences to.
    What stays is read and compared with its checksums first: damaged ones count for nothing and go, and so does what is
    left of saves that were never finished."""

    place: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PLACE")]
    """Run folder, folder of checkpoints, or fsspec URL."""
    keep_last: int = 3
    """Newest checkpoints to keep, 1 or more."""
    keep_every: int = 0
    """Keep also every so many-th checkpoint of the run, counted from its first; 0 for none."""
    keep_best: int = 0
    """Keep also so many with the lowest held-out loss, where it was measured; 0 for none."""
    dry_run: bool = False
    """Only say what would go."""

    def __post_init__(self) -> None:
        for name, least in (("keep_last", 1), ("keep_every", 0), ("keep_best", 0)):
            if getattr(self, name) < least:
                raise BadInput(f"{name} is {getattr(self, name)}: give {least} or more")


def run(arguments: list[str]) -> int:
    options = parse(PruneOptions, arguments, "checkpoint prune")
    from diloco.checkpoint import Policy, carry_out, plan

    store, step = open_place(options.place)
    refuse_step(options.place, step, "prune")
    policy = Policy(last=options.keep_last, every=options.keep_every, best=options.keep_best)
    with progress(f"reading what is to stay in {options.place}", quiet=options.json) as update:
        planned = plan(store, policy, running=may_be_running(options.place))
        freed = sum(row_of(store, step)["bytes"] or 0 for step in planned.removed)
        if not options.dry_run:
            update(f"removing from {options.place}", 0.5)
            carry_out(store, planned)
    if options.json:
        print_json({
            "place": str(store), "removed": planned.removed, "damaged": planned.damaged, "bytes": freed,
            "unfinished": planned.unfinished, "kept": list(planned.keep), "why": planned.keep, "left": planned.left,
            "dry_run": options.dry_run,
        })  # fmt: skip
    else:
        _say(planned, freed, "would remove" if options.dry_run else "removed")
    return 0


def may_be_running(place: str) -> bool:
    """Whether a run may be saving there: its folder is locked, or is not on this machine, so that nothing tells."""
    from diloco.train.locate import locate_checkpoint

    run = locate_checkpoint(place)
    if run.run is None or run.copied:
        return True
    folder = os.open(run.run, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(folder)
    return False


def _say(planned: Plan, freed_bytes: int, verb: str) -> None:
    from diloco.units import format_bytes

    steps = f": {_steps(planned.removed)}" if planned.removed else ""
    print(f"{verb} {len(planned.removed)} checkpoints, {format_bytes(freed_bytes)}{steps}")
    for step, problem in planned.damaged.items():
        print(f"  step {step} cannot be used: {problem}")
    if planned.unfinished:
        print(f"{verb} what is left of saves that were never finished: {_steps(planned.unfinished)}")
    for step, why in planned.left.items():
        print(f"not touched: step {step}, {why}")
    print(f"kept: {_steps(planned.keep)}")
    for step, why in planned.keep.items():
        print(f"  step {step}: {why}")


def _steps(steps: Iterable[int]) -> str:
    return "step " + ", ".join(map(str, steps))
