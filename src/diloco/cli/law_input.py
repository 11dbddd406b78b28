"""What the verbs on scaling laws read: pairs such as loss=val_bpb, numbers such as 35M, and files that hold a law."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from diloco.errors import BadInput

if TYPE_CHECKING:
    from diloco.laws import HyperparameterLaws, Law

PAPER, ARTICLE = "paper", "article"


def gather_pairs(arguments: Sequence[str], flags: Collection[str]) -> list[str]:
    """The arguments with all NAME=VALUE of a flag in `flags` behind one mention of it, at the end.

    So a flag may be repeated, and may stand before a positional word, as in `diloco fit --map loss=bpb rows.csv`.
    """
    others: list[str] = []
    found: dict[str, list[str]] = {}
    current, fresh = "", False
    for word in arguments:
        name, equals, value = word.partition("=")
        if name in flags:
            current, fresh = name, not equals
            found.setdefault(name, []).extend([value] if equals else [])
        elif current and not name.startswith("--") and (equals or fresh):
            found[current].append(word)
            fresh = False
        else:
            others.append(word)
            current = ""
    return [*others, *(word for name, words in found.items() for word in (name, *words))]


def plain_numbers(arguments: Sequence[str], flags: Collection[str]) -> list[str]:
    """The arguments with numbers behind `flags` as the parser reads them, where people write 35M or 1.3B."""
    from diloco.laws.axes import number

    found: list[str] = []
    for word in arguments:
        name, equals, value = word.partition("=")
        if name in flags and equals:
            found.append(f"{name}={_plain(value, number(value))}")
        else:
            found.append(_plain(word, number(word)) if found and found[-1] in flags else word)
    return found


def _plain(word: str, value: float | None) -> str:
    return repr(value) if value is not None and word.strip()[-1:].isalpha() and math.isfinite(value) else word


def joined(arguments: Sequence[str], flag: str) -> list[str]:
    """The arguments with the word behind `flag` joined to it, so that one that starts with a sign is its value too."""
    found: list[str] = []
    for word in arguments:
        if found and found[-1] == flag and word != "-h" and not (word.startswith("--") or word == flag):
            found[-1] = f"{flag}={word}"
        else:
            found.append(word)
    return found


def pairs(words: Sequence[str], option: str, example: str) -> dict[str, str]:
    """NAME=VALUE words as a dict. Raises BadInput for a word that is none, and for a name with two values."""
    found = {}
    for name, values in several(words, option, example).items():
        if len(values) > 1:
            raise BadInput(f"--{option} gives {name} both {values[0]} and {values[1]}: give one of them")
        found[name] = values[0]
    return found


def several(words: Sequence[str], option: str, example: str) -> dict[str, list[str]]:
    """As `pairs`, with every value that a name was given."""
    found: dict[str, list[str]] = {}
    for word in words:
        name, equals, value = (part.strip() for part in word.partition("="))
        if not (name and equals and value):
            raise BadInput(f"--{option} is {word}: give NAME=VALUE, as in --{option} {example}")
        if value not in found.setdefault(name, []):
            found[name].append(value)
    return found


def numbers(words: Sequence[str], option: str, example: str) -> dict[str, float]:
    """As `pairs`, with numbers as people write them (1e9, 35M) for values."""
    from diloco.laws.axes import number

    found = {}
    for name, text in pairs(words, option, example).items():
        value = number(text)
        if value is None or not math.isfinite(value):
            raise BadInput(f"--{option} {name} is {text}: give a number, as in --{option} {example}")
        found[name] = value
    return found


def open_law(name: str, rules: Sequence[str] = (PAPER,)) -> Law:
    """A law from its file; `paper` is the paper's Table 4 fitted with the paper's form.

    Args:
        rules: what the verb takes in place of a file; with the article among them, also published names.
    """
    from diloco.laws import load_law
    from diloco.laws.published import coefficients, paper_law

    if name == PAPER and PAPER in rules:
        return paper_law()
    if not Path(name).is_file():
        published = [*coefficients()] if ARTICLE in rules else []
        near = get_close_matches(name.lower(), [*rules, *published], n=3)
        meant = f" (did you mean {' or '.join(near)}?)" if near else ""
        ways = [*rules, *([f"a published law, such as {published[0]}"] if published else [])]
        raise BadInput(
            f"--law is {name}, which is no file{meant}: give one that `diloco fit --out` wrote, or {', or '.join(ways)}"
        )
    return load_law(name)


def open_hyperparameters(name: str) -> HyperparameterLaws | None:
    from diloco.laws import load_hyperparameters

    if name and not Path(name).is_file():
        raise BadInput(
            f"--hyperparameters is {name}, which is no file: give one that `diloco fit --hyperparameters` wrote"
        )
    return load_hyperparameters(name) if name else None
