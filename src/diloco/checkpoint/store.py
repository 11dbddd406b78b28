"""All checkpoints in one place.

The format is our own, safetensors and JSON under a manifest, since torch.distributed.checkpoint's files and messages
are pickle, which is never read here; its ideas (chunks with offsets, resharding while loading, a copy first and the
writing behind it) are these.

A folder `step-00000123/` is a checkpoint once its manifest.json, written last, is there. A checkpoint is full or holds
differences to an earlier one, which it names together with its manifest's sha256.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from diloco.checkpoint.manifest import MANIFEST, Manifest, files_of, folder_name, read_manifest, steps_in
from diloco.checkpoint.retention import Entry, Policy, to_drop
from diloco.checkpoint.saved import Saved, file_problem
from diloco.checkpoint.storage import open_storage
from diloco.errors import BadInput

LOSS = "loss"
"""Key in a checkpoint's `meta` of its held-out loss, by which the best are kept."""


class Store:
    """The checkpoints in a folder or at an fsspec URL."""

    def __init__(self, location: str | Path) -> None:
        """Raises BadInput for a URL that fsspec cannot open."""
        self.storage = open_storage(location)

    def __str__(self) -> str:
        return self.storage.name_of("")

    def name(self, step: int) -> str:
        """How messages call the checkpoint of a step."""
        return self.storage.name_of(folder_name(step))

    def steps(self) -> list[int]:
        """Steps of the checkpoints, whole or damaged, oldest first; those never finished are none."""
        return [step for step in self._folders() if self.exists(step)]

    def exists(self, step: int) -> bool:
        return self.storage.size_bytes(f"{folder_name(step)}/{MANIFEST}") is not None

    def manifest(self, step: int) -> Manifest:
        """Raises BadInput where it is missing or damaged."""
        return read_manifest(self.storage, step)

    def chain(self, step: int) -> list[Manifest]:
        """The manifests from a step's down to the full one that it rests on.

        Raises BadInput naming the link that is missing, damaged, or not the one that was there.
        """
        links = [self.manifest(step)]
        while base := links[-1].base:
            try:
                link = self.manifest(base.step)
            except BadInput as error:
                raise type(error)(f"{error} ({self.name(step)} holds differences that rest on it)") from error
            if link.sha256 != base.sha256 or base.step >= links[-1].step:
                raise BadInput(
                    f"{self.name(base.step)} is not the checkpoint that {self.name(links[-1].step)} holds the "
                    "differences to: use another"
                )
            links.append(link)
        return links

    def open(self, step: int, verify: bool = True) -> Saved:
        """Raises BadInput where the checkpoint or one it rests on is damaged, as far as manifests tell.

        `verify`: compare sizes and sha256 of files when they are first read; not needed after `latest_whole`.
        """
        return Saved(self.storage, self.chain(step), verify)

    # -- checking

    def verify(self, step: int) -> list[str]:
        """Everything that is wrong with a checkpoint and those it rests on, a sentence each; reads every byte."""
        return self.problems(step, content=True, known={})

    def latest_whole(self, content: bool = True) -> tuple[int | None, list[str]]:
        """The newest step that is whole with all it rests on (or None), and why each newer one was skipped.

        Without `content` only manifests and file sizes are looked at.
        """
        skipped: list[str] = []
        known: dict[int, list[str]] = {}
        for step in reversed(self.steps()):
            problems = self.problems(step, content, known)
            if not problems:
                return step, skipped
            skipped.append(problems[0])
        return None, skipped

    def causes(self) -> list[str]:
        """What is wrong with the checkpoints here, newest first, but each cause once however many rest on it; reads
        every byte."""
        known: dict[int, list[str]] = {}
        found: list[str] = []
        for step in reversed(self.steps()):
            try:
                chain = self.chain(step)
            except BadInput as error:
                # A link's own fault, without which checkpoint rests on it.
                found.append(str(error.__cause__ if isinstance(error.__cause__, BadInput) else error))
            else:
                known |= {link.step: self._link_problems(link, True) for link in chain if link.step not in known}
                found += [problem for link in chain for problem in known[link.step]]
        return list(dict.fromkeys(found))

    def problems(self, step: int, content: bool, known: dict[int, list[str]]) -> list[str]:
        """As `verify`; without `content` only sizes are compared. `known` keeps what was found of each link."""
        try:
            chain = self.chain(step)
        except BadInput as error:
            return [str(error)]
        found: list[str] = []
        for link in chain:
            if link.step not in known:
                known[link.step] = self._link_problems(link, content)
            why = "" if link.step == step else f", and {self.name(step)} holds differences that rest on it"
            found += [problem + why for problem in known[link.step]]
        return found

    def _link_problems(self, link: Manifest, content: bool) -> list[str]:
        return [problem for part in link.parts if (problem := self.part_problem(link, part, content))]

    def part_problem(self, link: Manifest, part: str, content: bool) -> str | None:
        """What is wrong with a part's files; without `content` only their sizes are compared."""
        with tempfile.TemporaryDirectory(prefix="diloco-") as scratch:
            return file_problem(self.storage, link, part, content, Path(scratch))

    # -- removing

    def entries(self) -> list[Entry]:
        """What retention looks at: the checkpoints that are whole, as far as manifests and the files' names tell."""
        found, whole = [], set()
        for step in self.steps():
            try:
                manifest = self.manifest(step)
            except BadInput:
                continue
            names = set(self.storage.names(folder_name(step)))
            rests = manifest.base is None or manifest.base.step in whole
            if rests and all(names.issuperset(part.bytes) for part in manifest.parts.values()):
                whole.add(step)
                base = manifest.base and manifest.base.step
                found.append(Entry(step, manifest.number, base, manifest.meta.get(LOSS)))
        return found

    def prune(self, policy: Policy, dry_run: bool = False) -> list[int]:
        """Removes what the policy does not keep; returns its steps, newest first.

        Damaged checkpoints go when they are older than everything that is kept for being new.
        """
        entries = self.entries()
        whole = [e.step for e in entries]
        drop = to_drop(entries, policy)
        if policy.last and len(whole) >= policy.last:
            drop += [step for step in self.steps() if step < whole[-policy.last] and step not in whole]
        drop.sort(reverse=True)
        if not dry_run:
            for step in drop:
                self.remove(step)
        return drop

    def remove(self, step: int) -> None:
        """The manifest first: a kill in between leaves a folder that is no checkpoint."""
        folder = folder_name(step)
        self.storage.remove(f"{folder}/{MANIFEST}")
        self.storage.remove(folder)

    def drop_after(self, step: int) -> list[int]:
        """Removes checkpoints newer than `step`, and what killed runs left, before a run resumed there writes its own.

        Returns the steps of the checkpoints removed. Call it on one rank, before any rank writes.
        """
        dropped = [s for s in self.steps() if s > step]
        for newer in reversed(dropped):
            self.remove(newer)
        self.drop_unfinished()
        return dropped

    def discard(self, step: int, parts: Iterable[str] | None = None) -> None:
        """Removes what was written of a save that has come to nothing: these parts, or all of it. A checkpoint stays.

        Call it without `parts` only where no other rank may still be writing.
        """
        if self.exists(step):
            return
        folder = folder_name(step)
        paths = [folder] if parts is None else [f"{folder}/{file}" for part in parts for file in files_of(part)]
        for path in paths:
            self.storage.remove(path)

    def drop_unfinished(self, before: int | None = None) -> None:
        """Removes folders that never became a checkpoint: all, or those of steps before `before`."""
        for step in self.unfinished():
            if before is None or step < before:
                self.storage.remove(folder_name(step))

    def unfinished(self) -> list[int]:
        """Steps of the folders that never became a checkpoint, oldest first."""
        return [step for step in self._folders() if not self.exists(step)]

    def _folders(self) -> list[int]:
        return steps_in(self.storage.names(""))
