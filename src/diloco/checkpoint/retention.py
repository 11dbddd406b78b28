"""Which checkpoints stay, as a function of what there is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diloco.errors import BadInput


@dataclass(frozen=True)
class Policy:
    """A checkpoint stays if any of these wants it, or another that stays holds the differences to it."""

    last: int = 3
    """The newest so many; 0 keeps all."""
    every: int = 0
    """Every so many-th of the run; 0 for none."""
    best: int = 0
    """Those with so many lowest held-out losses; 0 for none."""

    def __post_init__(self) -> None:
        for name in ("last", "every", "best"):
            if getattr(self, name) < 0:
                raise BadInput(f"keep {name} is {getattr(self, name)}: give 0 or more")


@dataclass(frozen=True)
class Entry:
    """What retention has to know of a whole checkpoint."""

    step: int
    number: int
    """Which of the run's checkpoints it is, counted from 1."""
    base: int | None
    """Step of the checkpoint it holds the differences to."""
    loss: float | None
    """Held-out loss of its global weights in nats per token, where it was measured."""


def wanted(entries: Sequence[Entry], policy: Policy) -> dict[int, str]:
    """Steps that the policy wants for their own sake, with the reason."""
    if policy.last == 0:
        return {e.step: "all are kept" for e in entries}
    newest = sorted(entries, key=lambda e: e.step)[-policy.last :]
    measured = sorted((e for e in entries if e.loss is not None), key=lambda e: (e.loss, e.step))
    regular = [e for e in entries if policy.every and e.number % policy.every == 0]
    found = {e.step: f"number {e.number} of the run, a multiple of {policy.every}" for e in regular}
    found |= {e.step: f"one of the {policy.best} lowest losses" for e in measured[: policy.best]}
    return found | {e.step: f"one of the newest {policy.last}" for e in newest}


def reasons(entries: Sequence[Entry], policy: Policy) -> dict[int, str]:
    """All steps that stay, oldest first, with the reason."""
    found = wanted(entries, policy)
    for step in sorted(found):
        for link in with_links([step], entries):
            found.setdefault(link, f"step {step} rests on it")
    return dict(sorted(found.items()))


def with_links(steps: Iterable[int], entries: Sequence[Entry]) -> set[int]:
    """`steps` and all those that they need to be read."""
    base = {e.step: e.base for e in entries}
    found: set[int] = set()
    for step in steps:
        link: int | None = step
        while link is not None and link not in found:
            found.add(link)
            link = base.get(link)
    return found


def to_drop(entries: Sequence[Entry], policy: Policy) -> list[int]:
    """Steps that may go, newest first, so that a kill in between leaves no checkpoint without what it needs."""
    kept = with_links(wanted(entries, policy), entries)
    return sorted((e.step for e in entries if e.step not in kept), reverse=True)
