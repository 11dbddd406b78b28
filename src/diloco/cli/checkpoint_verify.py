"""`diloco checkpoint verify PLACE[@STEP]`: every byte against its checksum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from diloco.cli.checkpoint_place import open_place
from diloco.cli.options import Common, parse
from diloco.cli.show import print_json, progress
from diloco.errors import BadInput

if TYPE_CHECKING:
    from diloco.checkpoint import Manifest, Store


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(Common):
    """Reads every byte of a run's checkpoints, or of one and all that it rests on, and compares them with their
    checksums. Exit code 1 where something is damaged, with a sentence for each file."""

    place: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PLACE[@STEP]")]
    """Run folder, folder of checkpoints, one checkpoint's folder, or fsspec URL."""


def run(arguments: list[str]) -> int:
    options = parse(VerifyOptions, arguments, "checkpoint verify")
    store, step = open_place(options.place)
    wanted = store.steps() if step is None else [step]
    damaged, unusable, read_bytes = check(store, wanted, quiet=options.json)
    problems = [problem for found in damaged.values() for problem in found]
    whole = [step for step in wanted if step not in unusable]
    if options.json:
        answer = {"ok": not problems, "problems": problems, "steps": wanted, "whole": whole, "bytes_read": read_bytes}
        print_json({**answer, "place": str(store)})
        return 1 if problems else 0
    from diloco.units import format_bytes

    for problem in problems:
        print(problem)
    print(f"{len(whole)} of {len(wanted)} checkpoints in {store} are whole; {format_bytes(read_bytes)} read")
    if lost := sorted(unusable - damaged.keys()):
        print(f"undamaged, but of no use without what is damaged: step {', '.join(map(str, lost))}")
    if problems and whole:
        print(f"the newest that can be used is step {whole[-1]}")
    return 1 if problems else 0


def check(store: Store, wanted: list[int], quiet: bool) -> tuple[dict[int, list[str]], set[int], int]:
    """(sentences by damaged step, steps of `wanted` that cannot be used, bytes read). A link is read once."""
    damaged: dict[int, list[str]] = {}
    chains: dict[int, list[Manifest]] = {}
    for step in wanted:
        try:
            chains[step] = store.chain(step)
        except BadInput as error:
            damaged[step] = [str(error)]
    links = {link.step: link for chain in chains.values() for link in chain}
    total, read_bytes = sum(link.stored_bytes for link in links.values()), 0
    with progress("reading", quiet=quiet) as update:
        for step, link in sorted(links.items()):
            for part in link.parts:
                update(f"reading {store.name(step)}", read_bytes / total if total else 1.0)
                if problem := store.part_problem(link, part, content=True):
                    damaged.setdefault(step, []).append(problem)
                read_bytes += sum(link.parts[part].bytes.values())
    unusable = {step for step in wanted if step not in chains or any(link.step in damaged for link in chains[step])}
    return dict(sorted(damaged.items())), unusable, read_bytes
