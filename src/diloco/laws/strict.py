"""Holds what was read from a file against what a fit writes: types, unknown and missing keys, derived numbers."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from diloco.errors import BadInput

T = TypeVar("T")

_ROUNDING = 1e-9
"""Relative, between a number in a file and the same one computed again, perhaps on another machine."""


def build(kind: type[T], record: Any, place: str) -> T:
    """A dataclass from a JSON object with exactly its fields, each of its type.

    Raises:
        BadInput: naming the first field that is not.
    """
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    _refuse_other_keys(record, names, place)
    return kind(**{name: typed(record[name], hints[name], f"{place}.{name}") for name in names})


def typed(value: Any, hint: Any, place: str) -> Any:
    """`value`, where it is of the type that `hint` says; JSON's lists become tuples and whole numbers floats.

    Raises:
        BadInput: it is of another type.
    """
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        return typed(value, next(argument for argument in arguments if argument is not NoneType), place)
    if kind is tuple and isinstance(value, list):
        return tuple(typed(item, arguments[0], f"{place}[{i}]") for i, item in enumerate(value))
    if kind is dict and isinstance(value, dict):
        return {key: typed(item, arguments[1], f"{place}.{key}") for key, item in value.items()}
    if is_dataclass(kind):
        return build(kind, value, place)
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if type(value) is kind:
        return value
    raise BadInput(f"{place} is {_shown(value)}, which is no {kind.__name__}")


def refuse_difference(record: Any, again: Any, place: str) -> None:
    """Refuses a record that its own content would not be written as.

    Whatever was added, taken out, or changed without what it follows from shows: the coefficients follow from theta,
    the id from coefficients and data.

    Raises:
        BadInput: naming the first place at which the two part.
    """
    if isinstance(record, dict) and isinstance(again, dict):
        _refuse_other_keys(record, list(again), place)
        for key in again:
            refuse_difference(record[key], again[key], f"{place}.{key}")
    elif isinstance(record, list) and isinstance(again, (list, tuple)) and len(record) == len(again):
        for index, (item, other) in enumerate(zip(record, again, strict=True)):
            refuse_difference(item, other, f"{place}[{index}]")
    elif not _same(record, again):
        raise BadInput(f"{place} is {_shown(record)}, and from the rest of the file follows {_shown(again)}")


def close(a: float, b: float, tolerance: float = _ROUNDING) -> bool:
    """Equal but for rounding; NaN equals NaN."""
    return (a != a and b != b) or math.isclose(a, b, rel_tol=tolerance)


def _refuse_other_keys(record: Any, names: list[str], place: str) -> None:
    if not isinstance(record, dict):
        raise BadInput(f"{place} is {_shown(record)}, which is no object")
    if wrong := sorted(set(record) ^ set(names)):
        raise BadInput(f"{place}.{wrong[0]} is {'not known' if wrong[0] in record else 'missing'}")


def _same(a: Any, b: Any) -> bool:
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (a, b))
    return close(a, b) if numbers else type(a) is type(b) and a == b


def _shown(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
