"""A trained model out of a run folder: how config, tokenizer and checkpoint belong together, in one place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from diloco import checkpoint
from diloco.errors import BadInput
from diloco.outer.tensors import clean_name
from diloco.train.config import TrainConfig, from_dict
from diloco.train.data import Data, open_data
from diloco.train.data.cache import Progress
from diloco.train.data.tokenizer import ByteTokenizer, JsonTokenizer, Tokenizer
from diloco.train.model_source import model_for
from diloco.watch.runfolder import CONFIG, TOKENIZER, RunFolder

GLOBAL = "global"
_REPLICA = re.compile(r"replica-\d+")


@dataclass(frozen=True)
class Trained:
    """A model in evaluation mode with the weights of a run's last whole checkpoint."""

    name: str
    config: TrainConfig
    step: int
    """Inner steps that the weights have behind them."""
    weights: str
    """`global` (the anchor; with dp the one model there is), or `replica-N`."""
    model: nn.Module
    tokenizer: Tokenizer
    data_fingerprint: str
    """Of the data it was trained on."""
    device: torch.device
    notes: list[str]
    """What the user should know: checkpoints that were skipped as damaged, a sentence each."""


def open_trained(path: str | Path, weights: str = GLOBAL, device: torch.device | str = "cpu") -> Trained:
    """Raises BadInput where `path` is no run folder, holds no whole checkpoint, has no such weights, or its tokenizer
    is no longer what it was trained with."""
    if weights != GLOBAL and not _REPLICA.fullmatch(weights):
        raise BadInput(f"weights is {weights!r}: give global, or replica-0 up to the run's last replica")
    folder = RunFolder(path)
    record = folder.config
    config = _config_of(folder, record)
    found, skipped = checkpoint.latest_whole(folder.checkpoints)
    if found is None:
        reason = f" ({'; '.join(skipped)})" if skipped else ""
        raise BadInput(f"{folder.checkpoints} holds no whole checkpoint{reason}: train the run again, or name another")
    tokenizer = _tokenizer_of(config, folder, record)
    model = model_for(config, tokenizer, device)
    _load_weights(model, found, weights, config.method)
    return Trained(
        name=folder.name,
        config=config,
        step=checkpoint.step_of(found),
        weights=weights,
        model=model.eval(),
        tokenizer=tokenizer,
        data_fingerprint=record.get("data", ""),
        device=torch.device(device),
        notes=[f"skipped a damaged checkpoint: {reason}" for reason in skipped],
    )


def heldout_data(trained: Trained, sources: Sequence[str] = (), progress: Progress | None = None) -> Data:
    """The run's own data or, in the run's tokens, other `sources`. Raises BadInput as `open_data`."""
    options = trained.config.data
    return open_data(
        replace(options, sources=tuple(sources) or options.sources), progress=progress, tokenizer=trained.tokenizer
    )


def _config_of(folder: RunFolder, record: dict) -> TrainConfig:
    try:
        return from_dict(record["config"])
    except (KeyError, BadInput) as error:
        reason = error if isinstance(error, BadInput) else "it has no key 'config'"
        raise BadInput(f"{folder.path / CONFIG} is not a training run's of this version ({reason})") from error


def _tokenizer_of(config: TrainConfig, folder: RunFolder, record: dict) -> Tokenizer:
    file = folder.path / TOKENIZER
    tokenizer = ByteTokenizer() if config.data.tokenizer == "bytes" else JsonTokenizer(file)
    if tokenizer.fingerprint != record.get("tokenizer"):
        raise BadInput(
            f"tokenizer {config.data.tokenizer} is no longer what {folder.path} was trained with: bring back the "
            f"{TOKENIZER} that belongs to it"
        )
    return tokenizer


def _load_weights(model: nn.Module, path: Path, weights: str, method: str) -> None:
    local = "replica-0" if weights == GLOBAL else weights
    names = [local, GLOBAL] if weights == GLOBAL and method != "dp" else [local]
    # Verified by latest_whole a moment ago.
    trees, _ = checkpoint.load(path, names, verify=False)
    model.load_state_dict(trees[local]["model"])
    if GLOBAL in trees:
        anchor = trees[GLOBAL]["anchor"]
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if clean_name(name) in anchor:
                    parameter.copy_(anchor[clean_name(name)])
