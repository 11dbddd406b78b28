"""`diloco checkpoint show PLACE[@STEP]`: what is in one checkpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from diloco.cli.checkpoint_ls import row_of
from diloco.cli.checkpoint_place import open_place
from diloco.cli.options import Common, parse
from diloco.cli.show import print_json, wide_console
from diloco.errors import BadInput

if TYPE_CHECKING:
    from diloco.checkpoint import Manifest, Store

_GROUPED_BY = {"optimizer": -1, "outer": 1, "local": 1}
"""What a tensor is, beside its unit and the first word of its path, where that word says too little: which word of the
path does."""


@dataclass(frozen=True, kw_only=True)
class ShowOptions(Common):
    """What is in a checkpoint: parts, tensors by what they are (of sharded ones each chunk) with the bytes they take in
    memory and stored, and what it says of the run."""

    place: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PLACE[@STEP]")]
    """Run folder, folder of checkpoints, one checkpoint's folder, or fsspec URL; the newest where no step is given."""


def run(arguments: list[str]) -> int:
    options = parse(ShowOptions, arguments, "checkpoint show")
    store, step = open_place(options.place)
    step = store.steps()[-1] if step is None else step
    manifest = store.manifest(step)
    parts = {name: sum(part.bytes.values()) for name, part in manifest.parts.items()}
    answer = row_of(store, step) | {
        "checkpoint": store.name(step),
        "number": manifest.number,
        "chain": [link.step for link in store.chain(step)],
        "parts": parts,
        "tensors": groups_of(store, manifest),
        "meta": manifest.meta,
    }
    print_json(answer) if options.json else _say(answer)
    return 0


def groups_of(store: Store, manifest: Manifest) -> list[dict[str, Any]]:
    """Tensors that belong together, a row each; `bytes` are stored, `tensor_bytes` what they take in memory."""
    groups: dict[tuple, dict[str, Any]] = {}
    for name, part in sorted(manifest.parts.items()):
        for tensor, entry in _entries(store, manifest.step, name).items():
            what = _what(tensor)
            empty = {"unit": part.unit, "what": what, "tensors": 0, "elements": 0, "bytes": 0, "tensor_bytes": 0}
            group = groups.setdefault((part.unit, what, entry["dtype"]), empty | {"dtype": entry["dtype"], "how": {}})
            how, elements, raw_bytes, stored_bytes = _sizes(entry)
            for key, value in (("tensors", 1), ("elements", elements), ("bytes", stored_bytes)):
                group[key] += value
            group["tensor_bytes"] += raw_bytes
            group["how"][how] = group["how"].get(how, 0) + 1
    return list(groups.values())


def _entries(store: Store, step: int, part: str) -> dict[str, dict]:
    """How each tensor of a part is written. Raises BadInput where the file is missing or damaged."""
    from diloco.checkpoint.manifest import folder_name, tree_file

    path = f"{folder_name(step)}/{tree_file(part)}"
    try:
        return json.loads(store.storage.read(path))["tensors"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{store.storage.name_of(path)} cannot be read ({error}): verify the checkpoint") from error


def _what(tensor: str) -> str:
    words = tensor.split("/")
    further = _GROUPED_BY.get(words[0])
    return words[0] if further is None else f"{words[0]} {words[further]}"


def _sizes(entry: dict) -> tuple[str, int, int, int]:
    """(how it is written, elements, bytes in memory, bytes stored) of one tensor."""
    import torch

    from diloco.checkpoint.dtypes import dtype_of

    elements = torch.Size(entry["shape"]).numel()
    raw_bytes = elements * dtype_of(entry["dtype"]).itemsize
    if "same" in entry:
        return "equal to another", elements, raw_bytes, 0
    if "coder" not in entry:
        return "as it is", elements, raw_bytes, raw_bytes
    return entry["recipe"]["kind"], elements, raw_bytes, entry["recipe"]["bytes_after"]


def _say(answer: dict[str, Any]) -> None:
    from rich.table import Table

    from diloco.units import format_bytes, format_count, format_loss

    print(f"{answer['checkpoint']}: checkpoint {answer['number']} of its run, after inner step {answer['step']}")
    chain = answer["chain"][1:]
    print("it is full" if not chain else f"it holds differences, and rests on step {', '.join(map(str, chain))}")
    stored, raw = format_bytes(answer["bytes"]), format_bytes(answer["tensor_bytes"])
    print(f"{stored} stored ({answer['kind']}) for {raw} of tensors")
    if answer["loss"] is not None:
        print(f"held-out loss {format_loss(answer['loss'])} nats per token")
    if answer["problem"]:
        print(f"it cannot be used: {answer['problem']}")
    print("\nparts: " + ", ".join(f"{name} {format_bytes(bytes)}" for name, bytes in answer["parts"].items()) + "\n")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("unit", "what", "dtype", "tensors", "elements", "bytes", "stored", "of it", "written as"):
        table.add_column(name, justify="left" if name in ("unit", "what", "dtype", "written as") else "right")
    for row in answer["tensors"]:
        share = f"{row['bytes'] / row['tensor_bytes']:.1%}" if row["tensor_bytes"] else ""
        how = ", ".join(f"{n} {name}" for name, n in row["how"].items())
        table.add_row(
            row["unit"], row["what"], row["dtype"], str(row["tensors"]), format_count(row["elements"]),
            format_bytes(row["tensor_bytes"]), format_bytes(row["bytes"]), share, how,
        )  # fmt: skip
    wide_console().print(table)
    print("\nof the run: " + ", ".join(f"{key} {value}" for key, value in answer["meta"].items() if _short(value)))


def _short(value: Any) -> bool:
    return value is not None and not isinstance(value, dict | list)
