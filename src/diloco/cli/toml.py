"""A TOML file as flags written down: the same names, the same checks, and flags that follow it win."""

from __future__ import annotations

import dataclasses
import sys
import typing
from pathlib import Path
from typing import Any, get_args, get_origin

from diloco.cli.options import did_you_mean, wanted
from diloco.errors import BadInput


def read_toml(path: str) -> dict[str, Any]:
    """Raises BadInput naming the file, and the line where it is not TOML."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"config file {path} cannot be read ({error.strerror}): check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"config file {path} is not TOML ({error}): mend that line") from error


def as_flags(values: dict[str, Any], options: type, path: str, prefix: str = "") -> list[str]:
    """The file's values as command-line words.

    Raises BadInput for a key that `options` lacks and for a value of another type, naming file, key and value.
    """
    hints, words = typing.get_type_hints(options), []
    for key, value in values.items():
        name = f"{prefix}{key}"
        if key not in hints:
            hint = did_you_mean(key, hints, f"there are {', '.join(hints)}")
            raise BadInput(f"unknown setting {name} in {path}: {hint}")
        if dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, dict):
                raise BadInput(f"{name} in {path} is {value!r}: it is a table of settings, [{name}]")
            words += as_flags(value, hints[key], path, f"{name}.")
        elif not _fits(value, hints[key]):
            raise BadInput(f"{name} in {path} is {value!r}: give {wanted(hints[key])}")
        else:
            words += _words(name, value)
    return words


def _fits(value: Any, kind: Any) -> bool:
    origin = get_origin(kind)
    if origin is typing.Literal:
        return value in get_args(kind)
    if origin is tuple:
        return isinstance(value, list) and all(_fits(v, get_args(kind)[0]) for v in value)
    if get_args(kind):
        return any(_fits(value, k) for k in get_args(kind) if k is not type(None))
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    return isinstance(value, (int, float) if kind is float else kind)


def _words(name: str, value: Any) -> list[str]:
    flag = f"--{name}".replace("_", "-")
    if isinstance(value, bool):
        return [flag if value else f"--no-{name}".replace("_", "-")]
    if isinstance(value, list):
        return [flag, *map(str, value)]
    return [f"{flag}={value}"]
