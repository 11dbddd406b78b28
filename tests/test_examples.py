"""The programs in examples/ run, alone and as several processes.

pytest tests/test_examples.py
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_own_loop_learns_alone(capsys) -> None:
    assert load("own_loop").main() < 0.2
    assert "replica 0 of 1" in capsys.readouterr().out


@pytest.mark.slow
def test_own_loop_learns_with_two_replicas() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*command, str(EXAMPLES / "own_loop.py")], capture_output=True, text=True, timeout=120)
    # The two print at once, so their lines may run into one another.
    checksums = re.findall(r"global weights ([0-9a-f]{16})", done.stdout)
    assert done.returncode == 0 and len(checksums) == 2 and len(set(checksums)) == 1


def test_streaming_sends_little_and_plain_waits_for_its_bytes() -> None:
    """The bytes are exact; of time only what the line cannot undercut is asserted."""
    plain, streamed = load("streaming").main().values()
    assert plain["loss"] < 1 and streamed["loss"] < 1
    assert streamed["bytes_sent"] < 0.2 * plain["bytes_sent"]
    assert plain["stall_s"] >= 8 * plain["bytes_sent"] / 2e6
