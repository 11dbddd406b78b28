"""Settings of what is saved, where, and what stays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from diloco.checkpoint import FULL_EVERY, KINDS, Policy, Store
from diloco.errors import BadInput

CheckpointKind = Literal["lossless", "lossy", "plain"]


@dataclass(frozen=True)
class CheckpointOptions:
    checkpoint_every: int = 10
    """Rounds of sync_every steps between two checkpoints; 0 keeps only the last one."""
    checkpoint_to: str = ""
    """Where checkpoints go: a folder or an fsspec URL, as in s3://bucket/run. Empty: the run folder."""
    checkpoint_kind: CheckpointKind = "lossless"
    """lossless: compressed, bit for bit; lossy: differences in int8; plain: as safetensors files hold them."""
    full_every: int = FULL_EVERY
    """Every so many-th checkpoint is full, those between hold the difference to the one before; 1: all are full."""
    checkpoint_background: bool = True
    """Write checkpoints while training goes on, from a copy in memory; False: training waits."""
    keep: int = 3
    """Newest checkpoints to keep, with the earlier ones they hold differences to; 0 keeps all."""
    keep_every: int = 0
    """Keep also every so many-th checkpoint of the run; 0 for none."""
    keep_best: int = 0
    """Keep also so many with the lowest held-out loss, which is then measured at each checkpoint; 0 for none."""

    def check_checkpoints(self) -> None:
        """Raises BadInput naming the option that cannot work."""
        least = {"checkpoint_every": 0, "full_every": 1, "keep": 0, "keep_every": 0, "keep_best": 0}
        for name, lowest in least.items():
            if getattr(self, name) < lowest:
                raise BadInput(f"{name} is {getattr(self, name)}: give {lowest} or more")
        if self.checkpoint_kind not in KINDS:
            raise BadInput(f"checkpoint_kind is {self.checkpoint_kind!r}: give {', '.join(KINDS)}")

    def build_store(self, folder: Path) -> Store:
        """`folder`: the run's own for checkpoints. Raises BadInput where checkpoint_to cannot be opened."""
        return Store(self.checkpoint_to or folder)

    def build_policy(self) -> Policy:
        return Policy(self.keep, self.keep_every, self.keep_best)

    def ignored_by_checkpoints(self) -> list[str]:
        """Options that were changed but have no effect, each as a sentence."""
        found = []
        if self.checkpoint_kind == "plain" and self.full_every != FULL_EVERY:
            found.append("full_every has no effect with checkpoint_kind plain")
        if self.keep == 0:
            changed = [name for name in ("keep_every", "keep_best") if getattr(self, name)]
            found += [f"{name} has no effect with keep 0, which keeps all" for name in changed]
        return found
