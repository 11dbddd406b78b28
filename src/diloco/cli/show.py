"""What the verbs share in showing results: JSON on stdout, notes and progress on stderr."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_json(record: dict[str, Any]) -> None:
    """One object on stdout; NaN and infinities, which JSON lacks, as null."""
    print(json.dumps(_finite(record), allow_nan=False))


def warn(sentence: str) -> None:
    print(f"warning: {sentence}", file=sys.stderr)


def wide_console() -> Console:
    """For tables: as wide as the terminal, or wide enough for every column where the output is a pipe."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(width=200, highlight=False, markup=False)


def table(heads: Sequence[str], lines: Iterable[Sequence[str]], text_columns: int = 1) -> Table:
    """Without a frame; numbers, which are what follows the first `text_columns`, to the right."""
    from rich.table import Table

    found = Table(box=None, pad_edge=False, header_style="bold")
    for index, head in enumerate(heads):
        found.add_column(head, justify="left" if index < text_columns else "right")
    for line in lines:
        found.add_row(*line)
    return found


@contextlib.contextmanager
def progress(text: str, quiet: bool = False) -> Iterator[Callable[[str, float], None]]:
    """A bar on stderr while it is a terminal, gone when done. Yields `update(text, fraction done)`."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    hidden = quiet or not console.is_terminal
    # Without the bar's own hold on stdout where stdout is a pipe: what is printed there must not end on the terminal.
    held = sys.stdout.isatty()
    with Progress(*columns, console=console, transient=True, disable=hidden, redirect_stdout=held) as bar:
        task = bar.add_task(text, total=1.0)
        yield lambda text, fraction: bar.update(task, description=text, completed=fraction)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
