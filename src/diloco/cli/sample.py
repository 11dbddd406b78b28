"""`diloco sample RUN`: text from a trained model's global weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from diloco.cli.options import Common, parse
from diloco.cli.show import print_json, progress, warn
from diloco.errors import BadInput

if TYPE_CHECKING:
    from diloco.train.trained import Trained

CHUNK_TOKENS = 16
"""Tokens between two looks at the progress bar."""


@dataclass(frozen=True, kw_only=True)
class SampleOptions(Common):
    """Writes text with the global weights of a run's last whole checkpoint."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, one of its checkpoints (RUN@STEP), or what `diloco checkpoint export --format safetensors` wrote."""
    prompt: str = ""
    """Text to go on from; empty starts a new document."""
    tokens: int = 200
    """Tokens to write."""
    temperature: float = 1.0
    """Logits are divided by it; 0 always takes the likeliest token."""
    top_k: int = 0
    """Draw among the k likeliest tokens only; 0 among all."""
    seed: int = 0
    """Seed of the draw: the same seed writes the same text."""
    device: str = "auto"
    """auto takes CUDA where there is one, else the CPU."""

    def __post_init__(self) -> None:
        for name, least in (("tokens", 1), ("top_k", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise BadInput(f"{name} is {getattr(self, name)}: give {least} or more")
        if not 0 <= self.temperature < math.inf:
            raise BadInput(f"temperature is {self.temperature}: give a finite number of 0 or more")


def run(arguments: list[str]) -> int:
    options = parse(SampleOptions, arguments, "sample")
    from diloco.train.trained import open_trained
    from diloco.train.world import pick_device

    with progress(f"opening {options.run}", quiet=options.json) as update:
        trained = open_trained(options.run, device=pick_device(options.device))
        text = _write(trained, options, update)
    for note in trained.notes:
        warn(note)
    if options.json:
        facts = {"run": trained.name, "step": trained.step, "weights": trained.weights, "prompt": options.prompt}
        print_json({**facts, "text": text, "tokens": options.tokens, "seed": options.seed})
    else:
        print(options.prompt + text)
    return 0


def _write(trained: Trained, options: SampleOptions, update: Callable[[str, float], None]) -> str:
    import torch

    from diloco.train.sample import generate

    prompt_ids = trained.tokenizer.encode(options.prompt) or [trained.tokenizer.separator]
    generator = torch.Generator(trained.device).manual_seed(options.seed)
    tokens_1T = torch.tensor([prompt_ids], device=trained.device)
    for done in range(0, options.tokens, CHUNK_TOKENS):
        update("writing", done / options.tokens)
        length = min(CHUNK_TOKENS, options.tokens - done)
        tokens_1T = generate(trained.model, tokens_1T, length, options.temperature, options.top_k or None, generator)
    return trained.tokenizer.decode(tokens_1T[0, len(prompt_ids) :].tolist())
