"""The planner's step times beside those of real runs over slow links.

    python benchmarks/plan_reality.py [--slow-link results/slow_link.json] [--exchanges results/exchange_times.json]
                                      [--out results/plan_reality.json]

For every cell that `slow_link.py` measured, on this machine or yours. What goes in: parameters and layers, H,
fragments, overlap and codec, rate and delay of the link, and the seconds of a step without syncs. What comes out:

    clock      diloco.plan.clock, with the step that the cell itself took without syncs, just before and after
    steps      diloco.plan.steps, the same inputs
    one        diloco.plan.clock, with one such time for all cells of a model: that of the row that trains alone
    exchange   diloco.plan.clock at the rates that `exchange_times.py` saw the line reach, without training; for coded
               payloads with the receive posted first, as diloco does it

Rates are those of an Ethernet line under TCP, so 1448 of 1538 bytes are payload. Data parallelism sums its gradients
after the backward pass here, so `backward_share` is 0. Under a second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from diloco.errors import BadInput
from diloco.plan import graph
from diloco.plan.catalogue import catalogue
from diloco.plan.clock import clock, outer_round, with_between
from diloco.plan.hardware import TCP_FRAMING, Cluster, Speed
from diloco.plan.model import ModelShape
from diloco.plan.run import Run
from diloco.plan.steps import simulate
from diloco.train.sizes import count, get_size

RESULTS = Path(__file__).resolve().parent / "results"
SLOW_LINK, EXCHANGES = RESULTS / "slow_link.json", RESULTS / "exchange_times.json"
REPLICAS, VOCAB, SEQ_LEN = 2, 256, 128
CHIP = "laptop-cpu"
"""Only its memory bandwidth counts, for coding; its speed is measured."""
METHODS = ("dp", "diloco", "torchft", "streaming")
PREDICTIONS = ("clock", "steps", "one", "exchange")
GOAL = 0.10


@dataclass(frozen=True)
class Cell:
    """One measured step time and what the planner is told about it."""

    model: str
    method: str
    link: str
    path: str
    step_s: float
    alone_s: float
    """A step without syncs, in the same processes."""
    model_alone_s: float
    """The same, once for the model."""
    tokens: int
    """A replica's, in a step."""
    sync_every: int
    overlap_steps: int

    @property
    def streams(self) -> bool:
        return self.method.startswith("streaming")

    @property
    def codec(self) -> str:
        return self.method.partition("-")[2] or "fp32"

    def run(self, alone_s: float) -> Run:
        """The planner's run: two sites of one chip that does an inner step in `alone_s`."""
        size, known = get_size(self.model), catalogue()
        params = count(size, VOCAB).params
        shape = ModelShape(self.model, params, size.layers, size.dim, size.heads, size.ffn, VOCAB, SEQ_LEN)
        link = replace(known.parse_link(self.link, "link"), framing=TCP_FRAMING)
        batch = REPLICAS * self.tokens
        return Run(
            shape,
            Cluster((known.site(CHIP, 1),) * REPLICAS, link),
            Speed(shape.flops_per_token * self.tokens / alone_s, "measured"),
            tokens=batch,
            batch_tokens=batch,
            replicas=REPLICAS,
            sync_every=self.sync_every,
            fragments=size.layers if self.streams else 1,
            overlap_steps=self.overlap_steps,
            codec=self.codec,
            data_parallel=self.method == "dp",
            backward_share=0.0,
        )


def cells(slow_link: dict) -> list[Cell]:
    """Those of a result file of `slow_link.py` that exchange something and gave a number. Raises BadInput for none."""
    rows = [row for row in slow_link["rows"] if "step_s" in row]
    models = {row["model"] for row in rows}
    alone = {model: _model_alone_s([row for row in rows if row["model"] == model]) for model in models}
    found = [_cell(row, slow_link, alone[row["model"]]) for row in rows if row["method"].split("-")[0] in METHODS]
    if not found:
        raise BadInput("the file has no measured cell that exchanges anything: give what slow_link.py --out wrote")
    return found


def _model_alone_s(rows: list[dict]) -> float:
    by_itself = [row["compute_only_step_s"] for row in rows if row["method"] == "compute"]
    return by_itself[0] if by_itself else statistics.median(row["compute_only_step_s"] for row in rows)


def _cell(row: dict, slow_link: dict, model_alone_s: float) -> Cell:
    names = {name: row[name] for name in ("model", "method", "link", "path")}
    tokens = slow_link["tokens_per_replica_and_step"][row["model"]]
    sync_every = 1 if row["method"] == "dp" else slow_link["sync_every"]
    overlap = slow_link["overlap"] if row["method"].startswith("streaming") else 0
    alone_s = row["compute_only_step_s"]
    return Cell(**names, step_s=row["step_s"], alone_s=alone_s, model_alone_s=model_alone_s, tokens=tokens,
                sync_every=sync_every, overlap_steps=overlap)  # fmt: skip


