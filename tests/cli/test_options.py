"""Flags to dataclasses: names, types in words, and one clean sentence for whatever is wrong.

pytest tests/cli/test_options.py
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest
import tyro

from diloco.cli.options import Common, did_you_mean, known_flags, parse, wanted
from diloco.cli.show import print_json
from diloco.cli.toml import as_flags
from diloco.errors import BadInput


@dataclass(frozen=True)
class Inner:
    """A section."""

    lr: float = 0.1
    """Learning rate."""
    kind: Literal["a", "b"] = "a"
    """Which."""

    def __post_init__(self) -> None:
        if self.lr < 0:
            raise BadInput(f"inner.lr is {self.lr}: give 0 or more\nin one sentence")


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Some options."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A folder."""
    two_words: int = 3
    """A number."""
    bound: float | None = None
    """A number, or none."""
    names: tuple[str, ...] = ()
    """Some names."""
    switch: bool = False
    """On or off."""
    inner: Inner = field(default_factory=Inner)
    """A section."""


def test_flags_are_the_fields_with_sections_before_a_dot():
    assert list(known_flags(Options)) == [
        "--json", "RUN", "--two-words", "--bound", "--names", "--switch", "--inner.lr", "--inner.kind",
    ]  # fmt: skip


def test_values_arrive_and_the_later_of_two_wins():
    found = parse(Options, ["r", "--two_words", "4", "--names", "a=1", "b", "--inner.lr=1e-3", "--two-words=5"], "x")
    assert (found.run, found.two_words, found.names, found.inner.lr) == ("r", 5, ("a=1", "b"), 1e-3)
    assert parse(Options, ["r", "--switch", "--no-switch"], "x").switch is False


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["r", "--two-wrds", "1"], "unknown option --two-wrds: did you mean --two-words?"),
        (["r", "--zzz=1"], "unknown option --zzz=1: `diloco x --help` lists the options"),
        (["r", "--no-two-words"], "unknown option --no-two-words: did you mean --two-words?"),
        (["r", "--two-words", "1.5"], "--two-words is 1.5: give a whole number"),
        (["r", "--two-words=x"], "--two-words is x: give a whole number"),
        (["r", "--two-words"], "--two-words has no value: give a whole number"),
        (["r", "--bound", "x"], "--bound is x: give a number"),
        (["r", "--inner.kind", "c"], "--inner.kind is c: give one of a, b"),
        (["r", "stray"], "'stray' belongs to no option: `diloco x --help` lists the options"),
        ([], "RUN is missing: `diloco x --help` shows what to give"),
    ],
)
@pytest.mark.parametrize("columns", ["20", "200"])
def test_one_sentence_whatever_the_terminal(words, sentence, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(BadInput) as refusal:
        parse(Options, words, "x")
    assert str(refusal.value) == sentence


def test_the_dataclass_speaks_for_itself():
    with pytest.raises(BadInput, match="^inner.lr is -1.0: give 0 or more"):
        parse(Options, ["r", "--inner.lr=-1"], "x")


def test_types_in_words():
    assert [wanted(k) for k in known_flags(Options).values()] == [
        "true or false", "a text", "a whole number", "a number", "a list, each a text", "true or false",
        "a number", "one of a, b",
    ]  # fmt: skip
    assert did_you_mean("trian", ["train", "eval"], "no") == "did you mean train?"
    assert did_you_mean("zzz", ["train"], "there is train") == "there is train"


def test_toml_is_flags_written_down():
    values = {"two_words": 4, "names": ["a", "b"], "switch": False, "bound": 1, "inner": {"lr": 2}}
    words = as_flags(values, Options, "a.toml")
    assert words == ["--two-words=4", "--names", "a", "b", "--no-switch", "--bound=1", "--inner.lr=2"]
    found = parse(Options, [*words, "r", "--two-words", "9"], "x")
    assert (found.two_words, found.names, found.bound, found.inner.lr) == (9, ("a", "b"), 1.0, 2.0)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"two_wrds": 1}, "unknown setting two_wrds in a.toml: did you mean two_words?"),
        ({"inner": {"zzz": 1}}, "unknown setting inner.zzz in a.toml: there are lr, kind"),
        ({"two_words": True}, "two_words in a.toml is True: give a whole number"),
        ({"two_words": 1.5}, "two_words in a.toml is 1.5: give a whole number"),
        ({"switch": 1}, "switch in a.toml is 1"),
        ({"names": "a"}, "names in a.toml is 'a': give a list"),
        ({"inner": {"kind": "c"}}, "inner.kind in a.toml is 'c': give one of a, b"),
    ],
)
def test_toml_is_checked_by_name_and_type(values, says):
    with pytest.raises(BadInput) as refusal:
        as_flags(values, Options, "a.toml")
    assert str(refusal.value).startswith(says)


def test_json_has_no_nan(capsys):
    print_json({"a": float("nan"), "b": [1.5, float("inf")]})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [1.5, None]}


def test_without_a_flag_everything_has_its_default():
    """`diloco train` by itself is the first thing a newcomer types."""
    from diloco.cli.train import read_options
    from diloco.train.config import TrainConfig

    assert read_options([]).settings() == TrainConfig()
