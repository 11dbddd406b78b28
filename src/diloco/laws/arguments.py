"""How sentences name an argument, and what its number may be.

The same refusal is read by someone who called a function and by someone who typed a command. Each is shown what they
wrote: `bad='drop'` from Python, `--bad drop` where the command line speaks.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from diloco.errors import BadInput

MOST = 1e30
"""Parameters, replicas or tokens beyond it are a slip of the pen: no answer there is a number of use."""

LEVELS = (0.5, 0.9999)
"""Of an interval. Beyond, the tails of the noise decide, of which no table of runs says anything."""

_FLAG_NAMES = {"rename": "map", "budget_flops": "budget"}
_as_flags: ContextVar[bool] = ContextVar("as_flags", default=False)


@contextmanager
def speaking_flags() -> Iterator[None]:
    """Inside, arguments are named as the command line's flags."""
    before = _as_flags.set(True)
    try:
        yield
    finally:
        _as_flags.reset(before)


def named(argument: str, value: Any = None) -> str:
    """The argument with its value, as its user wrote it: `--where method=dp`, or `where={'method': 'dp'}`."""
    if not _as_flags.get():
        return argument if value is None else f"{argument}={_plain(value)!r}"
    flag = "--" + _FLAG_NAMES.get(argument, argument).replace("_", "-")
    return flag if value is None else f"{flag} {_typed(value)}"


def positive(argument: str, value: float, most: float = MOST) -> float:
    """`value`, where it is a finite number above 0 and no larger than `most`.

    Raises:
        BadInput: it is not.
    """
    if not (0 < value <= most and math.isfinite(value)):
        limit = f"number above 0 and at most {most:g}" if math.isfinite(most) else "finite number above 0"
        raise BadInput(f"{named(argument, value)} must be a {limit}")
    return value


def sane_level(level: float) -> float:
    """`level`, where it can be one of an interval.

    Raises:
        BadInput: it is outside 0.5 to 0.9999.
    """
    if not LEVELS[0] <= level <= LEVELS[1]:
        raise BadInput(f"{named('level', level)} must lie between {LEVELS[0]} and {LEVELS[1]}: 0.95 is usual")
    return level


def _plain(value: Any) -> Any:
    """numpy's scalars as Python's, which print as they are typed."""
    return value.item() if hasattr(value, "item") and not hasattr(value, "__len__") else value


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple, set))


def _typed(value: Any) -> str:
    if isinstance(value, dict):
        cells = [(name, cell) for name, cells in value.items() for cell in (cells if _is_list(cells) else [cells])]
        return " ".join(f"{name}={_typed(cell)}" for name, cell in cells)
    if _is_list(value):
        return ",".join(map(_typed, value))
    return f"{value:g}" if isinstance(value, float) else shlex.quote(str(value))
