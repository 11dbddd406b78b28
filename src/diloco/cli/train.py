"""`diloco train`: a run from flags, a TOML file, or both (flags win)."""

from __future__ import annotations

import dataclasses
import json
import sys

from diloco.cli.options import parse, read_toml, take_flag
from diloco.errors import BadInput


def run(arguments: list[str]) -> int:
    from diloco.train.config import TrainConfig, from_dict
    from diloco.train.loop import train
    from diloco.train.run import run_path
    from diloco.train.world import world_size
    from diloco.watch.report import write_report

    file, arguments = take_flag(arguments, "--config")
    as_json = "--json" in arguments
    arguments = [a for a in arguments if a != "--json"]
    base = TrainConfig() if world_size() is None else _with_replicas(TrainConfig(), world_size())
    base = from_dict(read_toml(file), base) if file else base
    config = parse(TrainConfig, arguments, "train", default=base)
    main = _is_main()
    for sentence in config.ignored() if main else ():
        print(f"warning: {sentence}", file=sys.stderr)
    try:
        receipt = train(config, quiet=as_json)
    except BadInput:
        if main:
            raise
        return 2
    except (FloatingPointError, ConnectionError) as error:
        print(f"diloco train: {error}", file=sys.stderr)
        return 1
    if not main:
        return 0 if receipt["ok"] else 1
    report = write_report(run_path(config))
    print(json.dumps(receipt) if as_json else summary(receipt, str(report)))
    return 0 if receipt["ok"] else 1


def summary(receipt: dict, report: str) -> str:
    lines = []
    if receipt["loss"] is not None:
        lines.append(
            f"held-out loss {receipt['loss']:.4f} nats per token ({receipt['bits_per_byte']:.4f} bits per byte), global weights"
        )
    if not receipt["finished"]:
        lines.append(
            f"stopped at inner step {receipt['steps']} of {receipt['steps_planned']}; the same command with --resume goes on"
        )
    if "rounds_planned" in receipt:
        lines.append(
            f"rounds planned {receipt['rounds_planned']}, committed {receipt['rounds_committed']}, failed {receipt['rounds_failed']}"
        )
    sent, parallel = receipt["bytes_sent"], receipt["bytes_sent_data_parallel"]
    share = f", data parallel would have sent {parallel / 1e6:,.1f} MB" if receipt["method"] != "dp" else ""
    lines.append(f"sent {sent / 1e6:,.1f} MB per replica{share}")
    if not receipt["ok"]:
        lines.append("FAILED: not one round was committed, so the replicas never trained together")
    return "\n".join([*lines, f"report {report}"])


def _with_replicas(config: object, replicas: int | None) -> object:
    """Under torchrun the number of replicas is the number of processes unless it is given."""
    try:
        return dataclasses.replace(config, replicas=replicas)
    except BadInput:
        # The default batch may not divide among them; the user's own batch is checked when the flags are read.
        unit = replicas * config.data.seq_len
        return dataclasses.replace(config, replicas=replicas, batch_tokens=-(-config.batch_tokens // unit) * unit)


def _is_main() -> bool:
    import os

    return os.environ.get("RANK", "0") == "0"
