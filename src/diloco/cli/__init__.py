"""The command line: one small file a verb, imported only when its verb is called."""

from __future__ import annotations

import importlib
import os
import sys

VERBS = {
    "train": "train a model with DiLoCo, data parallel or local SGD",
    "sample": "write text with a trained model",
    "eval": "held-out loss of a trained model",
    "compare": "several runs side by side: table and picture, seeds and spread stated",
    "fit": "a scaling law from a table of runs, with intervals and a hold-out",
    "predict": "loss and hyperparameters of a run that nobody has made",
    "advise": "the same question to the article, the paper and your own law",
    "plan": "time, bandwidth, idle hardware, cost and loss of a run on a cluster, before it is paid for",
    "next-runs": "which runs narrow a law most per FLOP",
    "checkpoint": "what a run has saved: list, show, verify, prune, export",
    "bench": "how many FLOP/s this device really does, for plan",
    "selftest": "prove the promises on your own model before you pay for training",
}

USAGE = "usage: diloco VERB [options]\n\n" + "\n".join(f"  {verb:<10} {text}" for verb, text in VERBS.items())
USAGE += """

`diloco VERB --help` lists a verb's options with their units.
Exit code 0: done; 1: the work failed; 2: bad input."""


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0
    verb, rest = arguments[0], arguments[1:]
    if verb == "--version":
        from diloco import __version__

        print(__version__)
        return 0
    if verb not in VERBS:
        from diloco.cli.options import did_you_mean

        return _refuse(f"unknown verb {verb!r}: {did_you_mean(verb, VERBS, 'there are ' + ', '.join(VERBS))}")
    from diloco.errors import BadInput

    try:
        return importlib.import_module(f"diloco.cli.{verb.replace('-', '_')}").run(rest)
    except BadInput as error:
        return _refuse(str(error))
    except SystemExit as stop:
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Who read stdout has seen enough (`diloco train --help | head`); Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _refuse(sentence: str) -> int:
    # One line, whatever a library's own message inside it looks like.
    print(f"diloco: {' '.join(sentence.split())}", file=sys.stderr)
    return 2
