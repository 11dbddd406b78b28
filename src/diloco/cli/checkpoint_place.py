"""What the verbs of `diloco checkpoint` share: the place they are given, and the steps that are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diloco.errors import BadInput

if TYPE_CHECKING:
    from diloco.checkpoint import Store


def open_place(text: str) -> tuple[Store, int | None]:
    """The store and the step that `PLACE[@STEP]` names. Raises BadInput where it holds none, or not this one."""
    from diloco.checkpoint import Store
    from diloco.train.locate import locate_checkpoint

    located = locate_checkpoint(text)
    store = Store(located.store)
    steps = store.steps()
    if not steps:
        raise BadInput(f"{located.store} holds no checkpoint: name a run that has saved one")
    if located.step is not None and located.step not in steps:
        raise BadInput(
            f"{located.store} has no checkpoint of step {located.step}: there are {', '.join(map(str, steps))}"
        )
    return store, located.step


def refuse_step(text: str, step: int | None, verb: str) -> None:
    """Raises BadInput where a verb that takes all of a run's checkpoints was given one."""
    if step is not None:
        raise BadInput(
            f"{text} names the checkpoint of step {step}, but {verb} looks at all of them: leave the step out"
        )
