"""SIGKILL at random moments: what is on disk can always be gone on from, and the end is that of an undisturbed run.

pytest tests/train/test_kill.py
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from pathlib import Path

import pytest
from support.training import checkpoint_bits, curve, evals, quiet_train, rounds, tiny

from diloco.checkpoint import steps, verify
from diloco.train.config import TrainConfig
from diloco.train.run import run_path
from diloco.watch import runfolder

LONGEST_S = 0.6  # of a leg: about a third of a whole run, start included, on an idle core


def killed_after(config: TrainConfig, seconds: float) -> bool:
    """Runs a leg in a forked process and kills it; False where it had already come to its end."""
    process = multiprocessing.get_context("fork").Process(target=quiet_train, args=(config,))
    process.start()
    process.join(timeout=seconds)
    if process.exitcode is not None:
        assert process.exitcode == 0
        return False
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    return True


STREAMING = {"fragments": "balanced:3", "overlap": "2", "mixing": "0.5", "codec": "e3m0"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "wanted, options",
    [(20, {}), (8, STREAMING), (8, {"overlap": "eager", "codec": "int8+ef"})],
    ids=["plain", "streaming", "eager"],
)
def test_kills_lose_nothing_reports_42_51_91(tmp_path: Path, wanted: int, options: dict) -> None:
    """At a checkpoint fragments are under way; what they carry, and the residuals, are in it."""
    options = {"steps": 82, "sync_every": 4, "checkpoint_every": 1, "eval_every": 7, **options}
    whole = tiny(tmp_path, name="whole", **options)
    receipt = quiet_train(whole)
    expected = curve(whole), rounds(whole), evals(whole), checkpoint_bits(whole)
    rng, kills, runs = random.Random(0), 0, 0

    while kills < wanted:
        runs += 1
        hurt = tiny(tmp_path, name=f"hurt{runs}", **options)
        while kills < wanted:
            started = (run_path(hurt) / runfolder.EVENTS).exists()
            killed = killed_after(tiny(tmp_path, name=hurt.name, resume=started, **options), rng.uniform(0, LONGEST_S))
            for path in steps(run_path(hurt) / runfolder.CHECKPOINTS):
                assert verify(path) == []
            if not killed:
                break
            kills += 1
        last = quiet_train(hurt, resume=(run_path(hurt) / runfolder.EVENTS).exists())
        assert last["finished"] and last["loss"] == receipt["loss"] and last["checksum"] == receipt["checksum"]
        assert (curve(hurt), rounds(hurt), evals(hurt), checkpoint_bits(hurt)) == expected
        assert [e[0] for e in curve(hurt)] == list(range(1, 83))