def clock_s(run: Run) -> float:
    return clock(run).step_s


def steps_s(run: Run, alone_s: float) -> float:
    """The step simulator's, told that a fragment is sent when a step has ended, as it is in these loops."""
    layers = run.model.layers
    method = graph.Method(
        run.sync_every, layers // run.fragments, run.overlap_steps, run.codec_cost.bits_per_param,
        even_gaps=False, layerwise=False,
    )  # fmt: skip
    between = run.cluster.between
    wire = graph.Wire(between.gbit_per_s, between.latency_s, run.codec_cost.factor(REPLICAS) * between.framing)
    played = simulate(graph.Workload(run.model.params, layers, alone_s), method, wire)
    return played.total_s / played.steps


def exchange_s(run: Run, seconds: list[float]) -> float:
    """Mean over rounds whose bytes took so many seconds on the link."""
    nominal = outer_round(run).link_s
    rates = [run.cluster.between.gbit_per_s * nominal / s for s in seconds]
    return statistics.fmean(clock_s(with_between(run, rate)) for rate in rates)


def row(cell: Cell, exchanges: dict[tuple[str, str, str], list[float]]) -> dict:
    """Measured and predicted step, the errors, and how much of its overlap a fragment takes."""
    run = cell.run(cell.alone_s)
    timed = exchanges.get((cell.model, cell.method, cell.link)) if cell.path == "tbf" else None
    predicted = {
        "clock": clock_s(run),
        "steps": steps_s(run, cell.alone_s),
        "one": clock_s(cell.run(cell.model_alone_s)),
        "exchange": exchange_s(run, timed) if timed else None,
    }
    hidden_s = cell.overlap_steps * cell.alone_s
    return {
        **{name: getattr(cell, name) for name in ("model", "method", "link", "path")},
        "step_s": cell.step_s,
        "compute_only_step_s": cell.alone_s,
        "round_share_of_overlap": outer_round(run).total_s / hidden_s if hidden_s else None,
        **{f"{name}_s": value for name, value in predicted.items()},
        **{f"{name}_error": value and value / cell.step_s - 1 for name, value in predicted.items()},
    }


def table(slow_link: dict, exchanges: dict | None) -> dict:
    """The whole result: rows, and for each prediction the cells within `GOAL` and the largest error."""
    exchanged = exchanges["rows"] if exchanges else []
    timed = {(r["model"], r["method"], r["link"]): r.get("receive_first_s", r["exchange_s"]) for r in exchanged}
    rows = [row(cell, timed) for cell in cells(slow_link)]
    within = {}
    for name in PREDICTIONS:
        errors = [abs(r[f"{name}_error"]) for r in rows if r[f"{name}_error"] is not None]
        if errors:
            close = sum(error <= GOAL for error in errors)
            within[name] = {"cells": len(errors), "within_10_percent": close, "largest_error": max(errors)}
    return {"rows": rows, "summary": within}


def lines(result: dict) -> list[str]:
    """The table as text."""
    head = f"{'model':<6}{'method':<16}{'link':<9}{'path':<9}{'measured ms':>12}"
    head += "".join(f"{name + ' ms':>14}{'error':>8}" for name in PREDICTIONS) + f"{'fragment/overlap':>18}"
    found = [head]
    for r in result["rows"]:
        line = f"{r['model']:<6}{r['method']:<16}{r['link']:<9}{r['path']:<9}{1e3 * r['step_s']:>12.1f}"
        for name in PREDICTIONS:
            value, error = r[f"{name}_s"], r[f"{name}_error"]
            line += f"{'-':>14}{'':>8}" if value is None else f"{1e3 * value:>14.1f}{error:>+8.1%}"
        share = r["round_share_of_overlap"]
        found.append(line + (f"{share:>18.0%}" if share else f"{'-':>18}"))
    for name, said in result["summary"].items():
        text = f"{said['within_10_percent']} of {said['cells']} cells within {GOAL:.0%}"
        found.append(f"{name}: {text}, the largest error {said['largest_error']:.1%}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slow-link", default=str(SLOW_LINK), help="result file of slow_link.py")
    parser.add_argument("--exchanges", default="", help="result file of exchange_times.py; default: none but the kept")
    parser.add_argument("--out", default="", help="JSON file for the result")
    arguments = parser.parse_args()
    kept = EXCHANGES if Path(arguments.slow_link).resolve() == SLOW_LINK and EXCHANGES.exists() else None
    timed = arguments.exchanges or kept
    try:
        result = table(_read(arguments.slow_link), _read(timed) if timed else None)
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines(result)))
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(result, indent=1) + "\n")
    return 0


def _read(path: str | Path) -> dict:
    try:
        found = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read as JSON ({error}): give what the benchmark's --out wrote") from error
    if not isinstance(found, dict) or "rows" not in found:
        raise BadInput(f"{path} has no rows: give what the benchmark's --out wrote")
    return found


if __name__ == "__main__":
    sys.exit(main())
