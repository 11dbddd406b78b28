"""What the checkpoints of real runs take as chains of differences, beside whole ones and beside zstd alone.

    python benchmarks/checkpoint_size.py RUN [RUN ...] [--every 1] [--full-every 10] [--links 8] [--out FILE.json]

RUN is a run folder that kept all its checkpoints (`diloco train --keep 0`). `--every 5` takes every fifth, as if they
had been saved so far apart. All figures are percent of the tensors' bytes.

The table, by kind of tensor, is of some of the links: zstd alone, the tensor coded by itself (a full link), the
difference, its bounds (checkpoint_bound.py), a chain of them, and the lossy difference; then all together, with each
tensor stored by itself, and with tensors that equal another of the same checkpoint stored once. Below it stands what
the store really has on disk for all the checkpoints, JSON included; every lossless link is loaded and compared bit for
bit. One thread; speeds are by CPU time, since others may be at work.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zstandard
from checkpoint_bound import bounds_bits
from torch import Tensor

from diloco import checkpoint
from diloco.checkpoint import delta, delta_lossy
from diloco.checkpoint.delta_words import words_of
from diloco.checkpoint.pack import split

COLUMNS = {
    "zstd": "zstd alone",
    "self": "full link",
    "difference": "difference",
    "entropy": "entropy",
    "floor": "floor",
    "chain": "chain",
    "lossy": "lossy",
}
KINDS = ("anchor", "outer momentum", "weights at a sync", "weights in mid-window", "exp_avg", "exp_avg_sq", "rest")
LEAST_BOUND_NUMEL = 4096
ZSTD_LEVEL = 3


class Tally:
    """Bytes before and after, by kind of tensor, way of coding, and whether the same checkpoint has them already."""

    def __init__(self) -> None:
        self.bytes: dict[tuple[str, str, bool], list[float]] = defaultdict(lambda: [0.0, 0.0])
        self.speed: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def count(self, kind: str, way: str, again: bool, before: float, after: float) -> None:
        cell = self.bytes[kind, way, again]
        cell[0] += before
        cell[1] += after

    def timed(self, what: str, nbytes: int, work: Callable, *arguments: object) -> object:
        start = time.process_time()
        result = work(*arguments)
        self.speed[what][0] += nbytes
        self.speed[what][1] += time.process_time() - start
        return result

    def kinds(self) -> list[str]:
        return sorted({kind for kind, _, _ in self.bytes}, key=KINDS.index)

    def share(self, way: str, kind: str | None = None, once: bool = False) -> float | None:
        """After / before of one kind or of all; `once`: what is there already costs nothing."""
        cells = [
            (before, 0.0 if once and again else after)
            for (its_kind, its_way, again), (before, after) in self.bytes.items()
            if its_way == way and kind in (None, its_kind)
        ]
        return sum(after for _, after in cells) / sum(before for before, _ in cells) if cells else None

    def mb_per_s(self) -> dict[str, float]:
        return {what: nbytes / 1e6 / seconds for what, (nbytes, seconds) in self.speed.items() if seconds}


def flat(trees: dict[str, Any]) -> dict[str, Tensor]:
    """All tensors of a checkpoint, by unit and path."""
    return {f"{unit}/{name}": tensor for unit, tree in trees.items() for name, tensor in split(tree)[0].items()}


def kind_of(name: str, tensor: Tensor, anchors: dict[str, Tensor]) -> str:
    """The row of the table that a tensor counts in."""
    last = name.rsplit("/", 1)[-1]
    if last in ("exp_avg", "exp_avg_sq"):
        return last
    if "/anchor/" in name:
        return "anchor"
    if "/model/" in name:
        at_sync = last in anchors and torch.equal(tensor, anchors[last])
        return "weights at a sync" if at_sync else "weights in mid-window"
    return "outer momentum" if "/outer/" in name and tensor.numel() > 1 else "rest"


def measure(run: Path, every: int, full_every: int, links: int) -> dict:
    """The table's shares and the store's, of one run."""
    paths = checkpoint.steps(run / "checkpoints")[every - 1 :: every]
    if len(paths) < 2:
        raise SystemExit(
            f"{run} has {len(paths)} checkpoints to compare: give a run of `diloco train --keep 0` with two"
        )
    taken = set(np.linspace(1, len(paths) - 1, min(links, len(paths) - 1)).astype(int).tolist())
    tally, before, full_bytes = Tally(), {}, 0
    with tempfile.TemporaryDirectory(dir=run) as scratch:
        chains = {kind: Chain(Path(scratch) / kind, kind, full_every) for kind in ("lossless", "lossy")}
        for index, path in enumerate(paths):
            trees, _ = checkpoint.load(path)
            now = flat(trees)
            full_bytes += sum(tensor.nbytes for tensor in now.values())
            for chain in chains.values():
                chain.append(checkpoint.step_of(path), trees)
            if index in taken:
                add_link(tally, now, before, full_every)
            before = now
        chains["lossless"].compare(paths)
        stored = {kind: chain.nbytes() / full_bytes for kind, chain in chains.items()}
    return result_of(tally) | {"checkpoints": len(paths), "full_bytes": full_bytes, "stored": stored}


class Chain:
    """A store of all checkpoints, written as a run would."""

    def __init__(self, root: Path, kind: str, full_every: int) -> None:
        self.root = root
        keep = checkpoint.Policy(last=0)
        self.writer = checkpoint.Writer(
            checkpoint.Store(root), kind=kind, full_every=full_every, background=False, keep=keep
        )

    def append(self, step: int, trees: dict[str, Any]) -> None:
        parts = {checkpoint.part_name(unit): tree for unit, tree in trees.items()}
        self.writer.save(step, parts, list(parts), {}, self.writer.next_base())

    def nbytes(self) -> int:
        return sum(file.stat().st_size for file in self.root.rglob("*") if file.is_file())

    def compare(self, paths: list[Path]) -> None:
        """Raises AssertionError where a link does not load as it was."""
        for path in paths:
            was, now = flat(checkpoint.load(path)[0]), flat(checkpoint.load(self.root / path.name)[0])
            assert was.keys() == now.keys()
            assert all(np.array_equal(words_of(was[name]), words_of(now[name])) for name in was), path


def add_link(tally: Tally, now: dict[str, Tensor], before: dict[str, Tensor], full_every: int) -> None:
    """Counts one checkpoint, given the one before."""
    anchors = {name.rsplit("/", 1)[-1]: tensor for name, tensor in now.items() if "/anchor/" in name}
    compressor, seen = zstandard.ZstdCompressor(level=ZSTD_LEVEL), set()
    for name in sorted(now):  # `global` first, whose anchor is what others equal
        tensor, base = now[name], before.get(name)
        if base is None or (base.shape, base.dtype) != (tensor.shape, tensor.dtype):
            continue  # it has no earlier self: what is under way comes and goes
        kind, words = kind_of(name, tensor, anchors), words_of(tensor)
        digest = hashlib.sha1(words).digest()
        again = digest in seen
        seen.add(digest)
        ways = {
            "zstd": len(compressor.compress(words)),
            "self": round_trip(tally, tensor, None),
            "difference": round_trip(tally, tensor, base),
            "lossy": lossy_bytes(tally, tensor, base),
        }
        ways["chain"] = (ways["self"] + (full_every - 1) * ways["difference"]) / full_every
        ways["entropy"], ways["floor"] = bounds_bytes(tensor, base, ways["difference"])
        for way, after in ways.items():
            tally.count(kind, way, again, tensor.nbytes, after)


def lossy_bytes(tally: Tally, tensor: Tensor, base: Tensor) -> int:
    """Payload bytes, given what a reader of a lossy chain has."""
    known = delta_lossy.decode(*delta_lossy.encode(base))
    payload, recipe = tally.timed("lossy encode", tensor.nbytes, delta_lossy.encode, tensor, known)
    tally.timed("lossy decode", tensor.nbytes, delta_lossy.decode, payload, recipe, known)
    return payload.numel()


def round_trip(tally: Tally, tensor: Tensor, base: Tensor | None) -> int:
    """Payload bytes; raises AssertionError where a tensor does not come back."""
    way = "full link" if base is None else "difference"
    payload, recipe = tally.timed(f"{way} encode", tensor.nbytes, delta.encode, tensor, base)
    back = tally.timed(f"{way} decode", tensor.nbytes, delta.decode, payload, recipe, base)
    assert np.array_equal(words_of(back), words_of(tensor)) and back.dtype == tensor.dtype
    return payload.numel()


def bounds_bytes(tensor: Tensor, base: Tensor, coded: int) -> tuple[float, float]:
    """(entropy, floor); of small tensors what they take, since no statistics can be had of them."""
    if tensor.dtype != torch.float32 or tensor.numel() < LEAST_BOUND_NUMEL or coded == 0:
        return coded, coded
    entropy, floor = bounds_bits(words_of(tensor), words_of(base))
    return entropy * tensor.numel() / 8, floor * tensor.numel() / 8


def result_of(tally: Tally) -> dict:
    full = sum(before for (_, way, _), (before, _) in tally.bytes.items() if way == "chain")
    kinds = {kind: {way: tally.share(way, kind) for way in COLUMNS} for kind in tally.kinds()}
    for kind in kinds:
        of_kind = sum(b for (its, way, _), (b, _) in tally.bytes.items() if way == "chain" and its == kind)
        kinds[kind]["share of all"] = of_kind / full
    return {
        "kinds": kinds,
        "all": {way: tally.share(way) for way in COLUMNS},
        "all, equal tensors once": {way: tally.share(way, once=True) for way in COLUMNS},
        "mb_per_s": tally.mb_per_s(),
    }


def show(name: str, result: dict) -> None:
    print(f"\n{name}: {result['checkpoints']} checkpoints, {result['full_bytes'] / 1e6:.0f} MB in full")
    print(f"{'':25}{'of all':>8}" + "".join(f"{title:>12}" for title in COLUMNS.values()))
    rows = result["kinds"] | {key: result[key] for key in ("all", "all, equal tensors once")}
    for kind, shares in rows.items():
        cells = [shares.get("share of all", 1.0), *(shares[way] for way in COLUMNS)]
        texts = [f"{100 * cell:.1f}" for cell in cells]
        print(f"{kind:25}{texts[0]:>8}" + "".join(f"{text:>12}" for text in texts[1:]))
    print("on disk: " + ", ".join(f"{kind} {100 * share:.1f}" for kind, share in result["stored"].items()))
    print("MB/s of fp32: " + ", ".join(f"{what} {speed:.0f}" for what, speed in result["mb_per_s"].items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders with all their checkpoints")
    parser.add_argument("--every", type=int, default=1, help="take every so manieth checkpoint")
    parser.add_argument("--full-every", type=int, default=10, help="links of a chain, the full one among them")
    parser.add_argument("--links", type=int, default=8, help="links that the table is of")
    parser.add_argument("--out", default="", help="JSON file for the result")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {"every": arguments.every, "full_every": arguments.full_every, "runs": {}}
    for run in arguments.runs:
        result = measure(run, arguments.every, arguments.full_every, arguments.links)
        results["runs"][run.name] = result
        show(run.name, result)
    if arguments.out:
        with open(arguments.out, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
