"""Ways of coding a checkpoint's difference that were tried, side by side on real checkpoints.

    python studies/checkpoints/alternatives.py RUN [--steps 300,1000,1900,3000] [--out alternatives.csv]

For each step, the checkpoint there is coded given the one before (and, for the extrapolation, the one before that).
Percent of full safetensors, by kind of tensor; replica 0 stands for all. Bytes grouped by significance ("planes") are
coded without matches, as in the package, unless a level of zstd is named.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import zstandard
from numpy.typing import NDArray

from diloco import checkpoint
from diloco.checkpoint import delta
from diloco.checkpoint.delta_planes import planes_bytes
from diloco.checkpoint.delta_words import by_magnitude, order, rotate, words_of, zigzag

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from checkpoint_bound import bounds_bits  # noqa: E402
from checkpoint_size import flat, kind_of  # noqa: E402

LEAST_NUMEL = 4096


def zstd(words: NDArray, level: int) -> int:
    return len(zstandard.ZstdCompressor(level=level).compress(words))


def zstd_planes(words: NDArray, level: int) -> int:
    planes = np.ascontiguousarray(words.view(np.uint8).reshape(-1, 4).T)
    return sum(min(zstd(plane, level), plane.size) for plane in planes)


def adjacent_shift(coded: NDArray) -> int:
    """Planes cut not at whole bytes but where the leading byte says most: tried for every cut, the best kept."""
    return min(planes_bytes(coded << cut) + (cut > 0) * planes_bytes(coded >> (32 - cut)) for cut in range(8))


def ways(now: NDArray, base: NDArray, older: NDArray, twin: NDArray, other: NDArray | None) -> dict[str, float]:
    """Bytes by way; `twin` is the same moment of another replica, `other` the other Adam moment, of this checkpoint."""
    difference = order(now) - order(base)
    coded, sorted_by_base = zigzag(difference), by_magnitude(base)
    entropy, floor = (bits * len(now) / 8 for bits in bounds_bits(now, base))
    result = {
        "zstd 3": zstd(now, 3),
        "zstd 19": zstd(now, 19),
        "no base: planes": planes_bytes(now),
        "no base: planes, sign last": planes_bytes(rotate(now)),
        "no base: planes, sign last, zstd 3": zstd_planes(rotate(now), 3),
        "no base: planes, sign last, sorted by base": planes_bytes(rotate(now)[sorted_by_base]),
        "xor: planes": planes_bytes(now ^ base),
        "xor: planes, zstd 3": zstd_planes(now ^ base, 3),
        "xor: planes, sorted by base": planes_bytes((now ^ base)[sorted_by_base]),
        "difference: planes": planes_bytes(coded),
        "difference: planes, zstd 3": zstd_planes(coded, 3),
        "difference: planes, two's complement": planes_bytes(difference[sorted_by_base]),
        "difference: planes, sorted by base": planes_bytes(coded[sorted_by_base]),
        "difference: planes, sorted, best cut": adjacent_shift(coded[sorted_by_base]),
        "extrapolated: planes": planes_bytes(zigzag(difference - (order(base) - order(older)))),
        "entropy": entropy,
        "floor": floor,
    }
    if other is not None:
        result["to the other replica: planes, sorted"] = planes_bytes(
            zigzag(order(now) - order(twin))[by_magnitude(twin)]
        )
        result["no base: planes, sign last, sorted by other moment"] = planes_bytes(rotate(now)[by_magnitude(other)])
    return result


def one_step(run: Path, step: int) -> dict[tuple[str, str], list[float]]:
    paths = checkpoint.steps(run / "checkpoints")
    at = [checkpoint.step_of(path) for path in paths].index(step)
    older, before, now = (flat(checkpoint.load(path)[0]) for path in paths[at - 2 : at + 1])
    anchors = {name.rsplit("/", 1)[-1]: tensor for name, tensor in now.items() if "/anchor/" in name}
    totals: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for name, tensor in now.items():
        if tensor.numel() < LEAST_NUMEL or name.startswith("replica-1"):
            continue
        twin = name.replace("replica-0", "replica-1")
        moments = {"exp_avg": "exp_avg_sq", "exp_avg_sq": "exp_avg"}
        stem, _, last = name.rpartition("/")
        other = now.get(f"{stem}/{moments.get(last)}")
        sizes = ways(
            *(words_of(tensors[key]) for tensors, key in ((now, name), (before, name), (older, name), (now, twin))),
            None if other is None else words_of(other),
        )
        sizes["as the package does"] = delta.encode(tensor, before[name])[0].numel()
        for way, size in sizes.items():
            total = totals[kind_of(name, tensor, anchors), way]
            total[0] += tensor.nbytes
            total[1] += size
    return totals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", default="300,1000,1900,3000")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("alternatives.csv"))
    arguments = parser.parse_args()
    with open(arguments.out, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "step", "kind", "way", "percent"])
        for step in map(int, arguments.steps.split(",")):
            for (kind, way), (full, size) in one_step(arguments.run, step).items():
                writer.writerow([arguments.run.name, step, kind, way, f"{100 * size / full:.1f}"])
                print(step, kind, way, f"{100 * size / full:.1f}")


if __name__ == "__main__":
    main()
