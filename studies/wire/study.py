"""What codecs and schedules cost in loss: every line against plain fp32 DiLoCo on the same tokens, seeds 1, 2, 3.

    python studies/wire/study.py run [--jobs 1] [--only NAME ...] [--seeds 1 2 3]     # one child process a run
    python studies/wire/study.py table [--seeds 1 2 3]     # Markdown from rows.csv
    python studies/wire/study.py figure                    # loss.svg from rows.csv

Finished runs are read back from rows.csv and not repeated; a line's three seeds are finished before the next line.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from diloco import units
from diloco.outer.codec import get_codec
from diloco.watch.runfolder import RunFolder, atomic_write_text
from diloco.watch.student import t_quantile

HERE = Path(__file__).parent
ROWS, FIGURE = HERE / "rows.csv", HERE / "loss.svg"
SEEDS = (1, 2, 3)
STEPS = 800
BAR = 1.0
"""% of plain's loss: the most that streaming with 4-bit values may cost."""
AXIS = (-1.0, 4.0)
"""% of plain's loss that the figure shows."""
COLUMNS = (
    "line", "seed", "steps", "tokens", "params", "loss", "loss_se", "rounds", "fragments", "bytes_sent",
    "site_bytes_sent", "compute_s", "encode_s", "seconds",
)  # fmt: skip
"""`bytes_sent` is per replica, of which `site_bytes_sent` stay inside a site."""


@dataclass(frozen=True)
class Line:
    name: str
    what: str
    """As in a table: what differs from plain DiLoCo."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Changes to `TrainConfig`."""


STREAMING = {"fragments": "strided:2", "overlap": "5", "mixing": "0.5"}
PLAIN = "plain"


def _codec(spec: str) -> Line:
    return Line(spec, f"codec {spec}, {'with' if get_codec(spec).feedback else 'no'} error feedback", {"codec": spec})


LINES = (
    Line(PLAIN, "DiLoCo, fp32, whole model at once"),
    Line("streaming", "strided:2, overlap 5, mixing 0.5", STREAMING),
    Line("streaming-e3m0", "strided:2, overlap 5, mixing 0.5, codec e3m0", {**STREAMING, "codec": "e3m0"}),
    _codec("e3m0"),
    Line("dp", "data parallel, fp32 gradients", {"method": "dp"}),
    _codec("int8"),
    _codec("e3m0-ef"),
    _codec("int4"),
    _codec("topk:0.01"),
    _codec("topk:0.1"),
    Line("delayed", "overlap delayed", {"overlap": "delayed"}),
    Line("eager", "overlap eager", {"overlap": "eager"}),
    Line("strided", "strided:2, no overlap", {"fragments": "strided:2"}),
    Line("streaming-mixing0", "strided:2, overlap 5, mixing 0", {**STREAMING, "mixing": "0"}),
    Line(
        "streaming-mixing0-e3m0",
        "strided:2, overlap 5, mixing 0, codec e3m0",
        {**STREAMING, "mixing": "0", "codec": "e3m0"},
    ),
    Line("streaming-rebase", "strided:2, overlap 5, mixing rebase", {**STREAMING, "mixing": "rebase"}),
    Line(
        "streaming-rebase-e3m0",
        "strided:2, overlap 5, mixing rebase, codec e3m0",
        {**STREAMING, "mixing": "rebase", "codec": "e3m0"},
    ),
    _codec("bf16"),
    _codec("randk:0.01"),
    _codec("fp16"),
    Line("taper", "interval taper:0.5=100", {"interval": "taper:0.5=100"}),
    Line("smooth", "interval smooth:25", {"interval": "smooth:25"}),
    Line("adaptive", "interval adaptive:10-200", {"interval": "adaptive:10-200"}),
    Line("sites", "2 sites, averaged inside every 10 steps", {"sites": 2, "site_every": 10}),
    Line(
        "sequential-e3m0",
        "sequential:2, overlap 5, mixing 0.5, codec e3m0",
        {**STREAMING, "fragments": "sequential:2", "codec": "e3m0"},
    ),
    _codec("int8+ef"),
    _codec("int4-ef"),
    _codec("topk:0.01-ef"),
    Line("trimmed", "merge trimmed:0.25", {"merge": "trimmed:0.25"}),
    Line("clipped", "merge clipped:1.0", {"merge": "clipped:1.0"}),
    Line("rda", "merge rda", {"merge": "rda"}),
    _codec("topk:0.01:2"),
)


