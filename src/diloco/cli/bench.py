"""`diloco bench device`: how many FLOP/s this device really does, for `diloco plan --measured`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from diloco.cli.options import Common, parse
from diloco.cli.show import print_json, progress
from diloco.errors import BadInput

_WHAT = "device"


@dataclass(frozen=True)
class BenchOptions(Common):
    """Times a matrix product and training steps on this device: `diloco bench device`."""

    size: str = "1m"
    """Model whose steps are timed, by size as in `diloco train`; take one near yours."""
    seq_len: int = 256
    """Tokens of one sequence."""
    sequences: int = 4
    """Sequences of one step."""
    seconds: float = 3.0
    """For the products, and again for the steps; the fastest of each counts."""
    dtype: str = ""
    """fp32 or bf16; bf16 on a GPU and fp32 elsewhere where left out."""
    device: str = ""
    """cpu or cuda:0; the GPU where there is one if left out."""
    threads: int = 0
    """CPU threads; torch's own number where 0."""
    out: str = ""
    """Write the JSON to this file, for `diloco plan --measured FILE`."""


def run(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in (_WHAT, "-h", "--help"):
        given = arguments[0] if arguments else "nothing"
        raise BadInput(f"bench was asked for {given}: write `diloco bench {_WHAT}`")
    options = parse(BenchOptions, arguments[1:] if arguments[0] == _WHAT else arguments, f"bench {_WHAT}")
    record = bench(options)
    print_json(record) if options.json else print(summary(record))
    return 0


def bench(options: BenchOptions) -> dict[str, Any]:
    """Raises BadInput for what cannot be timed."""
    import torch

    from diloco.cli.outputs import check_outputs
    from diloco.train.bench import bench_device

    check_outputs({"out": options.out})
    if options.threads < 0:
        raise BadInput(f"--threads is {options.threads}: give 0 for torch's own number, or more")
    if options.threads:
        torch.set_num_threads(options.threads)
    with progress("matrix product", quiet=options.json) as update:
        asked = {
            name: getattr(options, name) for name in ("size", "seq_len", "sequences", "seconds", "dtype", "device")
        }
        record = bench_device(**asked, tick=update).as_dict()
    if options.out:
        from diloco.watch import atomic_write_text

        try:
            atomic_write_text(options.out, json.dumps(record, indent=2) + "\n")
        except OSError as error:
            raise BadInput(f"--out {options.out} cannot be written ({error.strerror}): give another") from error
    return record


def summary(record: dict[str, Any]) -> str:
    from diloco.units import format_count, format_duration, format_flop_per_s, format_share

    share = format_share(record["flop_per_s"] / record["matmul_flop_per_s"])
    return (
        f"{record['device']}, {record['dtype']}, {record['threads']} thread{'s' * (record['threads'] > 1)}\n"
        f"training steps of {record['size']} with {format_count(record['batch_tokens'])} tokens: "
        f"{format_flop_per_s(record['flop_per_s'])}, {format_count(record['tokens_per_s'])} tokens/s, "
        f"{format_duration(record['step_s'])} a step\n"
        f"matrix products: {format_flop_per_s(record['matmul_flop_per_s'])}, of which steps reach {share}"
    )
