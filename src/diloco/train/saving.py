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
from diloco.train.place_check import check_place, refuse_run_folder
from diloco.train.replica import Replica
from diloco.train.run import run_path
from diloco.train.state import GLOBAL, trees_of, unit_of, weights_in
from diloco.train.world import World
from diloco.watch import runfolder


class Save(NamedTuple):
    path: str
    stall_s: float
    """How long training waited."""
    failed: str | None
    """Why the save before this one, or already this one, came to nothing; None if it did not."""
    skipped: str | None = None
    """Why nothing is saved now; None where it is."""


class _Settled(NamedTuple):
    """What all ranks know alike before a save begins."""

    failed: str | None
    """Why the save before came to nothing."""
    base: int | None
    """What the next one should hold the differences to."""
    news: list
    """What each rank had to say."""


class Checkpoints:
    """Raises BadInput where the place cannot be opened or written, or where the ranks do not share it."""

    def __init__(self, config: TrainConfig, world: World) -> None:
        self.config, self.world = config, world
        self.store = world.together(lambda: config.build_store(run_path(config) / runfolder.CHECKPOINTS))
        session = self.share(checkpoint.new_session())
        if config.checkpoint_to or world.distributed:  # else it is in the run folder, which says itself what is wrong
            check_place(self.store, world, session)
        if config.checkpoint_to:
            world.together(lambda: refuse_run_folder(self.store, run_path(config)) if world.main else None)
        self._failed: str | None = None
        self._skipped: str | None = None
        """Why the last save was passed over."""
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

        Nothing is saved while a replica's own weights are not finite and the global ones are: the next round leaves it
        out and resets it.

        Raises:
            FloatingPointError: the global weights are not finite, or those of a run without rounds between replicas;
                such a checkpoint must not push out a good one.
            BadInput: there is a checkpoint of this step already.
        """
        began = time.perf_counter()
        units = self._units(replicas)
        bad = checkpoint.first_nonfinite({unit: weights_in(tree) for unit, tree in units.items()})
        failed, base, names = self._settle(bad)
        self._failed, self._skipped = None, self._why_skipped(step, [name for name in names if name])
        if self._skipped:
            return Save(self.store.name(step), time.perf_counter() - began, failed, self._skipped)
        trees, elsewhere = self._parts(units)
        meta = self._meta(step, replicas[0], seconds, loss) if self.world.main else None
        self._saving = step
        # Each rank finds the same checkpoints there, so that what one refuses all do: nothing is sent from here on,
        # since the writer's thread would make it late.
        self._writer.save(step, trees, self._everyone(), meta, base=base, elsewhere=elsewhere)
        self._failed = None if self.config.checkpoint_background else self._settle().failed
        return Save(self.store.name(step), time.perf_counter() - began, failed or self._failed)

    def finish(self) -> None:
        """Until the last save is a checkpoint. Raises on all ranks, in one sentence, OSError where it fails,
        FloatingPointError where it was passed over."""
        if failed := self._settle().failed or self._failed:
            raise OSError(failed)
        if self._skipped:
            raise FloatingPointError(f"{self._skipped}, so the run ends without a last one; earlier ones were kept")

    def close(self) -> None:
        self._writer.close()

    # -- details

    def _why_skipped(self, step: int, not_finite: list[str]) -> str | None:
        """`not_finite`: the weights that each rank found. Raises FloatingPointError where no round will repair them."""
        if not not_finite:
            return None
        healed_by_others = self.config.method != "dp" and self.world.replicas > 1
        fatal = [name for name in not_finite if not healed_by_others or name.startswith(f"{GLOBAL}/")]
        why = f"{[*fatal, *not_finite][0]} is not finite after inner step {step}: no checkpoint was written"
        if fatal:
            raise FloatingPointError(f"{why}, earlier ones were kept")
        return why

    def _units(self, replicas: list[Replica]) -> dict[str, Any]:
        """This process's share of each unit, by name."""
        own, shared = zip(*map(trees_of, replicas), strict=True)
        return {GLOBAL: shared[0], **{unit_of(m): tree for m, tree in zip(self.world.mine, own, strict=False)}}

    def _parts(self, units: dict[str, Any]) -> tuple[dict[str, Any], dict[checkpoint.Key, Tensor]]:
        """What this process writes, by part, and the anchor as the part in which another process writes it."""
        place = self._island.rank
        if self._island.size > 1:
            units = checkpoint.own_part(units, place, self._island.gather_json)
        trees = {checkpoint.part_name(unit, place): tree for unit, tree in units.items()}
        if 0 in self.world.mine:
            return trees, {}
        part = checkpoint.part_name(GLOBAL, place)
        anchor = trees.pop(part).get("anchor", {})
        trees = {} if self.config.method == "dp" else trees
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

    def _settle(self, news: str | None = None) -> _Settled:
        """Waits for the save under way, on all ranks, which tell one another `news`. Two messages.

        The rank that commits waits for the others' parts, of which some may never come: first it hears of them.
        """
        own = _failure(self._writer.written if self.world.main else self._writer.settle)
        failures, told = zip(*self.world.gather_all([own, news]), strict=True)
        failed, base = self.share(self._conclude(list(failures)) if self.world.main else None)
        return _Settled(failed, base, list(told))

    def _conclude(self, failures: list[str | None]) -> tuple[str | None, int | None]:
        """On the main rank, once it knows how the others fared: why the save came to nothing, and the next one's
        base."""
        if any(failures):
            self._writer.give_up()
        failed = next(filter(None, [*failures, _failure(self._writer.settle)]), None)
        if failed and self._saving is not None:
            self._remains.append(self._saving)
        self._saving = None
        self._discard_remains()
        return failed, self._writer.next_base()

    def _discard_remains(self) -> None:
        """No rank is writing now, and the others wait for this one before they do. What a failing disk does not let go
        is tried again before the next save."""
        with contextlib.suppress(OSError):
            while self._remains:
                self.store.discard(self._remains[0])
                del self._remains[0]

    def share(self, value: Any) -> Any:
        """The main process's value on all."""
        return next(v for v, main in self.world.gather_all([value, self.world.main]) if main)


def _failure(work: Callable[[], object]) -> str | None:
    try:
        work()
    except (OSError, BadInput) as error:
        return str(error)
    return None
