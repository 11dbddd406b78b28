"""`diloco checkpoint VERB`: what a run has saved, whether it is whole, and what to keep or take out of it."""

from __future__ import annotations

import importlib
import sys

from diloco.cli.options import did_you_mean
from diloco.errors import BadInput

VERBS = {
    "ls": "the checkpoints of a run, a line each",
    "show": "what is in one: parts, tensors by group, what it says of the run",
    "verify": "read every byte and compare it with its checksum",
    "prune": "remove all but the last, every k-th and the best ones",
    "export": "a model that transformers loads, or plain safetensors",
}

USAGE = "usage: diloco checkpoint VERB PLACE [options]\n\n"
USAGE += "\n".join(f"  {verb:<7} {text}" for verb, text in VERBS.items())
USAGE += """

PLACE is a run folder, a folder of checkpoints, one checkpoint's folder or an fsspec URL (s3://bucket/run), with @STEP
after it to name one checkpoint by its inner step: runs/first@400. Without a step the newest whole one is meant.

`diloco checkpoint VERB --help` lists a verb's options with their units.
Exit code 0: done; 1: the work failed, or verify found damage; 2: bad input."""


def run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0
    verb, *rest = arguments
    if verb not in VERBS:
        hint = did_you_mean(verb, VERBS, "there are " + ", ".join(VERBS))
        raise BadInput(f"unknown verb {verb!r} of diloco checkpoint: {hint}")
    try:
        return importlib.import_module(f"diloco.cli.checkpoint_{verb}").run(rest)
    except BrokenPipeError:
        raise
    except OSError as error:
        print(f"diloco checkpoint {verb}: {error}", file=sys.stderr)
        return 1
