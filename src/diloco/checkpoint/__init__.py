"""Checkpoints: whole or not there, verified when read, no pickle. Knows tensors and files, not the training loop."""

from diloco.checkpoint.manifest import PartInfo, step_folder, step_of, steps, tmp_folder, verify
from diloco.checkpoint.pack import first_nonfinite, pack, unpack
from diloco.checkpoint.store import commit, drop_after, latest, latest_whole, load, save, write_part

__all__ = [
    "PartInfo",
    "commit",
    "drop_after",
    "first_nonfinite",
    "latest",
    "latest_whole",
    "load",
    "pack",
    "save",
    "step_folder",
    "step_of",
    "steps",
    "tmp_folder",
    "unpack",
    "verify",
    "write_part",
]
