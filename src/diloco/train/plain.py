"""Our own plain form of a trained model: model.safetensors with the model's own names, and config.json that says its
shape and where it comes from. `diloco eval` and `diloco sample` take such a folder for a run's, and in Python:

    from diloco.train.plain import load_plain
    model = load_plain("folder")          # logits_BTV = model(tokens_BT)
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from diloco.errors import BadInput
from diloco.train.model import Transformer
from diloco.train.sizes import Size
from diloco.watch.runfolder import CONFIG, read_json

WEIGHTS = "model.safetensors"
FORMAT, VERSION = "diloco-model", 1


def plain_config(model: Transformer, facts: dict[str, Any]) -> dict[str, Any]:
    """config.json: the shape, and the `facts` as they are."""
    shape = {"vocab_size": model.vocab_size, "seq_len": model.seq_len, "tied": model.tied}
    return {"format": FORMAT, "version": VERSION, "model": {"size": asdict(model.size), **shape}, **facts}


def is_plain(folder: str | Path) -> bool:
    """Whether `folder` says of itself that it is an exported model in this form."""
    file = Path(folder) / CONFIG
    return file.is_file() and read_json(file).get("format") == FORMAT


def load_plain(folder: str | Path, device: torch.device | str = "cpu") -> Transformer:
    """The model in evaluation mode, in fp32 whatever the file holds.

    Raises:
        BadInput: the folder is not an export in this form, or its files do not belong together.
    """
    folder = Path(folder)
    if not is_plain(folder):
        raise BadInput(
            f"{folder} is no exported model of ours: name a folder that `diloco checkpoint export` made with "
            "--format safetensors"
        )
    record = read_json(folder / CONFIG)
    if record.get("version") != VERSION:
        raise BadInput(
            f"{folder / CONFIG} has format version {record.get('version')!r}, this version reads {VERSION}: use the "
            "version that wrote it"
        )
    try:
        shape = dict(record["model"])
        model = Transformer(Size(**shape.pop("size")), **shape)
        model.load_state_dict(load_file(folder / WEIGHTS))
    except (KeyError, TypeError, RuntimeError, SafetensorError, OSError) as error:
        raise BadInput(f"{folder} is damaged ({' '.join(str(error).split())}): export the run again") from error
    return model.to(device).eval()
