"""`diloco train`: a run from flags, a TOML file, or both (flags win)."""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
from dataclasses import dataclass

from diloco.cli.options import Common, parse
from diloco.cli.show import print_json, warn
from diloco.cli.toml import as_flags, read_toml
from diloco.errors import BadInput
from diloco.outer.report import Mismatch
from diloco.train.config import TrainConfig
from diloco.train.parallel.mesh import parse_mesh, parse_sizes
from diloco.train.world import world_size


@dataclass(frozen=True)
class TrainOptions(TrainConfig, Common):
    """Trains a model with DiLoCo, local SGD or data parallel, and leaves a run folder.

    By itself it simulates all replicas in one process. `torchrun --nproc-per-node 4 -m diloco train ...` runs one
    replica a process, or with `--mesh replica=2,fsdp=2` spreads each over several: the same flags, the same losses.
    """

    config: str = ""
    """TOML file with settings under these same names (`size = "1m"`, `[inner]`, `lr = 1e-3`); flags win over it."""

    def settings(self) -> TrainConfig:
        """What is left without the command line's own options."""
        return TrainConfig(**{f.name: getattr(self, f.name) for f in dataclasses.fields(TrainConfig)})


def run(arguments: list[str]) -> int:
    try:
        return _run(arguments)
    except BadInput:
        # All ranks refuse alike; one says so.
        if not _is_main():
            return 2
        raise
    except (FloatingPointError, OSError, Mismatch) as error:
        print(f"diloco train: {error}", file=sys.stderr)
        return 1


def _run(arguments: list[str]) -> int:
    options = read_options(arguments)
    from diloco.train.loop import train
    from diloco.train.run import run_path
    from diloco.watch.report import write_report

    config = options.settings()
    for sentence in config.ignored() if _is_main() else ():
        warn(sentence)
    receipt = train(config, quiet=options.json)
    if _is_main():
        report = write_report(run_path(config))
        print_json(receipt) if options.json else print(summary(receipt, str(report)))
    return 0 if receipt["ok"] else 1


def read_options(arguments: list[str]) -> TrainOptions:
    """From flags, the TOML file they name, and torchrun, whose processes make the number of replicas unless it is
    given."""
    file = _value_of("config", arguments, "a TOML file")
    words = [*(as_flags(read_toml(file), TrainConfig, file) if file else []), *arguments]
    processes = world_size()
    mesh = _value_of("mesh", words, "replica=2,fsdp=2 or the like")
    if processes is not None:
        words.insert(0, f"--replicas={parse_mesh(mesh, processes).replica}")
    elif replicas := parse_sizes(mesh).get("replica"):
        words.insert(0, f"--replicas={replicas}")
    return parse(TrainOptions, words, "train")


def summary(receipt: dict, report: str) -> str:
    lines = []
    if receipt["loss"] is not None:
        bits = f"{receipt['bits_per_byte']:.4f} bits per byte"
        lines.append(f"held-out loss {receipt['loss']:.4f} nats per token ({bits}), global weights")
    if not receipt["finished"]:
        place = f"{receipt['steps']} of {receipt['steps_planned']}"
        lines.append(f"stopped at inner step {place}; the same command with --resume goes on")
    if "rounds_planned" in receipt:
        counts = (f"{word} {receipt[f'rounds_{word}']}" for word in ("planned", "committed", "failed"))
        lines.append(f"rounds {', '.join(counts)}")
    sent, parallel = receipt["bytes_sent"], receipt["bytes_sent_data_parallel"]
    share = f", data parallel would have sent {parallel / 1e6:,.1f} MB" if receipt["method"] != "dp" else ""
    devices = len(receipt.get("bytes_sent_per_device", ()))
    each = f"replica ({devices} devices together)" if devices else "replica"
    lines.append(f"sent {sent / 1e6:,.1f} MB per {each}{share}")
    if "stall_s" in receipt:
        virtual = " of virtual time" if receipt["virtual_s"] is not None else ""
        lines.append(f"inner steps stood still for {receipt['stall_s']:,.3g} s{virtual}")
    if receipt["virtual_s"] is not None:
        lines.append(f"over a link of {receipt['link']} it would have taken {receipt['virtual_s']:,.4g} s")
    if not receipt["ok"]:
        lines.append("FAILED: not one round was committed, so the replicas never trained together")
    return "\n".join([*lines, f"report {report}"])


def _value_of(option: str, arguments: list[str], wanted: str) -> str:
    """The value of an option that is needed before the flags are parsed. Raises BadInput where it is missing."""
    value = ""
    for word, following in itertools.pairwise([*arguments, ""]):
        if word == f"--{option}":
            if not following or following.startswith("--"):
                raise BadInput(f"--{option} has no value: give {wanted}")
            value = following
        elif word.startswith(f"--{option}="):
            value = word.partition("=")[2]
    return value


def _is_main() -> bool:
    return os.environ.get("RANK", "0") == "0"
