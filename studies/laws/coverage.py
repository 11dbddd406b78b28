"""How often the 95% intervals of a fitted law hold the truth, on simulated ladders whose truth is known.

    python studies/laws/coverage.py run [--repeats 300] [--only 4x4]   # one process; finished cells are kept
    python studies/laws/coverage.py table                              # Markdown from coverage.csv
    python studies/laws/coverage.py known --only 'tokens 5x5'          # printed: the same, told which runs are outliers

Ladders of 3x3, 4x4 and 5x5 runs: sizes by tokens per parameter (Chinchilla's form and constants, five coefficients) and
sizes by replicas (a power with a floor, four coefficients); log noise of 0.3% and 1.5%; clean, with two random runs
15% too high, as a run that went wrong is, or with two runs each 15% too high or too low. A repeat counts as covered
where the interval of the law holds the true loss at 10 or at 100 times the compute of the ladder's largest run.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from dataclasses import astuple, dataclass
from itertools import product
from pathlib import Path

import numpy as np

from diloco.laws import Law, fit_law, read_rows

TABLE = Path(__file__).with_name("coverage.csv")
CELL_COLUMNS = ("ladder", "side", "noise_pct", "outliers", "outlier_side")
COLUMNS = (
    *(*CELL_COLUMNS, "repeats", "covered_10x_pct", "covered_100x_pct", "covered_new_run_pct"),
    *("half_width_10x_pct", "half_width_100x_pct", "outliers_found", "wrongly_left_out", "cpu_ms_per_fit"),
)
PROMISED_PCT = (92.0, 98.0)
"""What the intervals are meant to cover; of exactly 95%, 300 repeats leave it once in 85 cells, 600 once in 1500."""

GROSS = 0.15
"""How far an outlier lies from its law, in logs."""

SMALLEST, LARGEST = 5e7, 2e9
"""Parameters."""

MULTIPLES = (5.0, 80.0)
"""Tokens per parameter."""

FORMS = {
    "tokens": "A*params^-alpha + B*tokens^-beta + E",
    "replicas": "A*params^a*replicas^b + floor",
}


@dataclass(frozen=True)
class Cell:
    ladder: str
    side: int
    noise_pct: float
    outliers: int
    outlier_side: str = "either"
    """"above": all too high, "either": each at random."""


OUTLIERS = ((0, "-"), (2, "above"), (2, "either"))
CELLS = tuple(Cell(*values, *which) for *values, which in product(FORMS, (3, 4, 5), (0.3, 1.5), OUTLIERS))
_NAMES = [tuple(str(value) for value in astuple(cell)) for cell in CELLS]


def truth(ladder: str, axes: dict[str, np.ndarray]) -> np.ndarray:
    """The loss without noise."""
    if ladder == "tokens":
        return 1.69 + 406.4 * axes["params"] ** -0.34 + 410.7 * axes["tokens"] ** -0.28
    return 1.2 + 40 * axes["params"] ** -0.16 * axes["replicas"] ** 0.02


def design(cell: Cell) -> dict[str, np.ndarray]:
    params = np.geomspace(SMALLEST, LARGEST, cell.side)
    if cell.ladder == "tokens":
        params, multiple = (grid.ravel() for grid in np.meshgrid(params, np.geomspace(*MULTIPLES, cell.side)))
        return {"params": params, "tokens": params * multiple}
    params, replicas = (grid.ravel() for grid in np.meshgrid(params, 2.0 ** np.arange(cell.side)))
    return {"params": params, "replicas": replicas}


def targets(cell: Cell) -> dict[str, np.ndarray]:
    """At 10 and 100 times the largest run's compute: compute is quadratic in params at a constant token multiple."""
    params = LARGEST * np.sqrt([10.0, 100.0])
    return (
        {"params": params, "tokens": 20 * params} if cell.ladder == "tokens" else {"params": params, "replicas": [4, 4]}
    )


