"""How long training waits for a checkpoint that is written in the background, against what a sync takes.

    python benchmarks/checkpoint_stall.py --out benchmarks/results/checkpoint_stall.json

Two replicas over gloo on this machine, one process each, a checkpoint at every third sync. What a sync takes: the time
from one to the next (H inner steps and the outer step), or the outer step alone, here on loopback and over a link of
100 Mbit/s. The first save is left out: it makes the buffers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from diloco.watch.events import read_events

SIZES = {"1m": ["--batch-tokens", "1024"], "10m": ["--batch-tokens", "256"]}
ROUNDS, PER_CHECKPOINT = 21, 3
LINKS = ("", "100mbit,10ms")


def run(size: str, link: str, sync_every: int, folder: Path) -> dict:
    name = f"{size}-{link or 'loopback'}".replace(",", "-")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "diloco", "train",
        "--size", size, *SIZES[size], "--sync-every", str(sync_every), "--steps", str(sync_every * ROUNDS),
        "--checkpoint-every", str(PER_CHECKPOINT), "--eval-every", "-1", "--eval-sequences", "1", "--keep", "1",
        "--runs", str(folder), "--name", name, *(["--link", link] if link else []),
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    events = folder / name / "events.jsonl"
    stalls = [e["stall_s"] for e in read_events(events, ("checkpoint",))][1:-1]
    rounds = [e["stall_s"] for e in read_events(events, ("round",))][1:]
    rates = [e["tokens_per_s"] for e in read_events(events, ("train",))]
    tokens = int(SIZES[size][1]) * sync_every
    windows = [tokens / r for r in rates[sync_every::sync_every] if r > 0]
    return {
        "size": size,
        "link": link or "loopback",
        "sync_every": sync_every,
        "saves": len(stalls),
        "stall_s": statistics.median(stalls),
        "stall_max_s": max(stalls),
        "outer_step_s": statistics.median(rounds),
        "between_syncs_s": statistics.median(windows),
    }


def show(row: dict) -> str:
    return (
        f"{row['size']:>4} {row['link']:>14} {1e3 * row['stall_s']:9.1f} {1e3 * row['stall_max_s']:9.1f} "
        f"{1e3 * row['outer_step_s']:12.1f} {row['between_syncs_s']:10.2f} "
        f"{row['stall_s'] / row['between_syncs_s']:11.2%} {row['stall_s'] / row['outer_step_s']:11.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sync-every", type=int, default=30, help="H, inner steps between two syncs")
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=SIZES)
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    options = parser.parse_args()
    a, b, *rest = ("ms median", "ms max", "outer ms", "between s", "of between", "of outer")
    print(f"{'size':>4} {'link':>14} {a:>9} {b:>9} {rest[0]:>12} {rest[1]:>10} {rest[2]:>11} {rest[3]:>11}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size in options.sizes:
            for link in LINKS:
                rows.append(run(size, link, options.sync_every, Path(folder)))
                print(show(rows[-1]), flush=True)
                if options.out:
                    options.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
