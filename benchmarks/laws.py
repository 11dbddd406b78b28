"""Fitting one law beside other fitters, on the same data in one run: time, objective reached, error on unseen runs.

    OPENBLAS_NUM_THREADS=1 python benchmarks/laws.py --peers peers/bin/python [--seeds 20] [--out laws.json]

`--peers` (or LAW_PEERS in the environment) is the Python of an environment with chinchilla 0.2.0 and, from Python 3.12
on, simple-scaling-laws 0.2.0; `law_peers.py` says how to make it. Data: a ladder of 6 x 6 runs drawn from Chinchilla's
law with 0.4% noise, and the same with one run 15% too high (unseen: the law itself at 10 and 100 times the compute);
the 28 DiLoCo losses of arXiv:2503.09799 Table 4 (unseen: the six runs of Table 5). All fit E + A x^-alpha + B y^-beta;
the objective is the sum of Huber's loss (delta 1e-3) of log residuals, which chinchilla and `diloco huber` minimise.
chinchilla runs once, over the full grid of the Chinchilla paper, 4500 starts on all cores; the others on every seed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import diloco
from diloco.laws import fit_law
from diloco.laws.published import paper_rows
from diloco.laws.solve import huber

DELTA = 1e-3
NOISE, GROSS = 0.004, 0.15
REPEATS = 5
"""Of our own fits, whose median is the time: one takes less than the clock's noise on a busy machine."""

GRID = {
    "e": [-1.0, -0.5, 0.0, 0.5, 1.0],
    "a": [0.0, 5.0, 10.0, 15.0, 20.0, 25.0],
    "b": [0.0, 5.0, 10.0, 15.0, 20.0, 25.0],
    "alpha": [0.0, 0.5, 1.0, 1.5, 2.0],
    "beta": [0.0, 0.5, 1.0, 1.5, 2.0],
}
"""arXiv:2203.15556 section D.2."""


@dataclass(frozen=True)
class Data:
    """Losses over two axes, and the losses to be predicted; x, y and loss are (n,)."""

    name: str
    axes: tuple[str, str]
    form: str
    x: np.ndarray
    y: np.ndarray
    loss: np.ndarray
    unseen_x: np.ndarray
    unseen_y: np.ndarray
    unseen_loss: np.ndarray
    unseen_are_runs: bool
    """Runs, with noise; else the law itself. The interval that should hold them differs."""
    grid: dict[str, list[float]]

    def columns(self) -> dict[str, np.ndarray]:
        return {self.axes[0]: self.x, self.axes[1]: self.y, "loss": self.loss}

    def unseen(self) -> dict[str, np.ndarray]:
        return {self.axes[0]: self.unseen_x, self.axes[1]: self.unseen_y}

    def objective(self, c: dict[str, float]) -> float:
        fitted = c["E"] + c["A"] * self.x ** -c["alpha"] + c["B"] * self.y ** -c["beta"]
        return float(huber(np.log(fitted / self.loss), DELTA).sum())


def ladder(seed: int, outlier: bool) -> Data:
    rng = np.random.default_rng(seed)
    params, multiple = (g.ravel() for g in np.meshgrid(np.geomspace(5e7, 2e9, 6), np.geomspace(5, 80, 6)))
    loss = _chinchilla(params, params * multiple) * np.exp(NOISE * rng.standard_normal(params.size))
    if outlier:
        loss[rng.integers(loss.size)] *= np.exp(GROSS)
    far = params.max() * np.sqrt([10.0, 100.0])
    return Data(
        name="ladder, one run +15%" if outlier else "ladder",
        axes=("params", "tokens"),
        form="A*params^-alpha + B*tokens^-beta + E",
        x=params,
        y=params * multiple,
        loss=loss,
        unseen_x=far,
        unseen_y=20 * far,
        unseen_loss=_chinchilla(far, 20 * far),
        unseen_are_runs=False,
        grid=GRID,
    )


def _chinchilla(params: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    return 1.69 + 406.4 * params**-0.34 + 410.7 * tokens**-0.28


def paper() -> Data:
    """Replicas raise the loss, so that beta is negative; the grid looks on both sides of 0."""
    seen, unseen = paper_rows(), paper_rows(extrapolation=True)
    columns = [rows.column(name) for rows in (seen, unseen) for name in ("params", "replicas", "loss")]
    grid = GRID | {"beta": [-1.0, -0.5, 0.0, 0.5, 1.0], "b": [-10.0, -5.0, 0.0, 5.0, 10.0, 15.0]}
    form = "A*params^-alpha + B*replicas^-beta + E"
    return Data("DiLoCo, Table 4", ("params", "replicas"), form, *columns, unseen_are_runs=True, grid=grid)


def ours(data: Data, form: str = "", **settings: object) -> dict:
    def fit():
        return fit_law(data.columns(), form or data.form, **settings)

    law = fit()
    seconds = statistics.median(_seconds(fit) for _ in range(REPEATS))
    curve = law.curve(data.unseen())
    ends = (curve.new_low, curve.new_high) if data.unseen_are_runs else (curve.low, curve.high)
    row = _scored(data, curve.value, *ends)
    objective = None if form else data.objective(law.parameters)
    return row | {"seconds": seconds, "objective": objective, "version": diloco.__version__}


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def peer(python: str, system: str, data: Data) -> dict:
    request = {
        "rows": {"x": data.x.tolist(), "y": data.y.tolist(), "loss": data.loss.tolist()},
        "at": {"x": data.unseen_x.tolist(), "y": data.unseen_y.tolist()},
        "interval": "new-run" if data.unseen_are_runs else "mean",
        "grid": data.grid,
        "delta": DELTA,
    }
    command = [python, str(Path(__file__).with_name("law_peers.py")), system]
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, input=json.dumps(request), env=os.environ | threads, text=True, capture_output=True)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1]}
    answer = json.loads(done.stdout.splitlines()[-1])
    if "missing" in answer:
        return answer
    c = answer["coefficients"]
    central = c["E"] + c["A"] * data.unseen_x ** -c["alpha"] + c["B"] * data.unseen_y ** -c["beta"]
    ends = (np.array(answer["interval"][end]) for end in ("low", "high")) if "interval" in answer else (None, None)
    row = _scored(data, np.array(answer.get("predicted", central)), *ends)
    kept = {key: answer[key] for key in ("seconds", "version", "python", "starts", "coefficients") if key in answer}
    return row | kept | {"objective": data.objective(c)}


