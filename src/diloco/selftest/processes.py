"""The promises that take real processes: the same numbers as in one, silence between syncs, and every dtype."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from diloco.selftest.fleet import fleet, march
from diloco.selftest.promises import OUTER, Finding
from diloco.selftest.subject import Choice, Subject
from diloco.selftest.worker import Task, state_of, write_task

LOSS_BOUND = 1e-5
"""Relative, per inner step."""
DEADLINE_S = 600


def in_processes(choice: Choice, subject: Subject, replicas: int, sync_every: int) -> list[Finding]:
    """Starts one gloo process a replica on this machine and sets them against the same replicas in this process.

    Raises ChildProcessError with a process's last words where one fails.
    """
    steps = 3 * sync_every
    members = fleet(subject, replicas, sync_every, OUTER)
    local = march(members, 0, steps)
    here = state_of(members[0])
    there = _run(Task(vars(choice), replicas, sync_every, steps))
    return [_same_numbers(local, here, there), _silent(there, sync_every), _dtypes(here, there)]


def _run(task: Task) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = write_task(folder, task)
        command = [sys.executable, "-m", "diloco.selftest.worker", str(job)]
        ranks = range(task.replicas)
        logs = [(folder / f"log-{rank}").open("w+") for rank in ranks]
        processes = [subprocess.Popen([*command, str(r)], stdout=logs[r], stderr=logs[r]) for r in ranks]
        try:
            for rank, process in enumerate(processes):
                if process.wait(timeout=DEADLINE_S):
                    logs[rank].seek(0)
                    words = logs[rank].read().strip().splitlines() or [f"exit code {process.returncode}"]
                    raise ChildProcessError(f"process {rank}: {words[-1]}")
            return [json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8")) for rank in ranks]
        finally:
            for process, log in zip(processes, logs, strict=True):
                process.kill()
                process.wait()
                log.close()


def _same_numbers(local: list[list[float]], here: dict, there: list[dict]) -> Finding:
    worst = max(
        abs(a - b) / max(abs(a), 1e-30)
        for rank, other in enumerate(there)
        for a, b in zip((row[rank] for row in local), other["losses"], strict=True)
    )
    checksums = {here["checksum"], *(other["checksum"] for other in there)}
    sums = f"checksum {here['checksum']} on all" if len(checksums) == 1 else f"checksums differ: {sorted(checksums)}"
    return Finding(
        "one process and real processes give the same numbers",
        worst <= LOSS_BOUND and len(checksums) == 1,
        f"{len(there)} gloo processes, {len(local)} inner steps: losses at most {worst:.1e} apart, {sums}",
        "what was tried in one process would not be what a distributed run does",
    )


def _silent(there: list[dict], sync_every: int) -> Finding:
    quiet = sum(n for o in there for s, n in enumerate(o["messages"], 1) if s % sync_every)
    syncs = [n for o in there for s, n in enumerate(o["messages"], 1) if s % sync_every == 0]
    return Finding(
        "not one message between syncs",
        quiet == 0 and all(syncs),
        f"{quiet} collectives in the steps between syncs, {min(syncs)} or more in each of {len(syncs)} syncs",
        "every inner step would wait for the slow link, or a sync does not talk at all",
    )


def _dtypes(here: dict, there: list[dict]) -> Finding:
    changed = next((n for o in there for n, d in o["dtypes"].items() if here["dtypes"].get(n) != d), None)
    kinds = sorted({d.removeprefix("torch.") for d in here["dtypes"].values()})
    return Finding(
        "every dtype of the model travels",
        changed is None,
        f"{', '.join(kinds)} in {len(here['dtypes'])} tensors" + (f"; {changed} changed its dtype" if changed else ""),
        "weights would come back from a sync in another precision",
    )
