"""Options of a verb: a frozen dataclass, filled from a TOML file and flags of the same names."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path
from typing import Any, TypeVar

from diloco.errors import BadInput

T = TypeVar("T")


def parse(options: type[T], arguments: list[str], verb: str, default: T | None = None) -> T:
    """The dataclass `options` from flags. `--help` prints the fields with their docstrings and exits with 0.

    Raises BadInput with one sentence for anything the flags get wrong.
    """
    import tyro

    if any(a in ("-h", "--help") for a in arguments):
        return tyro.cli(options, args=arguments, prog=f"diloco {verb}", default=default)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(complaint):
            return tyro.cli(options, args=arguments, prog=f"diloco {verb}", default=default)
    except SystemExit as stop:
        raise BadInput(one_sentence(complaint.getvalue(), verb)) from stop


def one_sentence(box: str, verb: str) -> str:
    """tyro's framed complaint as one sentence."""
    lines = [line.strip("│ ").strip() for line in box.splitlines() if line.startswith("│")]
    message: list[str] = []
    for line in lines:
        if line.startswith("─"):
            break
        message.append(line)
    hint = [line for line in lines if line.startswith("--")]
    text = re.sub(r"^Error parsing [A-Za-z]*(Config|Options): ", "", " ".join(message)).rstrip(".")
    text = text or "the options cannot be read"
    if "Unrecognized" in text and hint:
        return f"{text[0].lower()}{text[1:]}: did you mean {hint[0].split()[0]}?"
    return f"{text}; `diloco {verb} --help` lists the options" if "--help" not in text else text


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


def take_flag(arguments: list[str], flag: str) -> tuple[str | None, list[str]]:
    """Value of `flag` (as `--flag value` or `--flag=value`) and the other arguments. Raises BadInput where the value is
    missing."""
    rest, value = [], None
    words = iter(arguments)
    for word in words:
        if word == flag:
            value = next(words, None)
            if value is None:
                raise BadInput(f"{flag} needs a value")
        elif word.startswith(flag + "="):
            value = word[len(flag) + 1 :]
        else:
            rest.append(word)
    return value, rest
