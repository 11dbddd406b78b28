"""What a person's `prune` would keep and remove, with the reasons; unlike what a run does after each save, it reads
what is to stay, so that no damaged checkpoint is kept in the place of a whole one."""

from __future__ import annotations

from dataclasses import dataclass

from diloco.checkpoint.manifest import Foreign
from diloco.checkpoint.retention import Entry, Policy, reasons, to_drop
from diloco.checkpoint.store import LOSS, Store
from diloco.errors import BadInput


@dataclass(frozen=True)
class Plan:
    keep: dict[int, str]
    """Why, by step."""
    drop: list[int]
    """Whole ones that nothing wants, newest first."""
    damaged: dict[int, str]
    """What is wrong with those that cannot be used, by step; they go too."""
    unfinished: list[int]
    """Steps whose saves never ended: their folders go."""
    left: dict[int, str]
    """Why a folder is neither kept for its sake nor removed, by step."""

    @property
    def removed(self) -> list[int]:
        """Steps of the checkpoints that go, oldest first."""
        return sorted([*self.drop, *self.damaged])


def plan(store: Store, policy: Policy, running: bool) -> Plan:
    """`running`: a run may be saving there, so that an unfinished folder newer than all checkpoints may be its.

    Raises BadInput where no checkpoint is whole: then none is removed.
    """
    entries, damaged, left = _entries(store)
    known: dict[int, list[str]] = {}
    while True:
        keep = reasons(entries, policy)
        found = {step: problems[0] for step in keep if (problems := store.problems(step, True, known))}
        if not found:
            break
        damaged |= found
        entries = [e for e in entries if e.step not in found]
    if not keep:
        why = next(iter({**damaged, **left}.values()), "it is empty")
        raise BadInput(f"{store} holds no whole checkpoint, so none is removed ({why}): name another place")
    unfinished = store.unfinished()
    if running:
        newest = max(store.steps())
        under_way = [step for step in unfinished if step > newest]
        left |= dict.fromkeys(under_way, "not finished, and a run may be writing it")
        unfinished = [step for step in unfinished if step not in under_way]
    return Plan(keep, to_drop(entries, policy), dict(sorted(damaged.items())), unfinished, left)


def carry_out(store: Store, planned: Plan) -> None:
    """The newest first, so that a kill in between leaves none without what it rests on."""
    for step in reversed(planned.removed):
        store.remove(step)
    for step in planned.unfinished:
        store.discard(step)


def _entries(store: Store) -> tuple[list[Entry], dict[int, str], dict[int, str]]:
    """(those whose files are all there in their size, what is wrong with others, why some are not judged)."""
    entries, damaged, left = [], {}, {}
    known: dict[int, list[str]] = {}
    for step in store.steps():
        try:
            links = store.chain(step)
        except Foreign as error:
            left[step] = str(error)
        except BadInput as error:
            damaged[step] = str(error)
        else:
            if problems := store.problems(step, False, known):
                damaged[step] = problems[0]
                continue
            manifest = links[0]
            base = manifest.base and manifest.base.step
            entries.append(Entry(step, manifest.number, base, manifest.meta.get(LOSS)))
    return entries, damaged, left
