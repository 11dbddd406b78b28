"""How a replica is spread over several devices: the options of `diloco train` that say which of them does what."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, get_args

from diloco.errors import BadInput
from diloco.train.parallel.mesh import MeshShape, parse_sizes

ScheduleName = Literal["1f1b", "gpipe"]


@dataclass(frozen=True)
class ParallelOptions:
    """Joined to `TrainConfig`, so these are flags of their own."""

    mesh: str = ""
    """Under torchrun, how its processes are laid out: replica=2,fsdp=2,tp=2 and so on, any of replica, pp, dp, fsdp,
    tp. What is left out is inferred (replica, else fsdp) or 1. Empty: each process is a replica."""
    activation_checkpointing: bool = False
    """Keep only each layer's input for the backward pass and compute the rest again: less memory, a third more work."""
    compile: bool = False
    """Compile each layer with torch.compile."""
    microbatches: int = 0
    """Parts that a pipeline's batch goes through in; 0 takes about two a stage."""
    pipeline_schedule: ScheduleName = "1f1b"
    """1f1b: backward as early as can be, for less memory; gpipe: all forward, then all backward."""
    cpu_offload: bool = False
    """With fsdp: keep parameters, gradients and optimizer state in host memory between their uses."""

    def check_parallel(self, replicas: int) -> None:
        """Raises BadInput naming the option that cannot work."""
        sizes = parse_sizes(self.mesh)
        if sizes.get("replica", replicas) != replicas:
            raise BadInput(f"mesh is {self.mesh!r}, but replicas is {replicas}: leave --replicas out")
        if self.pipeline_schedule not in get_args(ScheduleName):
            raise BadInput(
                f"pipeline_schedule is {self.pipeline_schedule!r}: give one of {', '.join(get_args(ScheduleName))}"
            )
        if self.microbatches < 0:
            raise BadInput(f"microbatches is {self.microbatches}: give 0 or more")

    def ignored_in_parallel(self) -> list[str]:
        """Options that were changed but have no effect, each as a sentence."""
        if parse_sizes(self.mesh).get("pp", 1) > 1:
            return []
        names = ("microbatches", "pipeline_schedule")
        return [f"{n} has no effect without pp in the mesh" for n in names if getattr(self, n) != _DEFAULTS[n]]

    def share_out(self, sequences: int, shape: MeshShape) -> int:
        """Microbatches of a step in which each replica has so many sequences.

        Raises BadInput where they cannot be shared out equally, with the nearest number that can.
        """
        share, left = divmod(sequences, shape.data)
        given = self.microbatches if shape.pp > 1 else 0
        if 0 < given < shape.pp:
            raise BadInput(
                f"microbatches is {given}, fewer than the {shape.pp} stages of the pipeline: give at least as many, or "
                "leave it out"
            )
        least = given or shape.pp
        unit = shape.data * least
        if left or share < least or (given and share % given):
            among = [f"{shape.data} data ranks"] * (shape.data > 1) + [f"{least} microbatches"] * (least > 1)
            have = f"{sequences} sequence{'s' * (sequences > 1)}"
            raise BadInput(
                f"batch_tokens gives each replica {have}, which {' of '.join(among)} cannot share: the nearest that "
                f"works is {max(round(sequences / unit), 1) * unit} sequences"
            )
        if given or shape.pp == 1:
            return given or 1
        return min((n for n in range(least, share + 1) if share % n == 0), key=lambda n: abs(n - 2 * shape.pp))


PARALLEL = tuple(f.name for f in dataclasses.fields(ParallelOptions))
"""What may change between two legs of a run: the numbers stay the same but for rounding."""
_DEFAULTS = {f.name: f.default for f in dataclasses.fields(ParallelOptions)}
