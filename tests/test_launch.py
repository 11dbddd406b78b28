"""The launch examples are sound shell and YAML, and what they and the docs say to `diloco train` is what it takes.

pytest tests/test_launch.py
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from diloco.cli.train import read_options

ROOT = Path(__file__).parents[1]
LAUNCH = ROOT / "examples" / "launch"
WORLDS = {"slurm.sh": 32, "kubernetes.yaml": 16, "skypilot.yaml": 16}


def scripts(path: Path) -> str:
    """The shell in a file: all of a script; of YAML what is run."""
    if path.suffix == ".sh":
        return path.read_text()
    *_, document = yaml.safe_load_all(path.read_text())
    if "run" in document:
        return document["run"]
    return document["spec"]["template"]["spec"]["containers"][0]["args"][0]


def train_arguments(shell: str) -> list[str]:
    """The words after `diloco train`, variables of the shell's own left out."""
    joined = shell.replace("\\\n", " ")
    command = re.search(r"-m diloco train(.*)", joined).group(1).split("'")[0]
    return [word for word in shlex.split(command) if "$" not in word]


@pytest.mark.parametrize("name", sorted(WORLDS))
def test_launch_examples_are_sound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = scripts(LAUNCH / name)
    assert subprocess.run(["bash", "-n"], input=shell, text=True, capture_output=True).returncode == 0
    monkeypatch.setenv("WORLD_SIZE", str(WORLDS[name]))
    monkeypatch.setenv("RANK", "0")
    assert read_options(train_arguments(shell)).replicas == 2


def test_every_example_is_covered() -> None:
    assert {p.name for p in LAUNCH.iterdir()} == set(WORLDS)


def test_namespaces_in_the_docs_are_sound_shell() -> None:
    text = (ROOT / "docs" / "launching.md").read_text()
    for block in re.findall(r"```\n(.*?)```", text, re.S):
        assert subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True).returncode == 0
