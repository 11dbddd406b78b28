"""What the verbs of `diloco checkpoint` share: the place they are given, and the steps that are there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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


def structural_problem(store: Store, step: int) -> str | None:
    """What keeps a checkpoint from being whole, as far as manifests and file sizes tell; reads no tensors."""
    from pathlib import Path

    from diloco.checkpoint.saved import file_problem

    try:
        chain = store.chain(step)
    except BadInput as error:
        return str(error)
    problems = (file_problem(store.storage, link, part, False, Path()) for link in chain for part in link.parts)
    return next(filter(None, problems), None)


def wide_console() -> Any:
    """For tables: as wide as the terminal, or wide enough for every column where the output is a pipe."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(width=200, highlight=False, markup=False)
