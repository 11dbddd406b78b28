"""Step time, throughput and bytes of data parallel, DiLoCo and its streaming forms over really slow links.

    sudo python benchmarks/slow_link.py [--quick] [--model 1m] [--only 20mbit] [--method diloco] [--out slow_link.json]

Two ranks, each with one thread on a core of its own in a network namespace of its own; the kernel's token bucket limits
what they send to each other. Linux, root and iproute2; about 20 minutes, `--quick` about 3. Beside it: diloco's own
throttle, which needs no root, and the virtual clock's prediction, against the kernel's link.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from slow_link import rows as table
from slow_link.cells import (
    LINKS,
    METHODS,
    MIXING,
    OVERLAP,
    SEQ_LEN,
    SEQUENCES,
    SYNC_EVERY,
    Cell,
    table_cells,
    throttle_cells,
    virtual_cells,
)
from slow_link.net import ADDRESSES, BURST_BYTES, CONGESTION_CONTROL, CORES, INTERFACE, QUEUE_S, Namespaces

from diloco.errors import BadInput
from diloco.wire.link import Link

HERE = Path(__file__).resolve().parent
QUICK = {"models": ["1m"], "links": ["20mbit"]}
CELL_TIMEOUT_S = 400.0
TORCHFT_NOTE = "not measured: give --torchft-python, the interpreter of an environment with torchft"


class Runner:
    """Starts the processes of a cell and reads what they leave."""

    def __init__(self, net: Namespaces, folder: Path, torchft_python: str) -> None:
        self.net, self.folder, self.torchft_python = net, folder, torchft_python

    def measured(self, cell: Cell) -> dict:
        """The cell's row: over the kernel's link, or over an unlimited one with the throttle."""
        if cell.method == "torchft" and not self.torchft_python:
            return table.failed(cell, TORCHFT_NOTE)
        self.net.limit(Link.parse(cell.link) if cell.path == "tbf" else None)
        python = self.torchft_python if cell.method == "torchft" else sys.executable
        outs = [self.folder / f"{rank}.json" for rank in range(2)]
        started = []
        for rank, out in enumerate(outs):
            out.unlink(missing_ok=True)
            command = [python, str(HERE / "slow_link" / "worker.py"), json.dumps(dataclasses.asdict(cell)), str(out)]
            started.append(self.net.start(rank, command, _env(rank), out.with_suffix(".log")))
        _join(started, time.monotonic() + CELL_TIMEOUT_S)
        self.net.stop()
        if not all(out.exists() for out in outs):
            return table.failed(cell, f"failed: {_last_line(outs)}")
        return table.row(cell, [json.loads(out.read_text()) for out in outs])

    def predicted(self, cells: list[Cell]) -> dict[tuple[str, str, str], float]:
        """Seconds a step by the virtual clock, one cell on each core at a time."""
        found, waiting = {}, list(cells)
        while waiting:
            batch, waiting = waiting[: len(CORES)], waiting[len(CORES) :]
            started = []
            for core, cell in zip(CORES, batch, strict=False):
                out = self.folder / f"virtual-{core}.json"
                out.unlink(missing_ok=True)
                script = str(HERE / "slow_link" / "virtual.py")
                command = [sys.executable, script, json.dumps(dataclasses.asdict(cell)), str(out)]
                started.append((cell, out, self.net.start(core, command, _env(0), out.with_suffix(".log"))))
            _join([process for *_, process in started], time.monotonic() + CELL_TIMEOUT_S)
            self.net.stop()
            for cell, out, _ in started:
                if out.exists():
                    found[cell.model, cell.method, cell.link] = json.loads(out.read_text())["step_s"]
                print(f"  {cell.name}: {_text(out)}", flush=True)
        return found


def _env(rank: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": ADDRESSES[0],
        "MASTER_PORT": "29700",
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(HERE.parent / "src"),
    }


def _join(processes: list[subprocess.Popen], deadline: float) -> None:
    """Waits until all have ended, one has failed, or it is too late."""
    while time.monotonic() < deadline and None in [p.poll() for p in processes]:
        if any(p.returncode for p in processes):
            return
        time.sleep(0.05)


def _last_line(outs: list[Path]) -> str:
    logs = [out.with_suffix(".log").read_text().strip() for out in outs]
    return next((log.splitlines()[-1] for log in logs if log), f"no answer within {CELL_TIMEOUT_S:.0f} s")


def _text(out: Path) -> str:
    return f"{1e3 * json.loads(out.read_text())['step_s']:.1f} ms a step" if out.exists() else _last_line([out])


def run(arguments: argparse.Namespace) -> dict:
    models = [m for m in SEQUENCES if arguments.model in ("", m) and (not arguments.quick or m in QUICK["models"])]
    links = [k for k in LINKS if arguments.only in ("", k) and (not arguments.quick or k in QUICK["links"])]
    methods = [m for m in METHODS if m in (arguments.method or METHODS)]
    cells = table_cells(models, links, methods, torchft="torchft" in (arguments.method or ["torchft"]))
    if not cells:
        raise BadInput("--quick, --model, --only and --method leave nothing to measure: take one of them away")
    start, rows = time.monotonic(), []
    with Namespaces() as net, tempfile.TemporaryDirectory() as folder:
        runner = Runner(net, Path(folder), arguments.torchft_python)
        todo = cells + ([] if arguments.no_throttle else throttle_cells(cells))
        for index, cell in enumerate(todo, start=1):
            print(f"[{time.monotonic() - start:5.0f} s] {index}/{len(todo)} {cell.name}", flush=True)
            rows.append(runner.measured(cell))
            print("  " + table.lines(rows[-1:])[1], flush=True)
        virtual = {} if arguments.no_virtual else runner.predicted(virtual_cells(cells))
    throttled = {(r["model"], r["method"], r["link"]): r["step_s"] for r in rows if _throttled(r)}
    return {
        **_machine(),
        "took_s": round(time.monotonic() - start),
        "rows": rows,
        "throttle": table.compare(rows, throttled, "throttle"),
        "virtual": table.compare(rows, virtual, "virtual"),
    }


def _throttled(row: dict) -> bool:
    return row["path"] == "throttle" and "step_s" in row


def _machine() -> dict:
    import torch

    return {
        "torch": torch.__version__,
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "sync_every": SYNC_EVERY,
        "overlap": OVERLAP,
        "mixing": MIXING,
        "tokens_per_replica_and_step": {model: n * SEQ_LEN for model, n in SEQUENCES.items()},
        "tbf": {"burst_bytes": BURST_BYTES, "queue_s": QUEUE_S, "congestion_control": CONGESTION_CONTROL},
    }


def show(result: dict) -> None:
    print("\n".join(table.lines(result["rows"])))
    for name in ("throttle", "virtual"):
        for r in result[name]:
            waits = f", of the waits alone {r['ratio_of_waits']:.3f}" if "ratio_of_waits" in r else ""
            print(
                f"{name:<9}{r['model']:<6}{r['method']:<16}{r['link']:<9}{1e3 * r[f'{name}_step_s']:9.1f} ms, tbf "
                f"{1e3 * r['tbf_step_s']:9.1f} ms: ratio {r['ratio']:.3f}{waits}"
            )
    print(f"{result['took_s']} s in all")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the 1m model on the 20mbit link only")
    parser.add_argument("--model", default="", choices=["", *SEQUENCES], help="this model only")
    parser.add_argument("--only", default="", choices=["", *LINKS], help="this link only")
    parser.add_argument("--method", nargs="+", choices=[*METHODS, "torchft"], help="these methods only")
    parser.add_argument("--no-throttle", action="store_true", help="leave out diloco's own throttle")
    parser.add_argument("--no-virtual", action="store_true", help="leave out the virtual clock")
    parser.add_argument(
        "--torchft-python",
        default=os.environ.get("TORCHFT_PYTHON", ""),
        help="python of an environment with torch and torchft 0.2.0; default: $TORCHFT_PYTHON",
    )
    parser.add_argument("--out", default="", help="JSON file for the result")
    parser.add_argument("--update", action="store_true", help="keep what --out holds of cells not measured this time")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # an exception, so that the namespaces are taken away
    try:
        result = run(arguments)
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the namespaces are gone", file=sys.stderr)
        return 130
    show(result)
    if arguments.out:
        out = Path(arguments.out)
        if arguments.update and out.exists():
            result = table.updated(json.loads(out.read_text()), result)
        out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
