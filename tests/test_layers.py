"""Who may import whom: the imports of every file are parsed and held against DESIGN's lines.

pytest tests/test_layers.py
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "diloco"
MAY = {
    "units": {"errors"},
    "outer": {"errors", "shards", "outer"},
    "wire": {"errors", "shards", "threads", "outer", "wire"},
    "sync": {"errors", "shards", "outer", "wire", "sync"},
    "checkpoint": {"errors", "shards", "threads", "checkpoint"},
    "laws": {"errors", "laws"},
    "plan": {"errors", "units", "laws", "plan"},
    "watch": {"errors", "units", "watch"},
    "selftest": {"errors", "outer", "wire", "sync", "checkpoint", "train", "selftest", "DiLoCo"},
    "train": {"errors", "shards", "outer", "wire", "sync", "checkpoint", "watch", "plan", "train"},  # of plan a name
}


def imports_of(path: Path) -> set[str]:
    """Every module a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module} if node.module != "diloco" else {f"diloco.{a.name}" for a in node.names}
    return found


def files() -> list[Path]:
    return [p for p in sorted(ROOT.rglob("*.py")) if p.relative_to(ROOT).parts[0].removesuffix(".py") in MAY]


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_layers(path: Path) -> None:
    part = path.relative_to(ROOT).parts[0].removesuffix(".py")
    inside = {name.split(".")[1] for name in imports_of(path) if name.startswith("diloco.")}
    assert inside <= MAY[part], f"{path.name} imports {inside - MAY[part]}"
    outside = {name.split(".")[0] for name in imports_of(path)} - {"diloco"}
    if part == "units":
        assert outside <= set(sys.stdlib_module_names)
    if part == "outer":
        assert outside <= set(sys.stdlib_module_names) | {"torch"} and "torch.distributed" not in imports_of(path)
        assert not {"time", "pathlib", "os", "io"} & outside
    if part in ("watch", "laws", "plan"):
        assert "torch" not in outside


@pytest.mark.parametrize("arguments", [["--help"], ["nonsense"]])
def test_help_needs_no_torch(arguments: list[str]) -> None:
    code = (
        f"import sys, diloco.cli as c; c.main({arguments!r}); sys.exit(bool({{'torch', 'numpy'}} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_files_stay_small() -> None:
    """One idea a file: none over 500 lines, the median under 200."""
    lengths = sorted(len(p.read_text().splitlines()) for p in ROOT.rglob("*.py"))
    assert lengths[-1] <= 500 and lengths[len(lengths) // 2] < 200
