"""Checkpoints: whole or not there, verified when read, no pickle. Knows tensors and files, not the training loop.

`save` and `load` serve one process; `Writer` and `Store` a run over many ranks, with differences, in the background.
"""

from diloco.checkpoint.coders import KINDS
from diloco.checkpoint.manifest import Manifest, PartInfo, part_name, step_of
from diloco.checkpoint.ownership import own_part
from diloco.checkpoint.pack import first_nonfinite, pack, unpack
from diloco.checkpoint.parts import Key
from diloco.checkpoint.pruning import Plan, carry_out, plan
from diloco.checkpoint.retention import Policy
from diloco.checkpoint.saved import Saved, StoredTensor
from diloco.checkpoint.shards import Chunk
from diloco.checkpoint.simple import drop_after, latest_whole, load, locate, read_tree, save, steps, verify
from diloco.checkpoint.store import LOSS, Store
from diloco.checkpoint.writer import FULL_EVERY, Writer, new_session
from diloco.shards import is_sharded

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
    "is_sharded",
    "latest_whole",
    "load",
    "locate",
    "new_session",
    "own_part",
    "pack",
    "part_name",
    "plan",
    "read_tree",
    "save",
    "step_of",
    "steps",
    "unpack",
    "verify",
]
