"""A scaling law as one HTML page that opens offline: hold-out first, then notes, pictures and tables.

Reads the plain data of `Law.report()` and `diloco.laws.figures`, so that it needs neither of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diloco import units
from diloco.watch import page
from diloco.watch.law_charts import contour_chart, holdout_chart, loss_chart
from diloco.watch.law_words import (
    axis_title,
    axis_value,
    coefficient,
    ends,
    law_title,
    percent,
    pull_heads,
    signed_percent,
)

_SHOWN_INFLUENCES = 12


def write_law_page(
    path: str | Path, report: dict[str, Any], figures: dict[str, Any], forms: Sequence[dict[str, Any]] = ()
) -> Path:
    """Write the page of a law and return its path.

    Args:
        report: `law.report()`.
        figures: `laws.figures(law)`.
        forms: `Comparison.table()`, where several forms were compared.
    """
    body = [
        page.heading(f"diloco scaling law {report['law']}", law_title(report["target"], report["expression"])),
        _headline(report),
        _facts(report),
        page.section("Read before use", page.notes(report["notes"])) if report["notes"] else "",
        loss_chart(figures["loss"]),
        holdout_chart(figures["holdout"]),
        contour_chart(figures["contours"]),
        coefficients_section(report),
        holdout_section(report),
        influence_section(report),
        forms_section(forms),
        _origin_section(report),
    ]
    return page.write_page(Path(path), f"law {report['law']} \N{EN DASH} diloco", body)


def _headline(report: dict[str, Any]) -> str:
    splits = report["holdout"]["splits"] if report["holdout"] else []
    if not splits:
        why = report["holdout"]["impossible"] if report["holdout"] else "it was not asked for"
        lines = [f"no hold-out: {why}", "so nothing here says how well it extrapolates"]
        return page.headline(percent(report["rms_residual_pct"]), "off its own runs (root mean square)", lines)
    first, size, level = splits[0], report["holdout"]["size_axis"], report["holdout"]["level"]
    lines = [
        f"The {first['tested']} runs above {axis_value(size, first['trained_to'])}, predicted from the "
        f"{first['trained']} others: {first['inside_share']:.0%} lie inside the law's own {level:.0%} "
        f"interval of {_plus_minus(first['half_width_pct'])}.",
        f"For comparison: the largest run carried over is {percent(first['carried_error_pct'])} off, a power law "
        f"without a floor {percent(first['log_linear_error_pct'])}.",
    ]
    if first["set_aside"]:
        lines.append(
            f"Set aside as outliers to the fit: {first['set_aside']} more of these runs; with all of them the mean "
            f"error is {percent(first['mean_error_with_all_pct'])}."
        )
    unit = f"mean error with the largest {axis_title(size)} held out"
    return page.headline(percent(first["mean_error_pct"]), unit, lines)


def _facts(report: dict[str, Any]) -> str:
    certificate = report["certificate"]
    return page.facts(
        [
            ("form", report["form"]),
            ("runs", str(certificate["rows"])),
            ("left out as outliers", str(certificate["rows_left_out"])),
            ("noise of a run", percent(report["noise_pct"])),
            ("degrees of freedom", f"{certificate['dof']:.4g}"),
            *_optimum(report["exact"], certificate),
        ]
    )


def _optimum(exact: bool, certificate: dict[str, Any]) -> list[tuple[str, str]]:
    """How sure the optimum is; of an exact fit there is nothing to doubt."""
    if exact:
        return [("optimum", "exact: none can be better")]
    runner_up = certificate["runner_up"]
    return [
        ("starts that agree", f"{certificate['agree_share']:.0%} of {certificate['starts']}"),
        ("next best optimum", f"{runner_up:.3g} \N{MULTIPLICATION SIGN} error" if runner_up else "none found"),
    ]


def coefficients_section(report: dict[str, Any]) -> str:
    """Each coefficient with its interval."""
    rows, axes = [], report["runs"][0]
    for key, value in report["coefficients"].items():
        interval = report["intervals"].get(key)
        if key == "floor" and value == 0:
            between = "the form has none"
        else:
            between = ends(interval) if interval else "the runs give none"
        exponent = key.partition(":")[0].partition("*")[0] in axes
        rows.append((f"exponent of {key}" if exponent else key, coefficient(value), between))
    columns = ("coefficient", "value", f"{report['level']:.0%} interval")
    return page.section("Coefficients", page.table(columns, rows))


def holdout_section(report: dict[str, Any]) -> str:
    """A line per split: trained on the smaller runs, tested on the larger."""
    if not report["holdout"] or not report["holdout"]["splits"]:
        return ""
    size = report["holdout"]["size_axis"]
    has_outliers = any(split["set_aside"] for split in report["holdout"]["splits"])
    rows = [
        (
            f"up to {axis_value(size, split['trained_to'])}",
            f"{split['trained']} / {split['tested']}",
            *([str(split["set_aside"])] if has_outliers else []),
            percent(split["mean_error_pct"]),
            *([percent(split["mean_error_with_all_pct"])] if has_outliers else []),
            signed_percent(split["bias_pct"]),
            f"{split['inside_share']:.0%}",
            _plus_minus(split["half_width_pct"]),
            percent(split["carried_error_pct"]),
            percent(split["log_linear_error_pct"]),
        )
        for split in report["holdout"]["splits"]
    ]
    errors = ("set aside", "mean error", "with those") if has_outliers else ("mean error",)
    columns = (
        "trained", "runs: fitted / tested", *errors, "bias", "inside", "interval", "last run carried over",
        "power without floor",
    )  # fmt: skip
    return page.section("Hold-out", page.table(columns, rows))


def influence_section(report: dict[str, Any]) -> str:
    """What leaving a run or a size out would do."""
    items = report["holdout"]["influence"] if report["holdout"] else []
    if not items:
        return ""
    exponents = list(dict.fromkeys(name for item in items for name in item["moves"]))
    rows = [
        (
            item["what"],
            signed_percent(item["error_pct"]),
            f"{item['z']:+.1f}",
            *(f"{item['moves'][name]:+.2f}" if name in item["moves"] else units.NONE for name in exponents),
        )
        for item in items[:_SHOWN_INFLUENCES]
    ]
    columns = ("left out", "off that law", "in sd", *pull_heads(exponents))
    return page.folded("What single runs and sizes pull", page.table(columns, rows))


def forms_section(forms: Sequence[dict[str, Any]]) -> str:
    """The forms that were compared, best hold-out first."""
    if not forms:
        return ""
    rows = [
        (
            line["form"],
            line["expression"],
            percent(line["holdout_error_pct"]),
            percent(line["largest_out_error_pct"]),
            percent(line["rms_residual_pct"]),
            "yes" if line["indistinguishable"] else "no",
        )
        for line in forms
    ]
    columns = ("form", "expression", "hold-out error", "largest size", "off its own runs", "as good as the best")
    return page.section("Forms compared", page.table(columns, rows, text_columns=2))


def _origin_section(report: dict[str, Any]) -> str:
    versions = {f"version of {name}": version for name, version in report["versions"].items()}
    origin = {"source of the form": report["source"] or units.NONE, "hash of the rows": report["data_hash"]}
    pairs = (origin | report["settings"] | versions).items()
    return page.folded("Where it comes from", page.facts((name.replace("_", " "), str(value)) for name, value in pairs))


def _plus_minus(value: float | None) -> str:
    return "unknown width" if value is None else f"\N{PLUS-MINUS SIGN}{percent(value)}"
