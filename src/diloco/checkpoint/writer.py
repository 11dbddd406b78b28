"""Saving while training goes on: a copy is taken, and a thread codes and writes it.

Every rank writes its own parts and a record of each; one rank, which commits, waits for the records of all and writes
the manifest. Before that there is no checkpoint, and the ones before it are untouched.
"""

from __future__ import annotations

import threading
import uuid
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch
from torch import Tensor

from diloco.checkpoint.coders import LOSSLESS, LOSSY, PLAIN, check_kind
from diloco.checkpoint.job import Job, Seal
from diloco.checkpoint.manifest import Base, Manifest, check_unit_name, unit_of
from diloco.checkpoint.pack import split
from diloco.checkpoint.parts import Key
from diloco.checkpoint.retention import Policy
from diloco.checkpoint.staging import Staging, Tensors
from diloco.checkpoint.store import Store
from diloco.errors import BadInput
from diloco.shards import local
from diloco.threads import stay_behind

FULL_EVERY = 10
CLOSING_S = 30.0
"""How long a writer that is closed still waits for other ranks, some of which may be no more."""


def new_session() -> str:
    """A text that no other run has."""
    return uuid.uuid4().hex


class Writer:
    """One rank's side of a run's checkpoints. At most one save is under way. In CPU memory it keeps two copies of what
    the rank writes, the last and the one before; one, where all checkpoints are full.

    Args:
        session: the same text on all ranks of this run, and no other run's; parts that a killed run left are told
            apart by it. By default a new one, for a run of one process.
        full_every: F, how many checkpoints a chain has: a full one and F - 1 differences. 1: all are full.
        kind: lossless; lossy (int8 differences); plain, as safetensors has them.
        background: write in a thread. Without, `save` returns when all is done.
        keep: what stays; by default the newest few.
    """

    def __init__(
        self,
        store: Store,
        session: str | None = None,
        *,
        full_every: int = FULL_EVERY,
        kind: str = LOSSLESS,
        background: bool = True,
        keep: Policy | None = None,
    ) -> None:
        if full_every < 1:
            raise BadInput(f"full_every is {full_every}: give 1 (all are full) or more")
        self.store, self.session, self.keep = store, session or new_session(), keep or Policy()
        self.kind, self.full_every, self.background = check_kind(kind), full_every, background
        self.committed: Manifest | None = None
        """The last checkpoint that this rank has made whole, as far as `settle` has seen; None after a failure."""
        self._links = 0
        self._number: int | None = None
        self._staging = Staging(1 if self._always_full else 2)
        self._staged_step: int | None = None
        self._parts: Future | None = None
        self._end: Future | None = None
        self._job: Job | None = None
        self._failed: Job | None = None
        self._given_up = threading.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint", initializer=stay_behind)
        weakref.finalize(self, self._thread.shutdown, wait=False)

    @property
    def _always_full(self) -> bool:
        return self.full_every == 1 or self.kind == PLAIN

    def next_base(self) -> int | None:
        """The step that the next checkpoint should hold the differences to; None where it should be full. Ask the rank
        that commits, after `settle`, and tell all."""
        if self._always_full or self.committed is None or self._links >= self.full_every:
            return None
        return self.committed.step

    def save(
        self,
        step: int,
        trees: dict[str, Any],
        everyone: Sequence[str],
        meta: dict[str, Any] | None,
        base: int | None = None,
        elsewhere: dict[Key, Tensor] | None = None,
    ) -> None:
        """Takes a copy of this rank's parts and begins to write it; waits for the save before, if need be.

        Args:
            trees: by part name, `UNIT.i`.
            everyone: the names of all ranks' parts.
            meta: plain JSON for the manifest, on the rank that commits; None on the others.
            base: what `next_base` gave on the rank that commits.
            elsewhere: tensors that other ranks write, by (part, name there), each with this rank's copy of it. Where a
                tensor here equals one of them whose path ends in the same name, it is only referred to.

        Raises:
            TypeError: a tree holds something that cannot be saved.
            BadInput: there is a checkpoint of this step already, or names are wrong.
            OSError, BadInput: as `settle`, of the save before.
        """
        self.settle()
        _check_names(step, trees, everyone)
        writes = bool(trees) or meta is not None  # a rank that does not may come when the others have finished
        if writes and self.store.exists(step):
            raise BadInput(f"{self.store.name(step)} holds a checkpoint already: remove it or use another place")
        live, json_trees = {}, {}
        for part, tree in trees.items():
            live[part], json_trees[part] = split(tree)
        # What a lossy difference rebuilds depends on the rank's own chain, so it shares nothing with other ranks.
        same = {} if self.kind == LOSSY else _find_same(live, elsewhere or {})
        staged = self._staging.take(live)
        before = self._staging.before if base is not None and base == self._staged_step else {}
        self._staged_step = step
        job = Job(self.store, self.session, self.kind, step, staged, before, json_trees, same)
        self._start(job, None if meta is None else Seal(everyone, meta, self._base(base), self._number, self.keep))
        if not self.background:
            self.settle()

    def written(self) -> None:
        """Waits until this rank's own parts are written. Raises as `settle` does."""
        self._wait(self._parts)

    def give_up(self) -> None:
        """Stops waiting for the parts of other ranks, one of which has failed: no checkpoint will come of it."""
        self._given_up.set()

    def settle(self) -> int | None:
        """Waits for what is under way; returns the step of the last checkpoint that this rank has committed.

        Raises OSError or BadInput in one sentence where the save failed, whatever the fault. The checkpoints before it
        are as they were, and the next one is full.
        """
        manifest = self._wait(self._end)
        self._parts = self._end = None
        if manifest is not None:
            self.committed, self._number = manifest, manifest.number + 1
            self._links = self._links + 1 if manifest.base else 1
        return self.committed and self.committed.step

    def close(self) -> None:
        """Ends what is under way, and waits no longer than `CLOSING_S` for other ranks."""
        if self._end is not None:
            wait([self._parts])
            wait([self._end], timeout=CLOSING_S)
        self._given_up.set()
        self._thread.shutdown()

    # -- details

    def _base(self, step: int | None) -> Base | None:
        if step is None:
            return None
        if self.committed is None or self.committed.step != step:
            raise BadInput(f"base is {step}, which is not the last checkpoint: ask `next_base` for it")
        return Base(step, self.committed.sha256)

    def _start(self, job: Job, seal: Seal | None) -> None:
        self._given_up.clear()
        if self._failed is not None:
            self._thread.submit(self._failed.discard)
        self._job, self._failed = job, None
        self._parts = self._thread.submit(job.write_parts)
        if seal is None:
            self._end = self._thread.submit(job.write_records, self._parts)
        else:
            self._end = self._thread.submit(job.commit, self._parts, seal, self._given_up)

    def _wait(self, future: Future | None) -> Any:
        try:
            return future and future.result()
        except BaseException as error:
            self._given_up.set()
            self._parts = self._end = self._staged_step = self.committed = None
            self._failed = self._job
            if isinstance(error, OSError | BadInput) or not isinstance(error, Exception):
                raise
            # Memory that is short, say: of the thread's doings the caller knows only the save.
            why = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")
            raise OSError(f"{self.store.name(self._job.step)} could not be written ({why})") from error


def _check_names(step: int, trees: dict[str, Any], everyone: Sequence[str]) -> None:
    for part in everyone:
        check_unit_name(unit_of(part))
    if len(set(everyone)) != len(everyone) or not set(trees) <= set(everyone):
        raise ValueError(f"step {step} needs parts with different names, among them {sorted(trees)}: {everyone}")


def _find_same(live: Tensors, elsewhere: dict[Key, Tensor]) -> dict[Key, Key]:
    by_end: dict[str, list[tuple[Key, Tensor]]] = {}
    for key, tensor in elsewhere.items():
        by_end.setdefault(_end(key[1]), []).append((key, local(tensor)))
    found = {}
    for part, tensors in live.items():
        for name, tensor in tensors.items():
            for key, candidate in by_end.get(_end(name), ()):
                if _equal_bits(tensor, candidate):
                    found[part, name] = key
                    break
    return found


def _end(name: str) -> str:
    return name.rpartition("/")[2]


def _equal_bits(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device or not one.numel():
        return False
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    return torch.equal(one.view(words), other.view(words))
