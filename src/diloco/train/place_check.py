"""Whether checkpoints can be saved where they are told to, found out before the first step."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

import torch.distributed as dist

from diloco.checkpoint import Store
from diloco.checkpoint.storage import open_storage
from diloco.errors import BadInput
from diloco.train.world import World
from diloco.watch import runfolder

_OF_A_RUN = (runfolder.EVENTS, runfolder.RECEIPT, runfolder.CONFIG)

SEEN_S = 5.0
"""How long a file that one rank wrote may take until the others see it: network disks remember what was not there."""
_PAUSE_S = 0.1


def refuse_run_folder(store: Store, own: Path) -> None:
    """Raises BadInput where checkpoints would go into another run's folder than the `own`: a name for either run's
    checkpoints would then be one for both."""
    places = [store.storage]
    parent, _, last = store.storage.name_of("").rstrip("/").rpartition("/")
    if last == runfolder.CHECKPOINTS and parent:
        places.append(open_storage(parent))
    for place in places:
        root = place.name_of("")
        found = next((file for file in _OF_A_RUN if place.size_bytes(file) is not None), None)
        if found and Path(root).resolve() != own.resolve():
            raise BadInput(
                f"checkpoint_to is {store}, but {'that' if place is store.storage else root} is a run folder: it holds "
                f"{found}, so give checkpoints a folder of their own"
            )


def check_place(store: Store, world: World, session: str) -> None:
    """Every rank writes a small file there, and looks whether it sees the main rank's, and that one whether all came.

    All ranks call it. Raises BadInput, on all, naming the rank that cannot write there or does not share the place.
    """
    processes = len(world.gather_all(True))
    if processes > 1 and store.storage.own:
        raise BadInput(
            f"checkpoint_to is {store}, which each of the {processes} processes has for itself: give a folder or URL "
            "that all share"
        )
    rank = dist.get_rank() if world.distributed else 0
    made = store.storage.missing_folders()
    try:
        world.together(lambda: _write(store, session, rank, f"rank {rank}: " if processes > 1 else ""))
        ranks = world.gather_all(rank)
        unseen = _unseen(store, session, ranks if world.main else ranks[:1])
        blind = [[rank, other] for other in unseen]
        if pairs := [pair for found in world.gather_all(blind) for pair in found]:
            reader, writer = pairs[-1]  # the main rank misses something too, but others are likelier to be wrong
            raise BadInput(
                f"checkpoints go to {store}, but rank {reader} does not see there what rank {writer} writes: give a "
                "place that all ranks share with --checkpoint-to"
            )
    finally:
        with contextlib.suppress(OSError):  # where it could not be written either
            store.storage.remove(_name(session, rank))
        world.gather_all(True)
        for folder in made:
            with contextlib.suppress(OSError):  # another rank has removed it, or somebody else uses it by now
                folder.rmdir()
        world.gather_all(True)


def _name(session: str, rank: int) -> str:
    return f"probe-{session[:8]}-{rank}"


def _write(store: Store, session: str, rank: int, who: str) -> None:
    try:
        store.storage.write(_name(session, rank), lambda file: file.write_text(session))
    except OSError as error:
        raise BadInput(f"{who}{error} with --checkpoint-to") from error


def _unseen(store: Store, session: str, ranks: Iterable[int]) -> list[int]:
    deadline = time.monotonic() + SEEN_S
    unseen = list(ranks)
    while unseen := [rank for rank in unseen if not _sees(store, session, rank)]:
        if time.monotonic() > deadline:
            break
        time.sleep(_PAUSE_S)
    return unseen


def _sees(store: Store, session: str, rank: int) -> bool:
    try:
        return store.storage.read(_name(session, rank)) == session.encode()
    except OSError:
        return False
