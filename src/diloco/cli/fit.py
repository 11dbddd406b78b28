"""`diloco fit ROWS`: a scaling law from a table of runs, with intervals and a hold-out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from diloco.cli.law_input import gather_pairs, joined, numbers, pairs, several
from diloco.cli.options import Common, parse
from diloco.cli.outputs import check_outputs
from diloco.cli.show import print_json, progress, warn
from diloco.errors import BadInput

if TYPE_CHECKING:
    from diloco.laws import Comparison, HyperparameterLaws, Law, Rows

_PAIRS = ("--map", "--where", "--fixed")


@dataclass(frozen=True)
class FitOptions(Common):
    """Fits a scaling law to runs and says how far it can be trusted: intervals, hold-out of the largest size, outliers.

    ROWS is a CSV, TSV, JSONL, JSON or parquet file with a row per run, a run folder or a folder of them, or several of
    these. Columns are named as in a run's row.csv (params, tokens, replicas, loss, ...); usual other names are known.
    """

    rows: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ROWS...")] = ()
    """Tables of runs or run folders."""
    form: str = "power-floor"
    """A name (power, power-floor, sum-floor, coupled-floor, article, chinchilla, tied, chinchilla-replicas,
    saturating, broken) or an expression over columns, such as 'A*params^a*replicas^b + floor'."""
    compare_forms: bool = False
    """Fit every form that the rows allow and take the one with the lowest hold-out error."""
    map: tuple[str, ...] = ()
    """Columns under other names, as in loss=val_bpb params=size."""
    where: tuple[str, ...] = ()
    """Only rows with these values, as in method=diloco; a name given twice takes rows of either value."""
    pool: str = ""
    """Text columns, with commas between, that may hold different values: tokenizer,dataset. Mixtures are refused
    otherwise."""
    target: str = "loss"
    """Column to fit."""
    bad: Literal["refuse", "drop"] = "refuse"
    """What to do with rows that cannot be used: stop and name them, or leave them out and name them."""
    fixed: tuple[str, ...] = ()
    """Coefficients of the form that are given, not fitted, as in floor=1.69."""
    loss: Literal["robust", "mse", "huber"] = "robust"
    """On log residuals. robust leaves outliers out, by name; huber has a fixed delta of 0.001."""
    use_loss_se: bool = False
    """Weigh each run by its standard error in column loss_se."""
    level: float = 0.95
    """Of the intervals, as a share."""
    seed: int = 0
    """Of the random starts that check the optimum."""
    hyperparameters: str = ""
    """File to write: ROWS are a sweep over inner_lr, batch_tokens and perhaps outer_lr at several sizes; fits laws of
    the best values, and the loss law to each sweep's best run."""
    out: str = ""
    """File to write the law to (JSON), for `diloco predict`, `advise` and `next-runs`."""
    report: str = ""
    """Page to write (HTML, opens offline)."""
    png: str = ""
    """Folder to write the figures to as PNG (extra [plots])."""

    def __post_init__(self) -> None:
        if not self.rows:
            raise BadInput("ROWS is missing: give a table of runs or run folders, as in `diloco fit rows.csv`")


def run(arguments: list[str]) -> int:
    options = parse(FitOptions, joined(gather_pairs(arguments, _PAIRS), "--form"), "fit")
    from diloco.laws.arguments import speaking_flags

    if options.compare_forms and options.form != FitOptions.form:
        warn(f"--form {options.form} has no effect: --compare-forms takes every form that the rows allow")
    with speaking_flags():
        answer = _fit(options)
    if options.json:
        print_json(answer)
    else:
        from diloco.cli.fit_text import say

        say(answer)
    return 0


