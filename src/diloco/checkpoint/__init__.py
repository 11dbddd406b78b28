"""Checkpoints: whole or not there, verified when read, no pickle. Knows tensors and files, not the training loop.

`save` and `load` serve one process; `Writer` and `Store` a run over many ranks, with differences, in the background.
"""

from diloco.checkpoint.coders import KINDS
from diloco.checkpoint.manifest import Manifest, PartInfo, part_name, step_of
from diloco.checkpoint.ownership import own_part
from diloco.checkpoint.pack import first_nonfinite
from diloco.checkpoint.parts import Key
from diloco.checkpoint.pruning import Plan, carry_out, plan
from diloco.checkpoint.retention import Policy
from diloco.checkpoint.saved import Saved, StoredTensor
from diloco.checkpoint.shards import Chunk
from diloco.checkpoint.simple import drop_after, latest_whole, load, read_tree, save, steps, verify
from diloco.checkpoint.store import LOSS, Store
from diloco.checkpoint.writer import FULL_EVERY, Writer, new_session

__all__ = [
    "FULL_EVERY",
    "KINDS",
    "LOSS",
    "Key",
    "Chunk",
    "Manifest",
    "PartInfo",
    "Plan",
    "Policy",
    "Saved",
    "Store",
    "StoredTensor",
    "Writer",
    "carry_out",
    "drop_after",
    "first_nonfinite",
    "latest_whole",
    "load",
    "new_session",
    "own_part",
    "part_name",
    "plan",
    "read_tree",
    "save",
    "step_of",
    "steps",
    "verify",
]
