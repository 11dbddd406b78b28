"""SIGKILL at random moments of background saves: whatever is there is one step's content, whole, and none is lost.

pytest tests/checkpoint/test_kill.py
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from diloco.checkpoint import Store, read_tree

KEEP, FULL_EVERY = 2, 3

# One import of torch serves all kills: a parent that only forks children, each when it is told to, which save without
# end, as a run that is resumed does.
WRITER = """
import os, sys, torch
from diloco.checkpoint import Policy, Store, Writer
sys.path.insert(0, sys.argv[4])
from test_kill import FULL_EVERY, KEEP, content
torch.set_num_threads(1)
for _ in range(int(sys.argv[2])):
    sys.stdin.readline()
    child = os.fork()
    if child == 0:
        store = Store(sys.argv[1])
        step = store.latest_whole()[0] or 0
        store.drop_after(step)
        writer = Writer(store, full_every=FULL_EVERY, keep=Policy(last=KEEP), kind=sys.argv[3])
        while True:
            step += 1
            committed = writer.settle()
            if committed:
                print("saved", committed, flush=True)
            trees = content(step)
            writer.save(step, trees, list(trees), {"step": step}, base=writer.next_base())
            for tensor in (trees["a.0"]["w"], trees["a.0"]["moment"]):
                tensor.zero_()
    print("child", child, flush=True)
    os.waitpid(child, 0)
    print("dead", flush=True)
"""


def content(step: int) -> dict:
    """A function of the step: weights that move a little, moments that are new each time, an equal anchor."""
    w = torch.linspace(1, 2, 8192) + step / 4096
    moment = torch.randn(8192, generator=torch.Generator().manual_seed(step))
    return {"a.0": {"w": w, "moment": moment, "step": step}, "b.0": {"anchor": w.clone(), "t": torch.tensor(step)}}


def killed(root: Path, kills: int, kind: str) -> tuple[list[int], int]:
    """Kills so many savers and checks after each all that is there. Returns the newest step after each, and how many
    were in the middle of a save."""
    rng, newest, torn = random.Random(0), [0], 0
    command = [sys.executable, "-c", WRITER, str(root), str(kills), kind, str(Path(__file__).parent)]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with writer:
        for _ in range(kills):
            print(file=writer.stdin, flush=True)
            child, seen = int(_read_until(writer, "child").split()[1]), newest[-1]
            for _ in range(rng.randint(1, 3)):
                seen = int(writer.stdout.readline().removeprefix("saved "))
            # a spin of random length lands the kill in any phase of the next save
            for _ in range(rng.randint(0, 400_000)):
                pass
            os.kill(child, signal.SIGKILL)
            _read_until(writer, "dead")  # what it was in the middle of in the kernel may still have come about
            newest.append(_check(root, at_least=seen))
            torn += len(Store(root).steps()) < len(list(root.iterdir()))
    assert writer.returncode == 0
    return newest, torn


def _read_until(writer: subprocess.Popen, word: str) -> str:
    for line in writer.stdout:
        if line.startswith(word):
            return line
    raise AssertionError("the writer ended early")


def _check(root: Path, at_least: int) -> int:
    store = Store(root)
    step, skipped = store.latest_whole()
    assert skipped == [] and step >= at_least
    loaded = [s for s in store.steps() if _loads(store, s)]
    assert loaded[-KEEP:] == store.steps()[-KEEP:] and len(store.steps()) <= KEEP + FULL_EVERY
    return step


def _loads(store: Store, step: int) -> bool:
    saved = store.open(step)
    for part, meant in content(step).items():
        found = read_tree(saved.tree(part.removesuffix(".0")))
        assert found.keys() == meant.keys()
        assert all(torch.equal(torch.as_tensor(found[key]), torch.as_tensor(meant[key])) for key in meant)
    return saved.meta == {"step": step}


@pytest.mark.parametrize("kills", [5, pytest.param(120, marks=pytest.mark.slow)])
def test_kill_at_any_moment(tmp_path: Path, kills: int) -> None:
    newest, torn = killed(tmp_path / "checkpoints", kills, "lossless")
    assert len(newest) == kills + 1 and newest == sorted(set(newest))
    assert torn >= kills // 10