def _fit(options: FitOptions) -> dict[str, Any]:
    """The answer as one JSON-ready object, with the files written that were asked for."""
    from diloco.laws import compare_forms, fit_law
    from diloco.laws.figures import NAMES
    from diloco.laws.tables import files_of

    files = {"out": options.out, "hyperparameters": options.hyperparameters, "report": options.report}
    pictures = {"png": (options.png, [f"{name}.png" for name in NAMES])}
    check_outputs(files, [file for source in options.rows for file in files_of(Path(source))], pictures)
    if options.png:
        from diloco.watch.law_png import need_matplotlib

        need_matplotlib(f"--png {options.png}", "--report")
    with progress("fitting", quiet=options.json) as update:
        rows, rates = _rows(options)
        settings = {
            "target": options.target,
            "loss": options.loss,
            "fixed": numbers(options.fixed, "fixed", "floor=1.69"),
            "use_loss_se": options.use_loss_se,
            "level": options.level,
            "seed": options.seed,
        }
        update("fitting", 0.3)
        comparison = compare_forms(rows, **settings) if options.compare_forms else None
        law = comparison.best if comparison else fit_law(rows, options.form, **settings)
        update("writing", 0.7)
        written = _write(options, law, rows, comparison, rates)
        counting = _counting(rows, law, settings)
    return law.report() | {
        "comparison": comparison.table() if comparison else [],
        "left_out_forms": comparison.left_out if comparison else {},
        "counting": counting,
        "hyperparameters": _rates_record(rates),
        "files": {name: str(path) for name, path in written.items()},
    }


def _rows(options: FitOptions) -> tuple[Rows, HyperparameterLaws | None]:
    from diloco.laws import fit_hyperparameters, read_rows

    source = options.rows[0] if len(options.rows) == 1 else list(options.rows)
    rows = read_rows(
        source,
        rename=pairs(options.map, "map", "loss=val_bpb"),
        where=several(options.where, "where", "method=diloco"),
        pool=[name.strip() for name in options.pool.split(",") if name.strip()],
        target=options.target,
        bad=options.bad,
    )
    if not options.hyperparameters:
        return rows, None
    rates = fit_hyperparameters(rows)
    return rates.best_runs(), rates


def _counting(rows: Rows, law: Law, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The law under each way to count parameters, where the rows have several."""
    from diloco.laws import counting_table
    from diloco.laws.axes import COUNTING_AXES

    if "params" not in law.form.axes or not all(rows.has(axis) for axis in COUNTING_AXES):
        return None
    return counting_table(rows, law.form, **settings)


def _rates_record(rates: HyperparameterLaws | None) -> dict[str, Any] | None:
    if rates is None:
        return None
    return {
        "optima": [vars(best) for best in rates.optima],
        "laws": {quantity: law.coefficients for quantity, law in rates.joint.items()},
        "outer_lr": {f"{replicas:g}": value for replicas, value in rates.outer_lr.items()},
        "notes": list(rates.notes),
    }


def _write(
    options: FitOptions, law: Law, rows: Rows, comparison: Comparison | None, rates: HyperparameterLaws | None
) -> dict[str, Path]:
    written: dict[str, Path] = {}
    if options.out:
        with _writing("out", options.out) as written["law"]:
            law.save(options.out)
    if rates is not None:
        with _writing("hyperparameters", options.hyperparameters) as written["hyperparameters"]:
            rates.save(options.hyperparameters)
    if options.report or options.png:
        written |= _draw(options, law, rows, comparison)
    return written


def _draw(options: FitOptions, law: Law, rows: Rows, comparison: Comparison | None) -> dict[str, Path]:
    from diloco.laws.figures import figures

    pictures = figures(law)
    written: dict[str, Path] = {}
    if options.report:
        from diloco.watch.law_page import write_law_page

        forms = comparison.table() if comparison else ()
        with _writing("report", options.report) as written["report"]:
            write_law_page(options.report, law.report(), pictures, forms)
    if options.png:
        from diloco.watch.law_png import write_law_pngs

        with _writing("png", options.png):
            written |= {f"{path.stem}_png": path for path in write_law_pngs(options.png, pictures)}
    return written


@contextmanager
def _writing(option: str, path: str) -> Iterator[Path]:
    """The path, in a folder that exists; what the system says against writing it as one BadInput."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        yield Path(path)
    except OSError as error:
        raise BadInput(f"--{option} {path} cannot be written ({error.strerror}): give another") from error
