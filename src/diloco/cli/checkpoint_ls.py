"""`diloco checkpoint ls PLACE`: a run's checkpoints, a line each."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from diloco.cli.checkpoint_place import open_place, refuse_step
from diloco.cli.options import Common, parse
from diloco.cli.show import print_json, progress, wide_console
from diloco.errors import BadInput

if TYPE_CHECKING:
    from diloco.checkpoint import Store


@dataclass(frozen=True, kw_only=True)
class LsOptions(Common):
    """The checkpoints of a run, oldest first: inner step, what it holds differences to, bytes stored and what part that
    is of the tensors' bytes, held-out loss in nats per token, age, and whether all files are there in their size.
    (`verify` reads them.)"""

    place: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PLACE")]
    """Run folder, folder of checkpoints, or fsspec URL."""


def run(arguments: list[str]) -> int:
    options = parse(LsOptions, arguments, "checkpoint ls")
    store, step = open_place(options.place)
    refuse_step(options.place, step, "ls")
    steps, rows, known = store.steps(), [], {}
    with progress(f"looking at {options.place}", quiet=options.json) as update:
        for done, step in enumerate(steps):
            update(f"looking at {store.name(step)}", done / len(steps))
            rows.append(row_of(store, step, known))
    total = sum(row["bytes"] or 0 for row in rows)
    if options.json:
        print_json({"place": str(store), "bytes": total, "checkpoints": rows})
        return 0
    from diloco.units import format_bytes

    wide_console().print(_table(rows))
    print(f"{len(rows)} checkpoint{'s' * (len(rows) != 1)}, {format_bytes(total)} in {store}")
    for row in rows:
        if row["problem"]:
            print(f"step {row['step']} cannot be used: {row['problem']}")
    return 0


def row_of(store: Store, step: int, known: dict[int, list[str]] | None = None) -> dict[str, Any]:
    """Keys as with --json; None where a damaged manifest does not tell. `known` as in `Store.problems`."""
    from diloco.checkpoint import LOSS

    row: dict[str, Any] = dict.fromkeys(("kind", "base", "bytes", "tensor_bytes", "ratio", "loss"))
    problems = store.problems(step, content=False, known={} if known is None else known)
    row |= {"step": step, "problem": next(iter(problems), None), "written": written(store, step)}
    try:
        manifest = store.manifest(step)
    except BadInput:
        return row
    base, raw_bytes = manifest.base and manifest.base.step, manifest.raw_bytes
    row |= {"kind": manifest.kind, "base": base, "bytes": manifest.stored_bytes, "tensor_bytes": raw_bytes}
    return row | {"ratio": manifest.stored_bytes / raw_bytes if raw_bytes else None, "loss": manifest.meta.get(LOSS)}


def written(store: Store, step: int) -> float | None:
    """When the checkpoint became one, in seconds since 1970; None where the place does not say."""
    from pathlib import Path

    from diloco.checkpoint.manifest import MANIFEST

    name = f"{store.name(step)}/{MANIFEST}"
    try:
        if "://" not in name:
            return Path(name).stat().st_mtime
        from fsspec.core import url_to_fs

        files, path = url_to_fs(name)
        return files.modified(path).timestamp()
    except (NotImplementedError, FileNotFoundError):  # a run that goes on may have removed it since
        return None


def _table(rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    from diloco.units import NONE, format_bytes, format_duration, format_loss

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("step", "kind", "bytes", "of tensors", "loss", "age", "whole"):
        table.add_column(name, justify="left" if name in ("kind", "whole") else "right", no_wrap=True)
    now = time.time()
    for row in rows:
        form = "full" if row["base"] is None else f"difference to {row['base']}"
        table.add_row(
            str(row["step"]),
            NONE if row["kind"] is None else f"{form}, {row['kind']}",
            format_bytes(row["bytes"]),
            NONE if row["ratio"] is None else f"{row['ratio']:.1%}",
            format_loss(row["loss"]),
            format_duration(None if row["written"] is None else max(now - row["written"], 0.0)),
            "damaged" if row["problem"] else "yes",
        )
    return table