# -- run


def run_one(task: tuple[str, int]) -> dict[str, Any] | None:
    """One run in this process, its folder thrown away. Returns its row; None where another process had it by now."""
    from diloco.train.config import TrainConfig
    from diloco.train.data import DataConfig
    from diloco.train.inner import InnerConfig
    from diloco.train.loop import train

    name, seed = task
    if task in finished():
        return None
    line = next(line for line in LINES if line.name == name)
    base = TrainConfig(
        size="1m", replicas=4, sync_every=50, batch_tokens=512, steps=STEPS, inner=InnerConfig(lr=3e-3),
        data=DataConfig(seq_len=64), eval_every=-1, checkpoint_every=0, threads=1,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        receipt = train(replace(base, **line.settings, seed=seed, runs=folder, name="run"), quiet=True)
        row = RunFolder(Path(folder) / "run").row
    known = {**receipt, **row, "line": name, "seed": seed, "rounds": len(receipt.get("rounds", ()))}
    return {column: known.get(column) for column in COLUMNS}


def run_all(jobs: int, only: Sequence[str] | None, seeds: Sequence[int]) -> None:
    known = [line.name for line in LINES]
    lines = [name for name in known if only is None or name in only]
    if unknown := set(only or ()) - set(known):
        raise SystemExit(f"--only is {unknown.pop()!r}: give one of {', '.join(known)}")
    done = finished()
    tasks = [(name, seed) for name in lines for seed in seeds if (name, seed) not in done]
    # Spawned, and one run a process, so that no run inherits anything from another.
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        for row in pool.imap_unordered(run_one, tasks, chunksize=1):
            if row is None:
                continue
            _append(row)
            print(f"{row['line']} seed {row['seed']}: {row['loss']:.4f} in {row['seconds']:.0f} s", flush=True)


def _append(row: dict[str, Any]) -> None:
    fresh = not ROWS.exists()
    with open(ROWS, "a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerow(row)


def read_rows() -> list[dict[str, str]]:
    if not ROWS.exists():
        return []
    with open(ROWS, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def finished() -> set[tuple[str, int]]:
    return {(r["line"], int(r["seed"])) for r in read_rows()}


# -- table and figure


@dataclass(frozen=True)
class Outcome:
    """A line's finished seeds. Differences are in % of plain's loss with the same seed."""

    line: Line
    losses: list[float]
    differences: list[float]
    rounds: float
    sent_bytes: float
    sent_ratio: float
    """Of the bytes that plain sends."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """95%, for the mean difference; None for one seed and for plain itself."""
        n = len(self.differences)
        if n < 2 or self.line.name == PLAIN:
            return None
        half = t_quantile(0.975, n - 1) * stdev(self.differences) / n**0.5
        return fmean(self.differences) - half, fmean(self.differences) + half

    @property
    def verdict(self) -> str:
        if self.interval is None:
            return "the yardstick" if self.line.name == PLAIN else "one seed"
        low, high = self.interval
        if high < 0:
            return "better"
        if high <= BAR:
            return "within 1%"
        if low > BAR:
            return "costs more than 1%"
        return "1% or less on average" if fmean(self.differences) <= BAR else "more than 1% on average"


def outcomes(rows: list[dict[str, str]], seeds: Sequence[int] = SEEDS) -> list[Outcome]:
    """The lines with a finished seed that plain has too, best first."""
    runs = {(r["line"], int(r["seed"])): r for r in rows}
    found = []
    for line in LINES:
        pairs = [(runs[line.name, s], runs[PLAIN, s]) for s in seeds if {(line.name, s), (PLAIN, s)} <= runs.keys()]
        if not pairs:
            continue
        losses, yardstick = ([float(pair[i]["loss"]) for pair in pairs] for i in (0, 1))
        sent, plain_sent = (fmean(int(pair[i]["bytes_sent"]) for pair in pairs) for i in (0, 1))
        differences = [100 * (a / b - 1) for a, b in zip(losses, yardstick, strict=True)]
        rounds = fmean(int(run["rounds"]) for run, _ in pairs)
        found.append(Outcome(line, losses, differences, rounds, sent, sent / plain_sent))
    return sorted(found, key=lambda outcome: fmean(outcome.differences))


def table(rows: list[dict[str, str]], seeds: Sequence[int] = SEEDS) -> str:
    columns = ["line", "what differs from plain", "held-out loss", "against plain", "95% interval", "verdict"]
    columns += ["rounds", "sent per replica", "of plain's"]
    lines = [f"| {' | '.join(columns)} |", "| --- | --- | --: | --: | --: | --- | --: | --: | --: |"]
    for o in outcomes(rows, seeds):
        cells = [o.line.name, o.line.what, _spread(o.losses, ".4f")]
        cells += ["-" if o.line.name == PLAIN else f"{_spread(o.differences, '+.2f')}%"]
        cells += ["{:+.2f}% to {:+.2f}%".format(*o.interval) if o.interval else "-", o.verdict]
        cells += [f"{o.rounds:.0f}", units.format_bytes(o.sent_bytes), f"{o.sent_ratio:.3g}"]
        lines.append(f"| {' | '.join(cells)} |")
    done = {(r["line"], int(r["seed"])) for r in rows}
    missing = [line.name for line in LINES if not {(line.name, s) for s in seeds} <= done]
    return "\n".join([*lines, *([f"\nNot run with all seeds: {', '.join(missing)}."] if missing else [])])


def _spread(values: list[float], form: str) -> str:
    sd = f" ± {stdev(values):{form.lstrip('+')}}" if len(values) > 1 else ""
    return f"{fmean(values):{form}}{sd}"


def figure(rows: list[dict[str, str]]) -> str:
    """SVG: a row per line, best on top; a dot per seed, a bar for the mean, against plain; a number where it is beyond
    the axis."""
    shown, (low, high) = outcomes(rows), AXIS
    left, width, row_px = 170, 420, 22
    right, bottom = left + width + 90, row_px * len(shown) + 8

    def x(percent: float) -> float:
        return left + width * (percent - low) / (high - low)

    def text(at: float, y: float, anchor: str, words: str) -> str:
        return f'<text x="{at:.1f}" y="{y}" text-anchor="{anchor}">{words}</text>'

    parts = [f'<rect x="{x(0):.1f}" width="{x(BAR) - x(0):.1f}" height="{bottom}" fill="#0f9d78" opacity=".15"/>']
    parts += [f'<line x1="{x(0):.1f}" x2="{x(0):.1f}" y1="0" y2="{bottom}" stroke="#878d96"/>']
    for index, o in enumerate(shown):
        y, mean = row_px * (index + 0.5) + 4, fmean(o.differences)
        parts.append(text(left - 12, y + 4, "end", o.line.name))
        parts.append(text(right, y + 4, "end", units.format_bytes(o.sent_bytes)))
        if not low <= mean <= high:
            at, anchor = (x(low), "start") if mean < low else (x(high), "end")
            parts.append(text(at, y + 4, anchor, units.format_change(mean)))
            continue
        parts += [f'<circle cx="{x(d):.1f}" cy="{y}" r="4" fill="#2f7fd1" opacity=".7"/>' for d in o.differences]
        parts.append(f'<rect x="{x(mean) - 1.5:.1f}" y="{y - 8}" width="3" height="16" fill="#2f7fd1"/>')
    parts += [
        text(x(tick), bottom + 16, "middle", units.format_change(tick)) for tick in range(int(low), int(high) + 1)
    ]
    parts.append(text(right, bottom + 16, "end", "sent"))
    caption = "held-out loss against plain fp32 DiLoCo with the same seed; band: within 1%"
    parts.append(text(left + width / 2, bottom + 36, "middle", caption))
    size = f'width="{right + 10}" height="{bottom + 44}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><rect width="100%" height="100%" fill="#ffffff"/>'
        '<g style="font: 12px system-ui, sans-serif" fill="#1b1f24">\n' + "\n".join(parts) + "\n</g></svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(dest="stage", required=True)
    run = stages.add_parser("run")
    run.add_argument("--jobs", type=int, default=1, help="runs at a time, one core each")
    run.add_argument("--only", metavar="NAME", nargs="+", help="these lines instead of all")
    for stage in (run, stages.add_parser("table")):
        stage.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    stages.add_parser("figure")
    arguments = parser.parse_args()
    if arguments.stage == "run":
        run_all(arguments.jobs, arguments.only, arguments.seeds)
    elif arguments.stage == "table":
        print(table(read_rows(), arguments.seeds))
    else:
        atomic_write_text(FIGURE, figure(read_rows()))


if __name__ == "__main__":
    main()
