"""All promises in order, one finding after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from diloco.selftest import promises
from diloco.selftest.processes import in_processes
from diloco.selftest.promises import Finding
from diloco.selftest.subject import Choice, Subject, open_subject

IN_ONE_PROCESS: dict[str, Callable[[Subject, int, int], Finding]] = {
    "a round lands on the mean": promises.lands_on_the_mean,
    "every trained tensor once": promises.every_tensor_once,
    "a resume is bit-equal": promises.resumes_bit_equal,
    "a NaN replica is left out": promises.nan_is_left_out,
}


def run_all(choice: Choice, replicas: int, sync_every: int) -> Iterator[Finding]:
    """Raises BadInput, before the first finding, for a model that does not train by itself."""
    # One thread, here and in the processes: sums then have one order, and equal means equal to the bit.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        subject = open_subject(choice)
        for name, promise in IN_ONE_PROCESS.items():
            yield from _guarded(name, lambda promise=promise: [promise(subject, replicas, sync_every)])
        yield from _guarded("real processes", lambda: in_processes(choice, subject, replicas, sync_every))
    finally:
        torch.set_num_threads(threads)


def _guarded(name: str, attempt: Callable[[], list[Finding]]) -> list[Finding]:
    """An attempt that raises is a broken promise, and the others are still worth trying."""
    try:
        return attempt()
    except Exception as error:
        reason = " ".join(f"raised {type(error).__name__}: {error}".split())
        return [Finding(name, False, reason, "training would end with this error")]
