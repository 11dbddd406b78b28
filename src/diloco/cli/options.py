"""Options of a verb: a frozen dataclass, filled from flags of the same names."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import os
import re
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin

from diloco.errors import BadInput

T = TypeVar("T")

_KINDS = {"int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false"}


@dataclass(frozen=True)
class Common:
    """What every verb has."""

    json: bool = False
    """Print one JSON object on stdout instead of text for people."""


def parse(options: type[T], arguments: Sequence[str], verb: str) -> T:
    """The dataclass `options` from flags; of two equal flags the later wins. `--help` prints the fields and exits
    with 0.

    Raises BadInput with one sentence for anything the flags get wrong.
    """
    import tyro

    prog, arguments = f"diloco {verb}", list(arguments)
    if any(a in ("-h", "--help") for a in arguments):
        return tyro.cli(options, args=["--help"], prog=prog)
    flags = known_flags(options)
    _refuse_unknown(arguments, flags, verb)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(complaint), _wide():
            return tyro.cli(options, args=arguments, prog=prog)
    except SystemExit as stop:
        raise _own_refusal(stop) or BadInput(_sentence(complaint.getvalue(), arguments, flags, verb)) from stop


def known_flags(options: type, prefix: str = "") -> dict[str, Any]:
    """Every flag of a dataclass and those nested in it, with its type; positional fields under their bare names."""
    found = {}
    for name, hint in typing.get_type_hints(options, include_extras=True).items():
        kind, *marks = get_args(hint) if get_origin(hint) is typing.Annotated else (hint,)
        if dataclasses.is_dataclass(kind):
            found |= known_flags(kind, f"{prefix}{name}.")
        elif marks:
            found[name.upper()] = kind
        else:
            found[f"--{prefix}{name}".replace("_", "-")] = kind
    return found


def wanted(kind: Any) -> str:
    """What to give for a field of this type, in words."""
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) is tuple:
        return f"a list, each {wanted(get_args(kind)[0])}"
    inner = [k for k in get_args(kind) if k is not type(None)]
    name = getattr(inner[0] if inner else kind, "__name__", str(kind))
    return _KINDS.get(name, f"a value of type {name}")


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """The end of a sentence about an unknown word: what was meant, or `otherwise` where nothing is like it, the dashes
    that all flags begin with aside."""
    bare = {name.lstrip("-"): name for name in known}
    near = difflib.get_close_matches(word.lstrip("-"), list(bare), n=1)
    return f"did you mean {bare[near[0]]}?" if near else otherwise


def _refuse_unknown(arguments: list[str], flags: dict[str, Any], verb: str) -> None:
    for word in arguments:
        name = word.partition("=")[0].replace("_", "-")
        is_negation = name.startswith("--no-") and flags.get("--" + name[5:]) is bool
        if not name.startswith("--") or name in flags or is_negation:
            continue
        known = (flag for flag in flags if flag.startswith("--"))
        raise BadInput(
            f"unknown option {word}: {did_you_mean(name, known, f'`diloco {verb} --help` lists the options')}"
        )


@contextlib.contextmanager
def _wide() -> Iterator[None]:
    """Keeps the parser from breaking what it complains about into lines."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "1000"
    try:
        yield
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before


def _own_refusal(stop: BaseException) -> BadInput | None:
    """The refusal by the dataclass itself, which the parser wraps up in its own complaint."""
    link: BaseException | None = stop
    while link is not None and not isinstance(link, BadInput):
        link = link.__context__
    return link


def _sentence(complaint: str, arguments: list[str], flags: dict[str, Any], verb: str) -> str:
    """The parser's framed complaint as one sentence that names option, value and way out."""
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─+|]", " ", complaint).split())
    mentioned = [word.strip("':,.") for word in text.split()]
    flag = next((word for word in mentioned if word in flags), None)
    if flag and "required" not in text.lower():
        values = _values(arguments, flag)
        given = f"is {' '.join(values)}" if values else "has no value"
        return f"{flag} {given}: give {wanted(flags[flag])}"
    if missing := [name for name in flags if name.isupper() and name in mentioned]:
        return f"{missing[0]} is missing: `diloco {verb} --help` shows what to give"
    if stray := re.search(r"Unrecognized (?:options|arguments): (\S+)", text):
        return f"{stray[1]!r} belongs to no option: `diloco {verb} --help` lists the options"
    return f"the options cannot be read ({text}): `diloco {verb} --help` lists them"


def _values(arguments: list[str], flag: str) -> list[str]:
    """The words that were given for a flag, the last time it was given."""
    values: list[str] = []
    current = ""
    for word in arguments:
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            current = name.replace("_", "-")
            values = values if current != flag else [value] if equals else []
        elif current == flag:
            values.append(word)
    return values
