"""One text, one cache and a few finished runs of 30k parameters, made once and shared by all tests of the command line.

Tests that change a run folder take a copy.
"""

from __future__ import annotations

import contextlib
import io
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support.ladders import write_rows

from diloco.cli import main
from diloco.laws.published import paper_rows

SEQ_LEN = 32


@dataclass(frozen=True)
class Ground:
    """Where the shared run's files are."""

    folder: Path

    @property
    def text(self) -> Path:
        return self.folder / "text.txt"

    def flags(self, runs: Path, **changes: object) -> list[str]:
        """Of a run that takes a second: 2 replicas, H = 4, 17 steps. `data_seq_len=8` becomes --data.seq-len=8."""
        settings = {
            "size": "30k", "replicas": 2, "steps": 17, "batch_tokens": 8 * SEQ_LEN, "sync_every": 4, "eval_every": -1,
            "eval_sequences": 8, "runs": runs, "data_sources": self.text, "data_seq_len": SEQ_LEN,
            "data_cache_dir": self.folder / "cache", **changes,
        }  # fmt: skip
        return [f"--{_dotted(name)}={value}" for name, value in settings.items() if value is not None]


def _dotted(name: str) -> str:
    section, _, rest = name.partition("_")
    return (f"{section}.{rest}" if section in ("inner", "outer", "data") else name).replace("_", "-")


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    folder = tmp_path_factory.mktemp("cli")
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(2, 6))) for _ in range(200)]
    (folder / "text.txt").write_text(" ".join(rng.choices(words, k=10_000)))
    return Ground(folder)


@pytest.fixture(scope="session")
def finished(ground: Ground) -> Callable[..., Path]:
    """`finished(seed=1, method="dp")`: the folder of a finished run with these settings, trained at the first call."""
    made: dict[tuple, Path] = {}

    def run_folder(**changes: object) -> Path:
        key = tuple(sorted(changes.items()))
        if key not in made:
            torch.set_num_threads(1)
            name = f"run-{len(made)}"
            with contextlib.redirect_stdout(io.StringIO()):
                assert main(["train", *ground.flags(ground.folder / "runs", name=name, **changes), "--json"]) == 0
            made[key] = ground.folder / "runs" / name
        return made[key]

    return run_folder


@pytest.fixture
def run_copy(finished: Callable[..., Path], tmp_path: Path) -> Path:
    """A finished run that a test may damage, as tmp_path/runs/run."""
    return Path(shutil.copytree(finished(), tmp_path / "runs" / "run"))


@pytest.fixture
def run(finished: Callable[..., Path], tmp_path: Path) -> Path:
    """A run of its own with five checkpoints in two chains; held-out losses after 8, 16 and 17 steps."""
    made = finished(checkpoint_every=1, keep=0, full_every=3, eval_every=8)
    return Path(shutil.copytree(made, tmp_path / "runs" / "run"))


@pytest.fixture(scope="session")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The paper's Table 4 as a file."""
    rows = paper_rows()
    names = ("params", "replicas", "loss")
    path = tmp_path_factory.mktemp("laws") / "paper.csv"
    return write_rows(path, **{name: rows.column(name) for name in names})


@pytest.fixture(scope="session")
def law(paper: Path) -> Path:
    out = paper.parent / "law.json"
    assert main(["fit", str(paper), "--compare-forms", "--out", str(out), "--json"]) == 0
    return out
