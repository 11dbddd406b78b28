"""A run's checkpoints, as the training loop sees them: every process calls the same methods at the same steps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from diloco import checkpoint
from diloco.errors import BadInput
from diloco.train.config import TrainConfig, config_hash, to_dict
from diloco.train.place_check import check_place
from diloco.train.replica import Replica
from diloco.train.run import run_path
from diloco.train.state import GLOBAL, global_tree, replica_tree, unit_of, weights_of
from diloco.train.world import World
from diloco.watch import runfolder


class Save(NamedTuple):
    path: str
    stall_s: float
    """How long training waited."""
    failed: str | None
    """Why the save before this one, or already this one, came to nothing; None if it did not."""


class Checkpoints:
    """Raises BadInput where the place cannot be opened or written, or where the ranks do not share it."""

    def __init__(self, config: TrainConfig, world: World) -> None:
        self.config, self.world = config, world
        self.store = world.together(lambda: config.build_store(run_path(config) / runfolder.CHECKPOINTS))
        session = self.share(checkpoint.new_session())
        if config.checkpoint_to or world.distributed:  # else it is in the run folder, which says itself what is wrong
            check_place(self.store, world, session)
        self._failed: str | None = None
        self._saving: int | None = None
        self._remains: list[int] = []
        """Steps whose saves failed and may have left something."""
        self._island = world.exchange.island
        self._writer = checkpoint.Writer(
            self.store,
            session,
            full_every=config.full_every,
            kind=config.checkpoint_kind,
            keep=config.build_policy(),
        )

    def check_fresh(self) -> None:
        """Raises BadInput where a new run would write among another's checkpoints."""
        if self.store.steps():
            raise BadInput(
                f"{self.store} already holds checkpoints: give another place with --checkpoint-to, or go on with "
                "--resume"
            )

    def save(self, step: int, replicas: list[Replica], seconds: float, loss: float | None = None) -> Save:
        """Takes a copy of the run's state and begins to write it. `loss`: held-out, of the global weights here.

        Raises:
            FloatingPointError: the weights are not finite, and such a checkpoint must not push out a good one.
            BadInput: there is a checkpoint of this step already.
        """
        began = time.perf_counter()
        failed = self._settle()
        self._refuse_nonfinite(step, replicas)
        base = self.share(self._writer.next_base())
        trees, elsewhere = self._parts(replicas)
        meta = self._meta(step, replicas[0], seconds, loss) if self.world.main else None
        self._saving = step
        self.world.together(
            lambda: self._writer.save(step, trees, self._everyone(), meta, base=base, elsewhere=elsewhere)
        )
        self._failed = None if self.config.checkpoint_background else self._settle()
        return Save(self.store.name(step), time.perf_counter() - began, failed or self._failed)

    def finish(self) -> None:
        """Until the last save is a checkpoint. Raises OSError, on all ranks, in one sentence where it fails."""
        if failed := self._settle() or self._failed:
            raise OSError(failed)

    def close(self) -> None:
        self._writer.close()

    # -- details

    def _parts(self, replicas: list[Replica]) -> tuple[dict[str, Any], dict[checkpoint.Key, Tensor]]:
        """This process's parts by name, and the anchor as the part in which another process writes it."""
        mine = [] if self.config.method == "dp" and 0 not in self.world.mine else replicas
        trees = {unit_of(m): replica_tree(r) for m, r in zip(self.world.mine, mine, strict=False)}
        trees = {GLOBAL: global_tree(replicas[0]), **trees}
        place, gather = self._island.rank, self._island.gather_json
        trees = {checkpoint.part_name(unit, place): checkpoint.own_part(t, place, gather) for unit, t in trees.items()}
        if 0 in self.world.mine:
            return trees, {}
        part = checkpoint.part_name(GLOBAL, place)
        anchor = trees.pop(part).get("anchor", {})
        return trees, {(part, f"anchor/{n}"): t for n, t in anchor.items() if isinstance(t, Tensor)}

    def _everyone(self) -> list[str]:
        replicas = 1 if self.config.method == "dp" else self.world.replicas
        units = [GLOBAL, *(unit_of(m) for m in range(replicas))]
        return [checkpoint.part_name(unit, place) for unit in units for place in range(self._island.size)]

    def _meta(self, step: int, replica: Replica, seconds: float, loss: float | None) -> dict[str, Any]:
        return {
            "step": step,
            "seconds": seconds,
            "replicas": self.config.replicas,
            "config": to_dict(self.config),
            "config_hash": config_hash(self.config),
            "codec": replica.sync.codec.name if replica.sync is not None else None,
            "clock": self.world.exchange.clock.state_dict() if self.world.virtual_s is not None else None,
            checkpoint.LOSS: loss,
        }

    def _refuse_nonfinite(self, step: int, replicas: list[Replica]) -> None:
        trees = {unit_of(m): weights_of(r) for m, r in zip(self.world.mine, replicas, strict=False)}
        bad = [f"{unit}/{where}" for unit, tree in trees.items() if (where := checkpoint.first_nonfinite(tree))]
        if found := [name for names in self._gather(bad) for name in names]:
            raise FloatingPointError(
                f"{found[0]} is not finite after inner step {step}: no checkpoint was written, earlier ones were kept"
            )

    def _settle(self) -> str | None:
        """Waits for the save under way, on all ranks; why it came to nothing."""
        failures = self._gather(_failure(self._writer.written))
        if any(failures):
            self._writer.give_up()
        failures += self._gather(_failure(self._writer.settle))
        failed = next(filter(None, failures), None)
        if failed and self._saving is not None:
            self._remains.append(self._saving)
        self._saving = None
        if self.world.main:
            self._discard_remains()
        return failed

    def _discard_remains(self) -> None:
        """No rank is writing now, and the others wait for this one before they do. What a failing disk does not let go
        is tried again before the next save."""
        with contextlib.suppress(OSError):
            while self._remains:
                self.store.discard(self._remains[0])
                del self._remains[0]

    def _gather(self, value: Any) -> list:
        """This process's value and all others'."""
        return [v for v in self.world.gather_all(value) if v is not None]

    def share(self, value: Any) -> Any:
        """The main process's value on all."""
        return next((v for v, main in self._gather([value, self.world.main]) if main), None)


def _failure(work: Callable[[], object]) -> str | None:
    try:
        work()
    except (OSError, BadInput) as error:
        return str(error)
    return None
