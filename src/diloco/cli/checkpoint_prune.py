"""`diloco checkpoint prune PLACE`: remove what a policy does not keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from diloco.cli.checkpoint_ls import row_of
from diloco.cli.checkpoint_place import open_place, refuse_step
from diloco.cli.options import Common, parse
from diloco.cli.show import print_json, progress
from diloco.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class PruneOptions(Common):
    """Removes a run's checkpoints but those that one of the options keeps, and those that these hold differences to."""

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
    from diloco.checkpoint import Policy

    store, step = open_place(options.place)
    refuse_step(options.place, step, "prune")
    policy = Policy(last=options.keep_last, every=options.keep_every, best=options.keep_best)
    drop = sorted(store.prune(policy, dry_run=True))
    freed = sum(row_of(store, step)["bytes"] or 0 for step in drop)
    if not options.dry_run:
        with progress(f"removing from {options.place}", quiet=options.json):
            store.prune(policy)
    kept = [step for step in store.steps() if step not in drop]
    if options.json:
        print_json({"place": str(store), "removed": drop, "kept": kept, "bytes": freed, "dry_run": options.dry_run})
        return 0
    from diloco.watch.units import size

    would = "would remove" if options.dry_run else "removed"
    print(f"{would} {len(drop)} checkpoints, {size(freed)}" + (f": step {', '.join(map(str, drop))}" if drop else ""))
    print(f"kept: step {', '.join(map(str, kept))}")
    return 0
