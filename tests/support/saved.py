"""A run with five checkpoints, and `diloco checkpoint` asked about it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import cli

STEPS = [4, 8, 12, 16, 17]
"""4 and 16 are full; the others hold differences to the one before."""


def said(capsys: pytest.CaptureFixture, *words: object, code: int = 0) -> str:
    return cli.text(capsys, "checkpoint", *words, code=code)


def answer(capsys: pytest.CaptureFixture, *words: object, code: int = 0) -> dict:
    return cli.answer(capsys, "checkpoint", *words, code=code)


def refused(capsys: pytest.CaptureFixture, *words: object) -> str:
    return cli.refusal(capsys, "checkpoint", *words)


def file_of(run: Path, step: int, name: str = "global.0.safetensors") -> Path:
    return run / "checkpoints" / f"step-{step:08d}" / name


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def bytes_of(run: Path, *steps: int) -> int:
    return sum(f.stat().st_size for s in steps for f in file_of(run, s).parent.iterdir() if f.name != "manifest.json")
