"""`diloco checkpoint export PLACE[@STEP] --to FOLDER`: a model that other programs load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from diloco.cli.options import Common, parse
from diloco.cli.show import print_json, progress, warn
from diloco.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Common):
    """Writes the model of a checkpoint to a new folder: for `transformers`, which loads it without any code of ours
    (`AutoModelForCausalLM.from_pretrained(FOLDER)`, and `AutoTokenizer` the tokenizer), or in our plain form, which
    `diloco eval`, `diloco sample` and `diloco.train.plain.load_plain` read."""

    place: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PLACE[@STEP]")]
    """Run folder, folder of checkpoints, one checkpoint's folder, or fsspec URL; the newest whole one where no step is
    given."""
    to: str = ""
    """Folder to write, which must not hold anything yet."""
    weights: str = "global"
    """global (the anchor), or replica-0, replica-1, ... for one replica's own weights."""
    format: Literal["transformers", "safetensors"] = "transformers"
    """transformers, or safetensors: one file with our own names, and config.json."""
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """What the weights are rounded to: 4, 2 or 2 bytes a parameter."""

    def __post_init__(self) -> None:
        if not self.to:
            raise BadInput("to is missing: give the folder to write, as in --to my-model")


def run(arguments: list[str]) -> int:
    options = parse(ExportOptions, arguments, "checkpoint export")
    from diloco.train.export import export_model
    from diloco.train.trained import export_facts, open_trained

    with progress(f"opening {options.place}", quiet=options.json) as update:
        trained = open_trained(options.place, options.weights)
        update(f"writing {options.to}", 0.5)
        files = export_model(
            trained.model, options.to, tokenizer=trained.tokenizer, facts=export_facts(trained),
            format=options.format, dtype=options.dtype,
        )  # fmt: skip
    for note in trained.notes:
        warn(note)
    size_bytes = sum(file.stat().st_size for file in files)
    if options.json:
        facts = {"run": trained.name, "step": trained.step, "weights": trained.weights, "bytes": size_bytes}
        print_json({**facts, "to": options.to, "format": options.format, "dtype": options.dtype})
        return 0
    from diloco.units import format_bytes

    print(f"weights {trained.weights} after inner step {trained.step} of {trained.name}: {format_bytes(size_bytes)} as")
    print("\n".join(f"  {file}" for file in files))
    return 0
