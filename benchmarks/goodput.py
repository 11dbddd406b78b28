"""How long the failure simulator takes, from thousands to millions of chips.

    OMP_NUM_THREADS=1 python benchmarks/goodput.py [--days 30] [--repeats 3] [--out goodput.json]

One chip fails a year; the rest of the fleet is that of `diloco.plan.goodput_published`. For every policy and number of
chips: failures played, processor time of one run (the least of the repeats) and microseconds per failure; at the end
the exponent b of time ~ chips^b over the three largest fleets, where n log n would show as 1.1 or less.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import numpy as np

from diloco.plan.fleet import Fleet
from diloco.plan.goodput import simulate
from diloco.plan.goodput_published import ASSUMED_FLEET, ASSUMED_POLICY
from diloco.plan.policy import Policy, decoupled, elastic_data_parallel, static, synchronous

CHIPS = (9_375, 37_500, 150_000, 600_000, 1_200_000, 2_400_000, 9_600_000)
POLICIES: dict[str, Policy] = {
    "data parallel": static(**ASSUMED_POLICY),
    "elastic data parallel": elastic_data_parallel(**ASSUMED_POLICY),
    "DiLoCo, 16 learners, all wait": synchronous(16, sync_every=100, elastic=True, **ASSUMED_POLICY),
    "decoupled, 16 learners, quorum 1": decoupled(16, **ASSUMED_POLICY),
    "decoupled, 16 learners, quorum 8": decoupled(16, quorum=8, **ASSUMED_POLICY),
    "decoupled, quorum 1, Weibull 0.7": decoupled(16, **ASSUMED_POLICY),
}


def measure(chips: int, policy: Policy, days: float, repeats: int, shape: float = 1.0) -> dict[str, float]:
    """Processor seconds of one simulation, which other programs on the machine do not lengthen by waiting."""
    fleet = Fleet(chips, weibull_shape=shape, **ASSUMED_FLEET)
    seconds = []
    for seed in range(repeats):
        start = time.process_time()
        result = simulate(fleet, policy, days=days, seed=seed)
        seconds.append(time.process_time() - start)
    return {"chips": chips, "failures": result.failures, "goodput": result.mean, "cpu_s": min(seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=float, default=30.0, help="days of training (default 30)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each, of which the fastest counts (default 3)")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    tables = {}
    print(f"{'policy':36} {'chips':>10} {'failures':>9} {'goodput':>8} {'cpu s':>7} {'us/failure':>10}")
    for name, policy in POLICIES.items():
        shape = 0.7 if name.endswith("Weibull 0.7") else 1.0
        rows = [measure(chips, policy, options.days, options.repeats, shape) for chips in CHIPS]
        for row in rows:
            each = 1e6 * row["cpu_s"] / max(1.0, row["failures"])
            print(
                f"{name:36} {row['chips']:10,} {row['failures']:9,.0f} {row['goodput']:8.1%} {row['cpu_s']:7.2f} "
                f"{each:10.1f}"
            )
        x, y = (np.log([row[key] for row in rows[-3:]]) for key in ("chips", "cpu_s"))
        exponent = float(np.polyfit(x, y, 1)[0])
        print(f"{name:36} time ~ chips^{exponent:.2f}\n")
        tables[name] = {"rows": rows, "exponent": exponent}
    if options.out:
        machine = {"python": platform.python_version(), "numpy": np.__version__, "processor": platform.machine()}
        options.out.write_text(
            json.dumps({"days": options.days, "machine": machine, "tables": tables}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
