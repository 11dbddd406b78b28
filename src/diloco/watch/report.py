"""Self-contained HTML: one run's report, and several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from diloco.watch import compare_page, page, round_charts, run_page
from diloco.watch.compare import compare
from diloco.watch.runfolder import REPORT, RunFolder
from diloco.watch.summary import summarize


def write_report(run_path: str | Path) -> Path:
    """Write report.html into the run folder, of a run that has ended or one that goes on, and return its path.

    Raises:
        BadInput: `run_path` is no run folder, or a file in it cannot be read.
    """
    run = RunFolder(run_path)
    summary = summarize(run)
    body = [
        page.heading(run_page.kicker(summary), run.name),
        run_page.run_headline(summary),
        run_page.run_facts(summary),
        run_page.loss_chart(summary),
        round_charts.round_charts(summary),
        run_page.events_section(summary, list(run.events(kinds={"note"}))),
        run_page.receipt_section(run.receipt),
        run_page.config_section(run.config),
    ]
    return page.write_page(run.path / REPORT, f"{run.name} \N{EN DASH} diloco", body)


def write_comparison(run_paths: Sequence[str | Path], out_html: str | Path) -> Path:
    """Write a page that sets the runs in `run_paths` side by side, and return its path.

    Raises:
        BadInput: as `compare`.
    """
    comparison = compare(run_paths)
    summaries = [summarize(run) for run in comparison.runs]
    body = [
        page.heading("diloco comparison", f"{len(comparison.runs)} runs, {len(comparison.groups)} settings"),
        compare_page.comparison_headline(comparison),
        page.notes(comparison.notes),
        compare_page.final_chart(comparison),
        compare_page.comparison_table_section(comparison),
        compare_page.curves_chart(comparison, summaries),
        compare_page.link_chart(comparison, summaries),
    ]
    return page.write_page(Path(out_html), "comparison \N{EN DASH} diloco", body)
