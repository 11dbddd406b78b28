"""How sentences name an argument, and what its number may be.

The same refusal is read by someone who called a function and by someone who typed a command. Each is shown what they
wrote: `bad='drop'` from Python, `--bad drop` where the command line speaks.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from diloco.errors import BadInput
from diloco.laws.axes import number

MOST = 1e30
"""Parameters, replicas or tokens beyond it are a slip of the pen: no answer there is a number of use."""

LEVELS = (0.5, 0.9999)
"""Of an interval. Beyond, the tails of the noise decide, of which no table of runs says anything."""

_SHOWN = 40
"""Characters of a value in a message."""

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


def speaks_flags() -> bool:
    """Whether the command line is the speaker."""
    return _as_flags.get()


def named(argument: str, value: Any = None) -> str:
    """The argument with its value, as its user wrote it: `--where method=dp`, or `where={'method': 'dp'}`."""
    if not _as_flags.get():
        return argument if value is None else f"{argument}={_plain(value)!r}"
    flag = "--" + _FLAG_NAMES.get(argument, argument).replace("_", "-")
    return flag if value is None else f"{flag} {_typed(value)}"


def one_number(argument: str, value: Any) -> float:
    """`value` as a float, where it is one number; also as people write it, "35M".

    Raises:
        BadInput: it is something else.
    """
    found = None if value is None or isinstance(value, bool) or _length(value) else number(value)
    if found is None:
        raise BadInput(f"{named(argument)} is {_described(value)}: give one number")
    return found


def whole(argument: str, value: Any, least: int = 0) -> int:
    """`value`, where it is a whole number from `least` on. Raises BadInput for anything else."""
    is_whole = hasattr(value, "__index__") and not isinstance(value, bool)
    if not is_whole or value < least:
        shown = named(argument, value) if is_whole else f"{named(argument)} is {_described(value)}"
        raise BadInput(f"{shown}{f' is below {least}' * is_whole}: give a whole number, {least} or more")
    return int(value)


def mapping(argument: str, value: Any, example: str) -> dict[str, Any]:
    """`value` as a dict; None is an empty one. Raises BadInput for anything that has no names."""
    if value is not None and not isinstance(value, Mapping):
        raise BadInput(f"{named(argument)} is {_described(value)}: give a dict, as in {named(argument)}={example}")
    return dict(value or {})


def of_type(argument: str, value: Any, kind: type | tuple[type, ...], example: str) -> Any:
    """`value`, where it is of `kind`. Raises BadInput, with what to give instead, where it is not."""
    if not isinstance(value, kind):
        raise BadInput(f"{named(argument)} is {_described(value)}: give {example}")
    return value


def file_path(path: Any) -> Path:
    """A path from what names one. Raises BadInput for what does not."""
    if not isinstance(path, (str, os.PathLike)):
        raise BadInput(f"path is {_described(path)}: give the name of a file")
    return Path(path)


def positive(argument: str, value: Any, most: float = MOST) -> float:
    """`value` as a float, where it is one finite number above 0 and no larger than `most`.

    Raises:
        BadInput: it is not.
    """
    found = one_number(argument, value)
    if not (0 < found <= most and math.isfinite(found)):
        limit = f"number above 0 and at most {most:g}" if math.isfinite(most) else "finite number above 0"
        raise BadInput(f"{named(argument, value)} must be a {limit}")
    return found


def at_least_one(argument: str, value: Any) -> float:
    """`positive`, of things that come in ones. Raises BadInput where there is less than one."""
    found = positive(argument, value)
    if found < 1:
        raise BadInput(f"{named(argument, value)} counts things: give 1 or more")
    return found


def sane_level(level: Any) -> float:
    """`level`, where it can be one of an interval.

    Raises:
        BadInput: it is no number, or outside 0.5 to 0.9999.
    """
    found = one_number("level", level)
    if not LEVELS[0] <= found <= LEVELS[1]:
        raise BadInput(f"{named('level', level)} must lie between {LEVELS[0]} and {LEVELS[1]}: 0.95 is usual")
    return found


def counted(count: float, one: str, many: str = "") -> str:
    """ "1 run", "2 runs": the count with the noun that goes with it."""
    shown = f"{count:.0f}" if count == round(count) else f"{count:g}"
    return f"{shown} {one if count == 1 else many or one + 's'}"


def _length(value: Any) -> int:
    """How many values an array or a list holds; 0 for a single value, text included."""
    if isinstance(value, str) or getattr(value, "ndim", None) == 0:
        return 0
    return max(len(value), 1) if hasattr(value, "__len__") else 0


def _described(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, (str, bool, int, float, complex)):
        text = repr(str(value)) if isinstance(value, str) else repr(value)
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    kind = type(value).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


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