def simulate(cell: Cell, rng: np.random.Generator) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Rows with noise, and the indices of the outliers among them."""
    axes = design(cell)
    clean = truth(cell.ladder, axes)
    loss = clean * np.exp(cell.noise_pct / 100 * rng.standard_normal(len(clean)))
    bad = rng.choice(len(loss), cell.outliers, replace=False)
    loss[bad] *= np.exp(GROSS * rng.choice([1, 1] if cell.outlier_side == "above" else [-1, 1], cell.outliers))
    return axes | {"loss": loss}, bad


def measure(cell: Cell, repeats: int, known: bool = False) -> dict[str, float]:
    """One line of the table; `known`: of a least-squares fit without the outliers, as a yardstick for finding them."""
    rng = np.random.default_rng([cell.side, int(10 * cell.noise_pct), cell.outliers, len(cell.ladder)])
    at = {name: np.asarray(values, dtype=float) for name, values in targets(cell).items()}
    true = truth(cell.ladder, at)
    held, new_run, width, found, wrong = [], [], [], 0, 0
    start = time.process_time()
    for _ in range(repeats):
        rows, bad = simulate(cell, rng)
        kept = np.setdiff1d(np.arange(len(rows["loss"])), bad if known else [])
        table = read_rows({name: values[kept] for name, values in rows.items()})
        law: Law = fit_law(table, FORMS[cell.ladder], loss="mse" if known else "robust", holdout=False)
        curve = law.curve(at)
        held.append((curve.low <= true) & (true <= curve.high))
        fresh = true * np.exp(cell.noise_pct / 100 * rng.standard_normal(len(true)))
        new_run.append((curve.new_low <= fresh) & (fresh <= curve.new_high))
        width.append(np.log(curve.high / curve.low) / 2)
        left_out = set(kept[law.runs.weight == 0])
        found += len(left_out & set(bad))
        wrong += len(left_out - set(bad))
    seconds = time.process_time() - start
    covered, widths = 100 * np.mean(held, axis=0), 100 * np.median(width, axis=0)
    values = (
        *(repeats, round(covered[0], 1), round(covered[1], 1), round(100 * float(np.mean(new_run)), 1)),
        *(round(float(widths[0]), 2), round(float(widths[1]), 2), round(found / repeats, 2), round(wrong / repeats, 3)),
        round(1e3 * seconds / repeats),
    )
    return dict(zip(COLUMNS, (*astuple(cell), *values), strict=True))


def _name(line: dict) -> tuple[str, ...]:
    return tuple(str(line[column]) for column in CELL_COLUMNS)


def read_table() -> list[dict[str, str]]:
    if not TABLE.is_file():
        return []
    with open(TABLE, newline="") as file:
        return list(csv.DictReader(file))


def write_table(lines: list[dict]) -> None:
    temporary = TABLE.with_suffix(".tmp")
    with open(temporary, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(lines, key=lambda line: _NAMES.index(_name(line))))
    os.replace(temporary, TABLE)


def run(repeats: int, only: str) -> None:
    os.nice(10)
    for cell in CELLS:
        lines = read_table()
        done = [line for line in lines if _name(line) == _NAMES[CELLS.index(cell)]]
        if only not in f"{cell.ladder} {cell.side}x{cell.side}" or (done and int(done[0]["repeats"]) >= repeats):
            continue
        line = measure(cell, repeats)
        write_table([other for other in lines if other not in done] + [line])
        print(" ".join(f"{key}={value}" for key, value in line.items()), flush=True)


def known(repeats: int, only: str) -> None:
    for cell in CELLS:
        if cell.outliers and only in f"{cell.ladder} {cell.side}x{cell.side}":
            line = measure(cell, repeats, known=True)
            print(*astuple(cell), *(f"{key}={line[key]}" for key in COLUMNS if key.startswith("covered")), flush=True)


def markdown() -> str:
    """The table, cells that fall short in bold, and their count."""
    heads = ("ladder", "noise %", "outliers", "at 10x", "at 100x", "new run", "half widths %", "found", "wrong")
    lines, short = ["| " + " | ".join(heads) + " |", "|" + " --- |" * 3 + " --: |" * 6], 0
    for line in read_table():
        marked = [_marked(line[f"covered_{which}_pct"]) for which in ("10x", "100x", "new_run")]
        short += any("*" in cell for cell in marked[:2])
        outliers = f"{line['outliers']} {line['outlier_side']}" if line["outliers"] != "0" else "none"
        cells = (f"{line['ladder']} {line['side']}x{line['side']}", line["noise_pct"], outliers, *marked)
        widths = f"{line['half_width_10x_pct']} / {line['half_width_100x_pct']}"
        lines.append("| " + " | ".join((*cells, widths, line["outliers_found"], line["wrongly_left_out"])) + " |")
    low, high = PROMISED_PCT
    return "\n".join([*lines, "", f"{short} of {len(lines) - 2} cells outside {low:g} to {high:g}% at 10x or 100x."])


def _marked(percent: str) -> str:
    low, high = PROMISED_PCT
    return percent if low <= float(percent) <= high else f"**{percent}**"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("run", "table", "known"))
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--only", default="", help="part of a ladder's name, such as 'tokens 3x3'")
    options = parser.parse_args()
    if options.verb == "run":
        run(options.repeats, options.only)
    elif options.verb == "known":
        known(options.repeats, options.only)
    else:
        print(markdown())
