"""A fitted law in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from diloco.cli.show import table, wide_console
from diloco.watch.law_words import MINUS, coefficient, ends, percent, pull_heads, signed_percent

_SHOWN_INFLUENCES = 5


def say(answer: dict[str, Any]) -> None:
    """Print what `diloco fit` found; `answer` is its JSON."""
    from diloco.laws.arguments import counted

    console = wide_console()
    certificate = answer["certificate"]
    starts = f"{certificate['agree_share']:.0%} of {certificate['starts']} random starts end at this optimum"
    print(f"{answer['target']} = {answer['expression']}   ({answer['form']}, law {answer['law']})")
    runs = f"{counted(certificate['rows'], 'run')}, {certificate['rows_left_out']} left out"
    print(f"{runs}, noise {percent(answer['noise_pct'])}, {'which is an exact fit' if answer['exact'] else starts}")
    console.print()
    console.print(coefficients_table(answer))
    _say_holdout(console, answer)
    if answer["comparison"]:
        console.print("\nforms, best hold-out first")
        console.print(forms_table(answer["comparison"]))
        for form, why in answer["left_out_forms"].items():
            print(f"not compared: {form}: {why}")
    if answer["counting"]:
        print(f"\n{answer['counting']['verdict']}")
    print()
    _say_rates(answer["hyperparameters"])
    for note in answer["notes"]:
        print(f"note: {note}")
    for name, path in answer["files"].items():
        print(f"{name} {path}")


def coefficients_table(answer: dict[str, Any]) -> Any:
    lines = []
    for key, value in answer["coefficients"].items():
        interval = answer["intervals"].get(key)
        lines.append((key, coefficient(value), ends(interval)))
    return table(("coefficient", "value", f"{answer['level']:.0%} interval"), lines)


def holdout_table(holdout: dict[str, Any]) -> Any:
    has_outliers = any(split["set_aside"] for split in holdout["splits"])
    lines = [
        (
            f"{holdout['size_axis']} to {split['trained_to']:.4g}",
            str(split["trained"]),
            str(split["tested"]),
            *([str(split["set_aside"])] if has_outliers else []),
            percent(split["mean_error_pct"]),
            *([percent(split["mean_error_with_all_pct"])] if has_outliers else []),
            _signed(split["bias_pct"]),
            f"{split['inside_share']:.0%}",
            f"± {percent(split['half_width_pct'])}",
            percent(split["carried_error_pct"]),
            percent(split["log_linear_error_pct"]),
        )
        for split in holdout["splits"]
    ]
    counts = ("tested", "set aside", "error", "error with those") if has_outliers else ("tested", "error")
    return table(("trained on", "runs", *counts, "bias", "inside", "interval", "carried over", "no floor"), lines)


def forms_table(comparison: Sequence[dict[str, Any]]) -> Any:
    lines = [
        (
            line["form"],
            line["expression"],
            percent(line["holdout_error_pct"]),
            percent(line["rms_residual_pct"]),
            "yes" if line["indistinguishable"] else "no",
        )
        for line in comparison
    ]
    return table(("form", "expression", "hold-out error", "off its own runs", "as good as the best"), lines, 2)


def _say_holdout(console: Any, answer: dict[str, Any]) -> None:
    holdout = answer["holdout"]
    if holdout["splits"]:
        console.print("\nhold-out: fitted on the smaller runs, asked for the larger; beside it two dumb baselines")
        console.print(holdout_table(holdout))
    pulls = [item for item in holdout["influence"] if item["index"] is not None][:_SHOWN_INFLUENCES]
    if pulls:
        console.print("\nleaving one run out: the runs that the others predict worst")
        moved = list(dict.fromkeys(name for item in pulls for name in item["moves"]))
        lines = [
            (
                item["what"],
                _signed(item["error_pct"]),
                f"{item['z']:+.1f}",
                *(f"{item['moves'].get(name, 0.0):+.2f}" for name in moved),
            )
            for item in pulls
        ]
        console.print(table(("run", "off that law", "in sd", *pull_heads(moved)), lines))


def _say_rates(rates: dict[str, Any] | None) -> None:
    if not rates:
        return
    from diloco.laws.arguments import counted

    for quantity, coefficients in rates["laws"].items():
        powers = " * ".join(f"{axis}^{value:.4g}" for axis, value in coefficients.items() if axis not in ("A", "floor"))
        print(f"{quantity} = {coefficients['A']:.4g} * {powers}")
    for replicas, value in rates["outer_lr"].items():
        print(f"outer_lr = {value:g} at {counted(float(replicas), 'replica')}")
    for note in rates["notes"]:
        print(f"note: {note}")


def _signed(value: float | None) -> str:
    """With the sign that the other columns of the terminal have."""
    return signed_percent(value).replace(MINUS, "-")
