"""SIGKILL at random moments of a save loop: what is there is always one step's content, whole.

pytest tests/checkpoint/test_kill.py
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys

import torch

from diloco.checkpoint import latest_whole, load, step_of, steps

KILLS = 10

# One import of torch serves all kills: a parent that only forks children which save without end.
WRITER = """
import os, sys, torch
from diloco.checkpoint import latest, save, step_of
torch.set_num_threads(1)
root = sys.argv[1]
for _ in range(int(sys.argv[2])):
    child = os.fork()
    if child == 0:
        newest = latest(root)
        step = step_of(newest) if newest else 0
        while True:
            step += 1
            trees = {"a": {"w": torch.full((4096,), float(step))}, "b": [step, torch.tensor(step)]}
            save(root, step, trees, {"step": step}, keep=2)
            print("saved", flush=True)
    print("child", child, flush=True)
    os.waitpid(child, 0)
"""


def test_kill_at_any_moment(tmp_path):
    rng = random.Random(0)
    root = tmp_path / "checkpoints"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(root), str(KILLS)], stdout=subprocess.PIPE, text=True)
    last_step = 0
    with writer:
        for _ in range(KILLS):
            child = _next_child(writer)
            for _ in range(rng.randint(1, 3)):
                assert writer.stdout.readline() == "saved\n"
            # a spin of random length lands the kill in any phase of the next save
            for _ in range(rng.randint(0, 300_000)):
                pass
            os.kill(child, signal.SIGKILL)
            last_step = _check_newest(root, at_least=last_step + 1)
    assert writer.returncode == 0
    assert len(steps(root)) <= 3


def _next_child(writer: subprocess.Popen) -> int:
    for line in writer.stdout:
        if line.startswith("child"):
            return int(line.split()[1])
    raise AssertionError("the writer ended early")


def _check_newest(root, at_least: int) -> int:
    path, skipped = latest_whole(root)
    trees, meta = load(path)
    step = step_of(path)
    assert skipped == []
    assert step >= at_least
    assert meta == {"step": step} and trees["b"][0] == step and trees["b"][1].item() == step
    assert torch.equal(trees["a"]["w"], torch.full((4096,), float(step)))
    return step
