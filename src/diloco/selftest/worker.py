"""One replica in a process of its own, over gloo: `python -m diloco.selftest.worker JOB.json RANK`."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from diloco.selftest.fleet import Member, enlist
from diloco.selftest.promises import OUTER
from diloco.selftest.subject import Choice, open_subject
from diloco.wire.collective import Collective


@dataclass(frozen=True)
class Task:
    """What the processes do, as JSON can hold it."""

    choice: dict[str, str]
    replicas: int
    sync_every: int
    steps: int


class Messages(TorchDispatchMode):
    """Counts collectives of every process group as torch dispatches them, whoever calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        self.count += func.namespace == "c10d"
        return func(*args, **(kwargs or {}))


def work(task: Task) -> dict[str, Any]:
    """Losses and messages by inner step, and what the weights have become. The process group must be initialised."""
    torch.set_num_threads(1)
    subject = open_subject(Choice(**task.choice))
    member = enlist(subject, Collective(), task.sync_every, OUTER)
    losses, messages = [], []
    with Messages() as sent:
        for step in range(task.steps):
            before = sent.count
            losses.append(member.inner_step(step))
            messages.append(sent.count - before)
    return {"losses": losses, "messages": messages, **state_of(member)}


def state_of(member: Member) -> dict[str, Any]:
    """Checksum of the anchor and the dtype of every tensor."""
    dtypes = {name: str(tensor.dtype) for name, tensor in member.model.state_dict().items()}
    return {"checksum": member.sync.checksum(), "dtypes": dtypes}


def main(job: str, rank: int) -> None:
    folder, task = Path(job).parent, Task(**json.loads(Path(job).read_text(encoding="utf-8")))
    store = dist.FileStore(str(folder / "store"), task.replicas)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=task.replicas)
    try:
        (folder / f"rank-{rank}.json").write_text(json.dumps(work(task)), encoding="utf-8")
    finally:
        dist.destroy_process_group()


def write_task(folder: Path, task: Task) -> Path:
    path = folder / "job.json"
    path.write_text(json.dumps(dataclasses.asdict(task)), encoding="utf-8")
    return path


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
