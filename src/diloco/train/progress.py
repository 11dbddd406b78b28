"""The progress bar: loss, tokens/s, bytes sent and how fast."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from torch import Tensor

from diloco.outer.report import RoundReport
from diloco.train.config import TrainConfig
from diloco.train.evaluate import Evaluation
from diloco.train.world import world_size

REFRESH_S = 0.5
LINE_S = 30.0
"""Where stderr is no terminal, a plain line this often instead of a bar."""


class Progress:
    """Writes to stderr, so that stdout is left to results. A context manager."""

    def __init__(self, config: TrainConfig, show: bool) -> None:
        self.config, self.show = config, show
        self.console = Console(stderr=True, quiet=not show)
        self.bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[status]}"),
            console=self.console,
            disable=not (show and self.console.is_terminal),
        )
        self.task = self.bar.add_task("data", total=None, status="", start=True)
        self.heldout, self.bytes_sent, self.wire_s, self.shown_at = "", 0, 0.0, 0.0
        self.begun_at, self.begun_step = time.perf_counter(), 0

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    def tokenising(self, source: str, fraction: float) -> None:
        self.bar.update(self.task, description=f"tokenising {source}", completed=fraction, total=1.0)

    def begin(self, step: int, total_steps: int) -> None:
        self.begun_at, self.begun_step = time.perf_counter(), step
        self.bar.update(self.task, description=self.config.run_name, completed=step, total=total_steps)

    def synced(self, report: RoundReport) -> None:
        self.bytes_sent += report.bytes_sent
        self.wire_s += report.wire_s
        if report.left_out:
            self.say(
                f"round {report.round}: replica {report.left_out} was not finite; left out and reset from the anchor"
            )

    def evaluated(self, step: int, result: Evaluation) -> None:
        self.heldout = f"held-out {result.loss:.4f}"

    def advance(self, step: int, rows: list[Tensor]) -> None:
        """`rows`: [nll, gradient norm] of this process's replicas for the steps of the open window."""
        now = time.perf_counter()
        terminal = self.console.is_terminal
        if not self.show or now - self.shown_at < (REFRESH_S if terminal else LINE_S):
            return
        self.shown_at = now
        status = self._status(step, now, rows)
        if terminal:
            self.bar.update(self.task, completed=step, status=status)
        else:
            self.say(f"{self.config.run_name} step {step} {status}")

    def _status(self, step: int, now: float, rows: list[Tensor]) -> str:
        rate = (step - self.begun_step) * self.config.batch_tokens / max(now - self.begun_at, 1e-9)
        whose = "loss" if world_size() is None else "replica 0 loss"
        parts = [f"{whose} {rows[-1][:, 0].mean().item():.4f}"] if rows else []
        parts += [self.heldout] if self.heldout else []
        parts.append(f"{rate:,.0f} tokens/s")
        if self.config.method != "dp":
            parts.append(f"sent {self.bytes_sent / 1e6:.1f} MB")
            # In one process without a link bytes are only copied: that is no bandwidth.
            travels = self.wire_s > 0 and (self.config.link or world_size() is not None)
            parts += [f"at {8e-6 * self.bytes_sent / self.wire_s:,.0f} Mbit/s"] if travels else []
        return "  ".join(parts)
