"""The words of a scaling law's page and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from diloco import units

MINUS = "\N{MINUS SIGN}"

_TITLES = {
    "params": "parameters",
    "params_body": "parameters without embedding",
    "params_embedding": "parameters of the embedding",
    "tokens": "training tokens",
    "tokens_per_param": "tokens per parameter",
    "replicas": "replicas (M)",
    "sync_every": "sync interval (H), inner steps",
    "batch_tokens": "batch, tokens",
    "flops": "FLOPs",
    "bytes_sent": "bytes sent",
}
_NAMES = {
    "params": "{} parameters",
    "params_body": "{} parameters",
    "tokens": "{} tokens",
    "tokens_per_param": "{} tokens per parameter",
    "replicas": "M = {}",
    "sync_every": "H = {}",
    "flops": "{} FLOPs",
}


_LISTED = 4
_ROUNDING_PCT = 1e-5
_HUNDREDTHS_PCT = 0.01
_MOST_PCT = 1000.0
"""Beyond it a percentage says no more than that nothing is known."""


def percent(value: float | None) -> str:
    """ "1.23%", "0.004%" where hundredths would show nothing, "0%" for rounding, "over 1000%" for no knowledge."""
    if value is None:
        return units.NONE
    size = abs(value)
    if size < _ROUNDING_PCT:
        return "0%"
    if size > _MOST_PCT:
        return f"over {_MOST_PCT:.0f}%"
    return f"{size:.2f}%" if size >= _HUNDREDTHS_PCT else f"{size:.1g}%"


def signed_percent(value: float | None) -> str:
    """As `percent`, with a sign before what is not 0."""
    shown = percent(value)
    if value is None or abs(value) < _ROUNDING_PCT:
        return shown
    return f"{'+' if value > 0 else MINUS}{shown}"


def ends(interval: Sequence[float | None] | None) -> str:
    """ "1.2 to 3.4"; an end that is None lies beyond any number."""
    if interval is None:
        return units.NONE
    low, high = interval
    below = "no lower limit" if low is None else f"{low:.4g}"
    return f"{below} to {'no upper limit' if high is None else f'{high:.4g}'}"


def coefficient(value: float | None) -> str:
    return "beyond any number" if value is None else f"{value:.5g}"


def pull_heads(names: Sequence[str]) -> tuple[str, ...]:
    """Heads of the columns on how far the exponents move when a run is left out."""
    return tuple(f"moves {name}, se" for name in names)


def axis_title(axis: str) -> str:
    return _TITLES.get(axis, axis.replace("_", " "))


def axis_value(axis: str, value: float) -> str:
    """ "M = 4", "1.27B parameters"."""
    return _NAMES.get(axis, f"{axis.replace('_', ' ')} {{}}").format(units.format_count(value))


def law_title(target: str, expression: str) -> str:
    """The law as a heading, which does not break after a minus sign."""
    return f"{target} = " + expression.replace("*", " \N{MIDDLE DOT} ").replace("-", MINUS)


def loss_caption(picture: dict[str, Any]) -> str:
    each = f"A curve for each value of {axis_title(picture['group_axis'])}" if picture["group_axis"] else "The law"
    sentences = [
        f"{each}, dotted beyond the largest run; the band holds a new run with {picture['level']:.0%} probability, if "
        "the form is right. Below: each run's distance from the law, between dotted lines at twice the noise."
    ]
    if picture["following"]:
        names = " and ".join(axis_title(axis) for axis in picture["following"])
        sentences.append(f"Along a curve, {names} follow the size as in the runs.")
    if any(run["left_out"] for run in picture["runs"]):
        sentences.append("Hollow markers were left out of the fit.")
    if further := beyond_strip(picture):
        listed = ", ".join(f"{run['run']} {signed_percent(run['residual_pct'])}" for run in further[:_LISTED])
        more = f" and {len(further) - _LISTED} more" if len(further) > _LISTED else ""
        sentences.append(f"Arrows at the edge of the strip stand for runs beyond it: {listed}{more}.")
    return " ".join(sentences)


def contour_caption(picture: dict[str, Any]) -> str:
    sentences = [f"Along a line the law promises the same {picture['target']}."]
    if picture["at"]:
        sentences.append(f"At {', '.join(axis_value(axis, value) for axis, value in picture['at'].items())}.")
    if any(picture["runs"]["left_out"]):
        sentences.append("Hollow markers were left out of the fit.")
    if picture["frontier"]:
        sentences.append("The green line is the size and the tokens of least loss for each budget of FLOPs.")
    if picture["why_no_frontier"]:
        sentences.append(f"No optimal frontier: {picture['why_no_frontier']}.")
    return " ".join(sentences)


def holdout_caption(picture: dict[str, Any]) -> str:
    outliers = any(run["set_aside"] for split in picture["splits"] for run in split["runs"])
    hollow = "Hollow markers are outliers to the fit of all runs: the errors told are without them."
    return (
        f"Each colour is a law fitted on the smaller runs alone, asked for the larger ones; bars are its own "
        f"{picture['level']:.0%} interval of a new run. Below: how far off it was. {hollow * outliers}"
    ).rstrip()


def strip_edge_pct(picture: dict[str, Any]) -> float:
    """Half the height of the residual strip: what the fit held decides, not what it left out."""
    kept = [abs(run["residual_pct"]) for run in picture["runs"] if not run["left_out"]]
    return max(2.5 * (picture["noise_pct"] or 0.0), 1.1 * max(kept, default=0.0), 1e-3)


def beyond_strip(picture: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs that lie outside the residual strip, and are drawn at its edge; the farthest first."""
    edge = strip_edge_pct(picture)
    outside = [run for run in picture["runs"] if abs(run["residual_pct"]) > edge]
    return sorted(outside, key=lambda run: -abs(run["residual_pct"]))


def noise_lines_pct(picture: dict[str, Any]) -> list[float]:
    """Twice the noise of a run, to both sides; nothing where it is not known."""
    noise = picture["noise_pct"]
    return [-2 * noise, 2 * noise] if noise else []
