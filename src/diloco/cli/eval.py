"""`diloco eval RUN`: held-out loss of a checkpoint's weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import tyro

from diloco.cli.options import Common, parse
from diloco.cli.show import print_json, progress, warn
from diloco.errors import BadInput


@dataclass(frozen=True)
class EvalDataOptions:
    """What to measure on."""

    sources: tuple[str, ...] = ()
    """Text, JSONL or parquet files, folders, `stdlib` or `hf:NAME`, in place of the run's own; their last part is
    measured. The tokens stay the run's."""


@dataclass(frozen=True, kw_only=True)
class EvalOptions(Common):
    """Held-out loss of a run's last whole checkpoint, in nats per token and bits per byte."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, one of its checkpoints (RUN@STEP), or what `diloco checkpoint export --format safetensors` wrote."""
    sequences: int = 0
    """Held-out sequences; 0 takes as many as the run did, which gives the loss of its receipt."""
    weights: str = "global"
    """global (the anchor), or replica-0, replica-1, ... for one replica's own weights."""
    device: str = "auto"
    """auto takes CUDA where there is one, else the CPU."""
    data: EvalDataOptions = field(default_factory=EvalDataOptions)
    """What to measure on."""

    def __post_init__(self) -> None:
        if self.sequences < 0:
            raise BadInput(f"sequences is {self.sequences}: give 1 or more, or 0 for as many as the run took")


def run(arguments: list[str]) -> int:
    options = parse(EvalOptions, arguments, "eval")
    from diloco.train.evaluate import evaluate
    from diloco.train.trained import heldout_data, open_trained
    from diloco.train.world import pick_device, set_threads

    with progress(f"opening {options.run}", quiet=options.json) as update:
        trained = open_trained(options.run, options.weights, pick_device(options.device))
        # How many threads share a sum can change its last bits.
        set_threads(trained.config.threads)
        data = heldout_data(
            trained, options.data.sources, lambda source, fraction: update(f"tokenising {source}", fraction)
        )
        config, weights = trained.config, dict(trained.model.named_parameters())
        sequences = options.sequences or config.eval_sequences
        result = evaluate(
            trained.model, weights, data, sequences, config.precision, trained.device,
            progress=lambda fraction: update("measuring", fraction),
        )  # fmt: skip
    for note in trained.notes:
        warn(note)
    if not options.data.sources and data.fingerprint != trained.data_fingerprint:
        warn(f"{', '.join(data.config.sources)} has changed since training: some of this text may have been trained on")
    answer = {
        "run": trained.name,
        "step": trained.step,
        "weights": trained.weights,
        "sources": list(data.config.sources),
        "sequences": result.sequences,
        "tokens": result.sequences * data.config.seq_len,
        "loss": result.loss,
        "loss_se": result.loss_se,
        "bits_per_byte": result.bits_per_byte,
    }
    print_json(answer) if options.json else print(summary(answer))
    return 0


def summary(answer: dict) -> str:
    return (
        f"held-out loss {answer['loss']:.4f} nats per token, standard error {answer['loss_se']:.4f} "
        f"({answer['bits_per_byte']:.4f} bits per byte)\n"
        f"weights {answer['weights']} after inner step {answer['step']} of {answer['run']}\n"
        f"data {', '.join(answer['sources'])}: {answer['sequences']} held-out sequences, {answer['tokens']:,} tokens"
    )
