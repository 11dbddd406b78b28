"""A trained model out of a run, one of its checkpoints, or what was exported of it: how config, tokenizer and weights
belong together, in one place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from diloco.checkpoint import Saved, Store, read_tree
from diloco.errors import BadInput
from diloco.outer.tensors import clean_name
from diloco.train.config import TrainConfig, from_dict, to_dict
from diloco.train.data import Data, open_data
from diloco.train.data.cache import Progress
from diloco.train.data.tokenizer import ByteTokenizer, JsonTokenizer, Tokenizer
from diloco.train.locate import Located, locate_checkpoint
from diloco.train.model_source import model_for
from diloco.train.plain import is_plain, load_plain
from diloco.train.state import GLOBAL, like, unit_of
from diloco.watch.runfolder import CONFIG, TOKENIZER, read_json

_REPLICA = re.compile(r"replica-\d+")


@dataclass(frozen=True)
class Trained:
    """A model in evaluation mode with the weights of a checkpoint."""

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
    """The newest whole checkpoint of a run, or whatever else `locate_checkpoint` understands, or an export in our form.

    Raises BadInput where there is none, it has no such weights, or the tokenizer is not what it was trained with.
    """
    if weights != GLOBAL and not _REPLICA.fullmatch(weights):
        raise BadInput(f"weights is {weights!r}: give global, or replica-0 up to the run's last replica")
    if is_plain(path):
        return _exported(Path(path), weights, device)
    located = locate_checkpoint(str(path))
    record = {} if located.run is None else read_json(located.run / CONFIG)
    saved, skipped = _newest(located) if located.step is None else (_named(located), [])
    source = saved.name if located.run is None else str(located.run / CONFIG)
    config = _config_of(saved.meta if located.run is None else record, source)
    tokenizer = _tokenizer_of(config, located.run, record)
    model = model_for(config, tokenizer, device)
    _load_weights(model, saved, weights, config.method)
    return Trained(
        name=(located.run or Path(located.store)).resolve().name,
        config=config,
        step=saved.step,
        weights=weights,
        model=model.eval(),
        tokenizer=tokenizer,
        data_fingerprint=record.get("data", ""),
        device=torch.device(device),
        notes=[f"skipped a damaged checkpoint: {reason}" for reason in skipped],
    )


def export_facts(trained: Trained) -> dict[str, Any]:
    """What an export in our form says of where it comes from, and `open_trained` reads back."""
    return {
        "run": trained.name,
        "step": trained.step,
        "weights": trained.weights,
        "config": to_dict(trained.config),
        "tokenizer": trained.tokenizer.fingerprint,
        "data": trained.data_fingerprint,
    }


def _exported(folder: Path, weights: str, device: torch.device | str) -> Trained:
    record = read_json(folder / CONFIG)
    if missing := [key for key in ("run", "step", "weights") if key not in record]:
        raise BadInput(f"{folder / CONFIG} has no key {missing[0]!r}: export the run again")
    if weights not in (GLOBAL, record["weights"]):
        raise BadInput(f"weights is {weights} but {folder} was exported with {record['weights']}: leave it out")
    config = _config_of(record, str(folder / CONFIG))
    return Trained(
        name=record["run"],
        config=config,
        step=record["step"],
        weights=record["weights"],
        model=load_plain(folder, device),
        tokenizer=_tokenizer_of(config, folder, record),
        data_fingerprint=record.get("data", ""),
        device=torch.device(device),
        notes=[],
    )


def _newest(located: Located) -> tuple[Saved, list[str]]:
    store = Store(located.store)
    step, skipped = store.latest_whole()
    if step is not None:
        return store.open(step, verify=False), skipped
    if located.run is None and not skipped:
        raise BadInput(
            f"{located.store} is not a run folder (no {CONFIG}) and holds no checkpoints: name one that does"
        )
    reason = f" ({'; '.join(store.causes())})" if skipped else ""
    raise BadInput(f"{located.store} holds no whole checkpoint{reason}: train the run again, or name another")


def _named(located: Located) -> Saved:
    store = Store(located.store)
    if not store.exists(located.step):
        steps = ", ".join(map(str, store.steps())) or "none"
        raise BadInput(f"{located.store} has no checkpoint of step {located.step}: there are {steps}")
    return store.open(located.step)


def heldout_data(trained: Trained, sources: Sequence[str] = (), progress: Progress | None = None) -> Data:
    """The run's own data or, in the run's tokens, other `sources`. Raises BadInput as `open_data`."""
    options = trained.config.data
    return open_data(
        replace(options, sources=tuple(sources) or options.sources), progress=progress, tokenizer=trained.tokenizer
    )


def _config_of(record: dict, source: str) -> TrainConfig:
    try:
        return from_dict(record["config"])
    except (KeyError, BadInput) as error:
        reason = error if isinstance(error, BadInput) else "it has no key 'config'"
        raise BadInput(f"{source} is not a training run's of this version ({reason})") from error


def _tokenizer_of(config: TrainConfig, folder: Path | None, record: dict) -> Tokenizer:
    """`folder`: the run's, or that of what was exported. None: not on this machine, where bytes alone do."""
    if config.data.tokenizer == "bytes":
        tokenizer: Tokenizer = ByteTokenizer()
    elif folder is None:
        raise BadInput(
            f"tokenizer {config.data.tokenizer} is in the run folder, not with the checkpoints: name the run folder"
        )
    else:
        tokenizer = JsonTokenizer(folder / TOKENIZER)
    if folder is not None and tokenizer.fingerprint != record.get("tokenizer"):
        raise BadInput(
            f"tokenizer {config.data.tokenizer} is no longer what {folder} was trained with: bring back the "
            f"{TOKENIZER} that belongs to it"
        )
    return tokenizer


def _load_weights(model: nn.Module, saved: Saved, weights: str, method: str) -> None:
    state = saved.tree(unit_of(0) if weights == GLOBAL else weights)["model"]
    model.load_state_dict(read_tree(state, like(model)))
    if weights == GLOBAL and method != "dp":
        # After the model's own state, where a tied tensor has further names, frozen weights and buffers.
        anchor = read_tree(saved.tree(GLOBAL)["anchor"], like(model))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if clean_name(name) in anchor:
                    parameter.copy_(anchor[clean_name(name)])
