"""`diloco compare RUN...`: runs side by side, in the terminal and as a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from diloco.cli.options import Common, parse
from diloco.cli.show import print_json, progress
from diloco.errors import BadInput

if TYPE_CHECKING:
    from rich.table import Table

    from diloco.watch.compare import Comparison

SHOWN = ("method", "replicas", "sync_every", "inner_lr", "outer_lr", "outer_momentum")
LABELS = {"replicas": "M", "sync_every": "H", "inner_lr": "inner lr", "outer_lr": "outer lr", "outer_momentum": "mom."}


@dataclass(frozen=True)
class CompareOptions(Common):
    """Sets finished runs side by side. Runs that differ only in the seed form a group."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")] = ()
    """Run folders, as `diloco train` made them."""
    out: str = "compare.html"
    """Page to write: the table, final losses and loss curves."""


def run(arguments: list[str]) -> int:
    options = parse(CompareOptions, arguments, "compare")
    from diloco.watch.compare import compare
    from diloco.watch.report import write_comparison

    comparison = compare(options.runs)
    with progress("drawing", quiet=options.json):
        try:
            page = write_comparison(options.runs, options.out)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise BadInput(f"out is {options.out}, which cannot be written ({reason}): give another") from error
    if options.json:
        print_json({"groups": comparison.table(), "notes": comparison.notes, "page": str(page)})
        return 0
    _console().print(table_of(comparison))
    for note in comparison.notes:
        print(note)
    print(f"page {page}")
    return 0


def table_of(comparison: Comparison) -> Table:
    """A line per group of runs, best mean loss first."""
    from rich.table import Table

    lines = comparison.table()
    extra = [s for s in comparison.shown_settings if s not in SHOWN]
    columns = [*(s for s in SHOWN if any(line[s] is not None for line in lines)), *extra]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            LABELS.get(column, column.replace("_", " ")), justify="left" if column == "method" else "right"
        )
    for heading in ("seeds", "loss, nats per token", "against dp", "95% interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("note")
    for line in lines:
        results = (str(line["n"]), _loss(line), _percent(line["difference_percent"]), _interval(line), line["note"])
        table.add_row(*(_cell(line[column]) for column in columns), *results)
    return table


def _console() -> Any:
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=200)


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _loss(line: dict) -> str:
    if line["loss_mean"] is None:
        return "diverged"
    return f"{line['loss_mean']:.4f}" + ("" if line["loss_sd"] is None else f" ± {line['loss_sd']:.4f}")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}%"


def _interval(line: dict) -> str:
    low, high = line["difference_low_percent"], line["difference_high_percent"]
    return "-" if low is None else f"{low:+.2f}% to {high:+.2f}%"