def _scored(data: Data, value: np.ndarray, low: np.ndarray | None, high: np.ndarray | None) -> dict:
    error = value / data.unseen_loss - 1
    row: dict = {"error_pct": 100 * float(np.abs(error).mean()), "bias_pct": 100 * float(error.mean())}
    if low is not None:
        row["inside_share"] = float(((low <= data.unseen_loss) & (data.unseen_loss <= high)).mean())
        row["half_width_pct"] = 50 * float(np.log(high / low).mean())
    return row


def measure(data: Data, seed: int, python: str, grid: bool) -> list[dict]:
    systems: dict[str, Callable[[], dict]] = {
        "diloco huber": lambda: ours(data, loss="huber", delta=DELTA, holdout=False),
        "diloco": lambda: ours(data, holdout=False),
        "diloco with hold-out": lambda: ours(data),
    }
    if data.axes[1] == "replicas":
        systems["diloco, A N^a M^b + floor"] = lambda: ours(data, "power-floor")
    if python:
        systems["simple-scaling-laws"] = lambda: peer(python, "simple-scaling-laws", data)
    if python and grid:
        systems["chinchilla"] = lambda: peer(python, "chinchilla", data)
    rows = []
    for name, call in systems.items():
        rows.append({"data": data.name, "seed": seed, "system": name, "load": os.getloadavg()[0], **call()})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def table(rows: list[dict]) -> str:
    """One line per data and system: medians of time, means of the rest over seeds; the objective is seed 0's."""
    heads = ("data", "system", "seeds", "seconds", "chinchilla's time", "objective / best", "error %", "inside", "+- %")
    lines = ["| " + " | ".join(heads) + " |", "| --- | --- |" + " --: |" * 7]
    for data, system in dict.fromkeys((row["data"], row["system"]) for row in rows):
        chosen = [row for row in rows if (row["data"], row["system"]) == (data, system)]
        if unusable := chosen[0].get("missing") or chosen[0].get("failed"):
            lines.append(f"| {data} | {system} | {unusable} |" + " |" * 6)
            continue
        first = [row for row in rows if row["data"] == data and row["seed"] == 0]
        best = min(row["objective"] for row in first if row.get("objective"))
        full = next((row["seconds"] for row in first if row["system"] == "chinchilla" and "seconds" in row), None)
        seconds, objective = statistics.median(row["seconds"] for row in chosen), chosen[0]["objective"]
        cells = (
            *(data, system, str(len(chosen)), f"{seconds:.3g}", f"{full / seconds:.0f}x" if full else "-"),
            *(f"{objective / best:.4f}" if objective else "-", f"{_mean(chosen, 'error_pct'):.2f}"),
            *(f"{_mean(chosen, key):.2f}" if key in chosen[0] else "-" for key in ("inside_share", "half_width_pct")),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _mean(rows: list[dict], key: str) -> float:
    return statistics.mean(row[key] for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=os.environ.get("LAW_PEERS", ""), help="Python of the peers' environment")
    parser.add_argument("--seeds", type=int, default=20, help="ladders drawn; chinchilla sees the first alone")
    parser.add_argument("--out", default="", help="JSON file for all rows; data already measured there are kept")
    options = parser.parse_args()
    rows = _kept(options.out)
    done = {(row["data"], row["seed"]) for row in rows}
    for data, seed in _tasks(options.seeds):
        if (data.name, seed) not in done:
            rows += measure(data, seed, options.peers, grid=seed == 0)
            _keep(options.out, rows)
    print(table(rows))


def _tasks(seeds: int) -> Iterator[tuple[Data, int]]:
    yield from ((data, 0) for data in (ladder(0, False), ladder(0, True), paper()))
    yield from ((ladder(seed, outlier), seed) for seed in range(1, seeds) for outlier in (False, True))


def _kept(out: str) -> list[dict]:
    return json.loads(Path(out).read_text())["rows"] if out and Path(out).is_file() else []


def _keep(out: str, rows: list[dict]) -> None:
    if out:
        facts = {"python": platform.python_version(), "numpy": np.__version__, "cores": os.cpu_count()}
        temporary = Path(f"{out}.tmp")
        temporary.write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n")
        os.replace(temporary, out)


if __name__ == "__main__":
    main()
