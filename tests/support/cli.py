"""What `diloco WORDS` prints, run in this process."""

from __future__ import annotations

import json

import pytest

from diloco.cli import main


def answer(capsys: pytest.CaptureFixture, *words: object, code: int = 0) -> dict:
    """What `diloco WORDS --json` prints: exactly one strict JSON object."""
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == code
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def text(capsys: pytest.CaptureFixture, *words: object, code: int = 0) -> str:
    capsys.readouterr()
    assert main([*map(str, words)]) == code
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture, *words: object) -> str:
    """The one sentence."""
    capsys.readouterr()
    assert main([*map(str, words)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("diloco: ") and err.count("\n") == 1
    return err
