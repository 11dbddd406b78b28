"""The sweep behind the shipped defaults and the README's table: DiLoCo with M = 1, 2, 4 against data parallel on the
same tokens.

    python studies/defaults/sweep.py sweep            # seed 0: inner lr, outer lr and momentum for each setting
    python studies/defaults/sweep.py final            # each setting's best on seeds 1, 2, 3, which the sweep never saw
    python studies/defaults/sweep.py table            # Markdown from rows.csv

Finished runs are read back from rows.csv and not repeated; `--part 0/2` and `--part 1/2` split the work over two
processes.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from diloco.train.config import OuterConfig, TrainConfig
from diloco.train.data import DataConfig
from diloco.train.inner import InnerConfig
from diloco.train.loop import train
from diloco.watch.runfolder import ROW_COLUMNS, read_row

HERE = Path(__file__).parent
ROWS = HERE / "rows.csv"
SEEDS = (1, 2, 3)
LRS = (3e-3, 6e-3, 1.2e-2, 2.4e-2)


@dataclass(frozen=True)
class Setting:
    method: str
    replicas: int
    sync_every: int


SETTINGS = (
    Setting("dp", 1, 30),
    Setting("diloco", 1, 30),
    Setting("diloco", 2, 30),
    Setting("diloco", 4, 30),
    Setting("diloco", 4, 10),
)
# (outer lr, outer momentum) to try at each inner lr; the outer optimizer is Nesterov.
OUTER = {3e-3: ((0.8, 0.6),), 6e-3: ((0.8, 0.4), (0.8, 0.6), (0.6, 0.8), (0.4, 0.9)), 1.2e-2: ((0.8, 0.4), (0.8, 0.6))}
BASE = TrainConfig(
    size="100k",
    batch_tokens=512,
    data=DataConfig(seq_len=64),
    eval_every=-1,
    eval_sequences=1024,
    checkpoint_every=0,
    threads=1,
)


def config_of(setting: Setting, lr: float, outer_lr: float, momentum: float, seed: int) -> TrainConfig:
    name = (
        f"{setting.method}-m{setting.replicas}-h{setting.sync_every}-lr{lr:g}-outer{outer_lr:g}-{momentum:g}-seed{seed}"
    )
    return replace(
        BASE,
        method=setting.method,
        replicas=setting.replicas,
        sync_every=setting.sync_every,
        inner=InnerConfig(lr=lr),
        outer=OuterConfig(lr=outer_lr, momentum=momentum) if setting.method == "diloco" else OuterConfig(),
        seed=seed,
        name=name,
    )


def grid() -> Iterator[TrainConfig]:
    for setting in SETTINGS:
        for lr in LRS:
            for outer_lr, momentum in ((0.0, 0.0),) if setting.method == "dp" else OUTER.get(lr, ()):
                yield config_of(setting, lr, outer_lr, momentum, seed=0)


def finals(rows: list[dict]) -> Iterator[TrainConfig]:
    for setting in SETTINGS:
        best = best_of(rows, setting)
        for seed in SEEDS:
            yield config_of(
                setting, float(best["inner_lr"]), float(best["outer_lr"] or 0), float(best["outer_momentum"] or 0), seed
            )


def of_setting(rows: list[dict], setting: Setting, seeds: tuple[int, ...]) -> list[dict]:
    sync_every = 1 if setting.method == "dp" else setting.sync_every
    wanted = (setting.method, str(setting.replicas), str(sync_every))
    return [r for r in rows if (r["method"], r["replicas"], r["sync_every"]) == wanted and int(r["seed"]) in seeds]


def best_of(rows: list[dict], setting: Setting) -> dict:
    return min(of_setting(rows, setting, (0,)), key=lambda r: float(r["loss"]))


def read_rows() -> list[dict]:
    if not ROWS.exists():
        return []
    with open(ROWS, newline="") as file:
        return list(csv.DictReader(file))


def run_all(configs: list[TrainConfig], part: str) -> None:
    index, parts = (int(x) for x in part.split("/"))
    for number, config in enumerate(configs):
        if number % parts != index or config.run_name in {r["run"] for r in read_rows()}:
            continue
        with tempfile.TemporaryDirectory() as folder:
            train(replace(config, runs=folder), quiet=True)
            row = read_row(Path(folder) / config.run_name / "row.csv")
        fresh = not ROWS.exists()
        with open(ROWS, "a", newline="") as file:
            writer = csv.DictWriter(file, ROW_COLUMNS)
            if fresh:
                writer.writeheader()
            writer.writerow(row)
        print(f"{config.run_name} {row['loss']:.4f} {row['seconds']:.0f} s", flush=True)


def table(rows: list[dict]) -> str:
    base = [float(r["loss"]) for r in of_setting(rows, SETTINGS[0], SEEDS)]
    columns = ["method", "M", "H", "inner lr", "outer lr", "momentum", "held-out loss (mean ± sd)", "against dp"]
    lines = [f"| {' | '.join(columns)} |", "| --- |" + " --: |" * (len(columns) - 1)]
    for setting in SETTINGS:
        best = best_of(rows, setting)
        losses = [float(r["loss"]) for r in of_setting(rows, setting, SEEDS)]
        mean, sd = statistics.mean(losses), statistics.stdev(losses)
        h = "every step" if setting.method == "dp" else setting.sync_every
        cells = [setting.method, setting.replicas, h, f"{float(best['inner_lr']):g}", best["outer_lr"] or "-"]
        cells += [best["outer_momentum"] or "-", f"{mean:.4f} ± {sd:.4f}"]
        cells.append(f"{100 * (mean / statistics.mean(base) - 1):+.1f}%")
        lines.append(f"| {' | '.join(str(c) for c in cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["sweep", "final", "table"])
    parser.add_argument("--part", default="0/1", help="this process's share of the runs, INDEX/PARTS")
    arguments = parser.parse_args()
    if arguments.stage == "sweep":
        run_all(list(grid()), arguments.part)
    elif arguments.stage == "final":
        run_all(list(finals(read_rows())), arguments.part)
    else:
        print(table(read_rows()))


if __name__ == "__main__":
    main()
