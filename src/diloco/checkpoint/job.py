"""One save: this rank's parts and, on the rank that commits, the manifest. A `Writer` has it run in its thread."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Event
from typing import Any

import torch

from diloco.checkpoint.manifest import (
    Base,
    Manifest,
    PartInfo,
    folder_name,
    read_record,
    write_manifest,
    write_record,
)
from diloco.checkpoint.parts import Encoder, Key, write_part
from diloco.checkpoint.retention import Policy
from diloco.checkpoint.staging import Tensors
from diloco.checkpoint.store import Store
from diloco.errors import BadInput

WAIT_S = 600.0
"""How long the committing rank waits for the others' parts after its own are written."""
_LONGEST_PAUSE_S = 0.5


@dataclass(frozen=True)
class Seal:
    """What the rank that commits puts into the manifest."""

    everyone: Sequence[str]
    """Names of all ranks' parts."""
    meta: dict[str, Any]
    base: Base | None
    number: int | None
    """Which of the run's checkpoints it is; None: one more than those that are there."""
    keep: Policy


class Job:
    """`tensors` and `base` are copies that nobody else touches; `trees` are as `pack.split` gives them."""

    def __init__(
        self,
        store: Store,
        session: str,
        kind: str,
        step: int,
        tensors: Tensors,
        base: Tensors,
        trees: dict[str, Any],
        same: dict[Key, Key],
    ) -> None:
        self.store, self.storage, self.session = store, store.storage, session
        self.kind, self.step, self.tensors, self.base, self.trees, self.same = kind, step, tensors, base, trees, same

    def write_parts(self) -> dict[str, PartInfo]:
        """Raises OSError where they cannot be written."""
        encoder, written = Encoder(self.kind), {}
        with torch.no_grad(), self._all_or_nothing(lambda: list(self.trees)):
            for part, tree in self.trees.items():
                stored, entries = encoder.encode(part, self.tensors[part], self.base.get(part, {}), self.same)
                written[part] = write_part(self.storage, self.step, part, stored, entries, tree)
        return written

    def write_records(self, parts: Future) -> None:
        """Tells the rank that commits that the parts are written."""
        with self._all_or_nothing(lambda: list(self.trees)):
            for info in parts.result().values():
                write_record(self.storage, self.step, info, self.session)

    def commit(self, parts: Future, seal: Seal, given_up: Event) -> Manifest:
        """Makes it a checkpoint once all parts are there, and drops what is no longer kept. Raises OSError where some
        do not come, BadInput where they went elsewhere."""
        with self._all_or_nothing(lambda: self._finished(seal.everyone)):
            infos = self._collect(parts.result(), seal.everyone, given_up)
            self._drop_strangers(infos)
            number = seal.number or 1 + max((entry.number for entry in self.store.entries()), default=0)
            manifest = Manifest(self.step, number, self.kind, seal.base, infos, seal.meta)
            manifest = write_manifest(self.storage, manifest)
        self.store.drop_unfinished(before=self.step)
        self.store.prune(seal.keep)
        return manifest

    def discard(self) -> None:
        """Once more after it failed, where what it had written could not be removed then."""
        with contextlib.suppress(OSError):
            self.store.discard(self.step, self.trees)

    @contextlib.contextmanager
    def _all_or_nothing(self, parts: Callable[[], Sequence[str] | None]) -> Iterator[None]:
        """After a failure these parts are removed, so that they do not fill the disk for the next save."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):  # the failure that is raised says why
                self.store.discard(self.step, parts())
            raise

    def _finished(self, everyone: Sequence[str]) -> list[str] | None:
        """The parts that nobody is writing any more; None: all that is in the folder."""
        if set(everyone) == set(self.trees):
            return None
        written = (p for p in everyone if read_record(self.storage, self.step, p, self.session))
        return [*self.trees, *written]

    def _collect(self, own: dict[str, PartInfo], everyone: Sequence[str], given_up: Event) -> dict[str, PartInfo]:
        """What all ranks wrote, as their records say."""
        found = dict(own)
        deadline, pause = time.monotonic() + WAIT_S, 0.01
        while True:
            absent = [part for part in everyone if part not in found]
            records = {part: read_record(self.storage, self.step, part, self.session) for part in absent}
            found |= {part: info for part, info in records.items() if info}
            missing = [part for part in absent if part not in found]
            if not missing:
                return found
            if time.monotonic() > deadline or given_up.wait(pause):
                raise OSError(
                    f"{self.store.name(self.step)} was not finished, since {', '.join(missing)} did not come: all "
                    "ranks must be able to write to the same place"
                )
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _drop_strangers(self, parts: dict[str, PartInfo]) -> None:
        """Records, and what a killed run with more ranks may have left in the folder."""
        expected = {name for part in parts.values() for name in part.bytes}
        folder = folder_name(self.step)
        names = self.storage.names(folder)
        if missing := sorted(expected - set(names)):
            raise BadInput(
                f"{self.storage.name_of(f'{folder}/{missing[0]}')} is missing: all ranks must write to the same place"
            )
        for name in names:
            if name not in expected:
                self.storage.remove(f"{folder}/{name}")
