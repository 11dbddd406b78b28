"""A trained model as a folder that other programs load: `transformers` without code of ours, or our own plain form."""

from __future__ import annotations

import copy
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from diloco.errors import BadInput
from diloco.train.data.tokenizer import Tokenizer
from diloco.train.fast_tokenizer import write_fast_tokenizer
from diloco.train.hf import HFModel
from diloco.train.persimmon import persimmon_config, persimmon_weights
from diloco.train.plain import WEIGHTS, plain_config
from diloco.watch.runfolder import CONFIG, TOKENIZER

FORMATS = ("transformers", "safetensors")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def export_model(
    model: nn.Module,
    folder: str | Path,
    *,
    tokenizer: Tokenizer | None,
    facts: dict[str, Any],
    format: str = "transformers",
    dtype: str = "fp32",
) -> list[Path]:
    """Write `model` to `folder`, which appears whole or not at all; returns its files.

    Args:
        model: one of our Transformers, or a Hugging Face model.
        tokenizer: goes into the folder too; None where it is not known.
        facts: where the weights come from, in plain JSON; kept in our own form's config.json.
        format: one of `FORMATS`.
        dtype: a key of `DTYPES`, for all weights.

    Raises:
        BadInput: the folder holds something or cannot be made, the weights do not fit `dtype`, or the model has no such
            form.
        OSError: what is to go into the folder cannot be written.
    """
    if "://" in str(folder):
        raise BadInput(f"to is {folder}, a URL: give a folder of this machine, and copy it there")
    folder = Path(folder)
    try:
        return _export(model, folder, tokenizer, facts, format, dtype)
    except (OSError, SafetensorError) as error:
        raise OSError(_unwritable(folder, error)) from error


def _export(
    model: nn.Module, folder: Path, tokenizer: Tokenizer | None, facts: dict[str, Any], format: str, dtype: str
) -> list[Path]:
    if format == "safetensors" and isinstance(model, HFModel):
        raise BadInput("format is safetensors but the model is a Hugging Face one: leave --format out")
    if folder.resolve() == Path.cwd():
        raise BadInput(f"to is {folder}, where you are: name a new folder")
    _refuse_overflow(model, dtype)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    _make(temporary, folder)
    try:
        if isinstance(model, HFModel):
            _write_hf(temporary, model, dtype)
        elif format == "transformers":
            config = persimmon_config(model, _torch_name(dtype), None if tokenizer is None else tokenizer.separator)
            _write(temporary, config, persimmon_weights(model), dtype)
        else:
            _write(temporary, plain_config(model, facts), model.state_dict(), dtype)
        if tokenizer is not None and format == "transformers":
            write_fast_tokenizer(temporary, tokenizer, model.seq_len)
        elif tokenizer is not None and tokenizer.json is not None:
            (temporary / TOKENIZER).write_text(tokenizer.json, encoding="utf-8")
        for file in temporary.glob("*.safetensors"):
            shutil.copymode(temporary / CONFIG, file)  # the library lets nobody but their owner read them
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return sorted(folder.iterdir())


def _make(temporary: Path, folder: Path) -> None:
    """Raises BadInput where the folder holds something, or where there can be none."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadInput(f"to is {folder}, which holds something already: name a new folder")
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
    except OSError as error:
        raise BadInput(_unwritable(folder, error)) from error


def _unwritable(folder: Path, error: Exception) -> str:
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())
    return f"{folder} cannot be written ({reason}): choose another place with --to"


def _refuse_overflow(model: nn.Module, dtype: str) -> None:
    largest = torch.finfo(DTYPES[dtype]).max
    for name, weight in model.named_parameters():
        if weight.detach().abs().max() > largest:
            raise BadInput(f"dtype is {dtype} but {name} goes beyond {largest:g}: give --dtype bf16 or fp32")


def _write(folder: Path, config: dict[str, Any], weights: dict[str, Tensor], dtype: str) -> None:
    weights = {name: weight.to("cpu", DTYPES[dtype]).contiguous() for name, weight in weights.items()}
    _write_json(folder / CONFIG, config)
    # `transformers` reads no file that does not say this.
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def _write_hf(folder: Path, model: HFModel, dtype: str) -> None:
    same = all(p.dtype == DTYPES[dtype] for p in model.parameters())
    hf = model.hf if same else copy.deepcopy(model.hf).to(DTYPES[dtype])
    hf.save_pretrained(folder)


def _torch_name(dtype: str) -> str:
    return str(DTYPES[dtype]).removeprefix("torch.")


def _write_json(path: Path, record: dict[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
