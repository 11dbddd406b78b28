"""A law as one JSON file: coefficients, covariance, runs, and where it came from."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from diloco.errors import BadInput
from diloco.laws.arguments import LEVELS, file_path
from diloco.laws.budget import TokenRatio
from diloco.laws.certify import Certificate
from diloco.laws.forms import Form
from diloco.laws.holdout import HoldOut
from diloco.laws.law import Law, Runs
from diloco.laws.model import bind
from diloco.laws.problem import LOSSES
from diloco.laws.quantile import t_within
from diloco.laws.strict import build, refuse_difference, typed

KIND, VERSION = "diloco-law", 4
_CHECKSUM = "checksum"
_NOT_A_NUMBER = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_DAMAGE = (
    *(ValueError, KeyError, TypeError, IndexError, AttributeError, StopIteration, OverflowError, RecursionError),
    np.linalg.LinAlgError,
)
_TOLERANCE = 1e-6
"""Relative, between numbers of a file that follow from each other by arithmetic that may round."""

_LEVEL_TOLERANCE = 1e-3
_SETTINGS = {"loss": str, "delta": float, "fixed": dict[str, float], "use_loss_se": bool, "seed": int}
_PLAIN = {
    **{"target": str, "noise": float, "dof": float, "level": float, "t": float, "notes": tuple[str, ...]},
    **{"data_hash": str, "versions": dict[str, str]},
}

_MOST_NOISE = 1e3
"""Standard deviation of a logarithm that no runs have: e^1000 is no number."""


def save(law: Law, path: str | Path) -> None:
    """Write `law`, its alternatives included, atomically."""
    write_json(path, to_json(law))


def load(path: str | Path) -> Law:
    """The law that `save` wrote.

    Raises:
        BadInput: no such file, or not a law of a version known here.
    """
    record = read_json(path)
    if record.get("kind") != KIND:
        held = record.get("kind", "no kind")
        raise BadInput(f"{path} is no law ({held}): name a file that `diloco fit --out` wrote")
    refuse_version(path, record)
    with told_as_damage(path), unchanged(record):
        return from_json(record)


def refuse_version(path: str | Path, record: dict[str, Any]) -> None:
    """Raises BadInput for a file of another version than this release writes."""
    version = record.get("version")
    if version == VERSION and not isinstance(version, bool):
        return
    whole = isinstance(version, int) and not isinstance(version, bool)
    which = ("an older" if version < VERSION else "a newer") if whole else "another"
    held = f"version {version}" if whole else "of no version that is known"
    raise BadInput(f"{path} was written by {which} release ({held}, this one reads {VERSION}): fit the rows again")


@contextmanager
def told_as_damage(path: str | Path) -> Iterator[None]:
    """Whatever a record of the wrong content raises inside, as one BadInput that names the file."""
    try:
        yield
    except _DAMAGE as error:
        reason = " ".join((str(error) if isinstance(error, ValueError) else repr(error)).split())
        raise BadInput(f"{path} is damaged ({reason}): fit the law again") from error


def to_json(law: Law) -> dict[str, Any]:
    form = law.form
    return {
        "kind": KIND,
        "version": VERSION,
        "id": law.id,
        "form": {
            "name": form.name,
            "expression": form.expression,
            "bounds": {name: list(bound) for name, bound in form.bounds.items()},
            "source": form.source,
            "columns": list(form.columns),
        },
        "target": law.target,
        "coefficients": law.coefficients,
        "theta": law.theta_P.tolist(),
        "covariance": law.covariance_PP.tolist(),
        "noise": law.noise,
        "dof": law.dof,
        "level": law.level,
        "t": law.t,
        "runs": {
            "labels": list(law.runs.labels),
            "columns": {axis: values.tolist() for axis, values in law.runs.columns.items()},
            "target": law.runs.target.tolist(),
            "fitted": law.runs.fitted.tolist(),
            "weight": law.runs.weight.tolist(),
            "tokens_per_param": asdict(law.runs.tokens_per_param) if law.runs.tokens_per_param else None,
        },
        "certificate": asdict(law.certificate),
        "holdout": asdict(law.holdout) if law.holdout else None,
        "notes": list(law.notes),
        "data_hash": law.data_hash,
        "settings": law.settings,
        "versions": law.versions,
        "alternatives": [to_json(other) for other in law.alternatives],
    }


def from_json(record: dict[str, Any]) -> Law:
    """The law of a record that `to_json` wrote.

    Raises:
        BadInput: a part of it is missing, unknown, of another type, or not what follows from the others.
    """
    described, ran = record["form"], record["runs"]
    bounds = {name: tuple(bound) for name, bound in described["bounds"].items()}
    columns = typed(described["columns"], tuple[str, ...], "law.form.columns")
    words = (typed(described[key], str, f"law.form.{key}") for key in ("name", "expression", "source"))
    name, expression, source = words
    form = Form(name, expression, bounds, source, columns)
    axes = {axis: np.array(values, dtype=float) for axis, values in ran["columns"].items()}
    series = (np.array(ran[name], dtype=float) for name in ("target", "fitted", "weight"))
    labels = typed(ran["labels"], tuple[str, ...], "law.runs.labels")
    ratio = typed(ran["tokens_per_param"], TokenRatio | None, "law.runs.tokens_per_param")
    runs = Runs(labels, axes, *series, ratio)
    _check_runs(runs)
    settings = {key: typed(record["settings"][key], hint, f"law.settings.{key}") for key, hint in _SETTINGS.items()}
    plain = {key: typed(record[key], hint, f"law.{key}") for key, hint in _PLAIN.items()}
    law = Law(
        form=form,
        model=bind(form, runs.columns, settings["fixed"]),
        theta_P=np.array(record["theta"], dtype=float),
        covariance_PP=np.array(record["covariance"], dtype=float),
        runs=runs,
        certificate=build(Certificate, record["certificate"], "law.certificate"),
        holdout=typed(record["holdout"], HoldOut | None, "law.holdout"),
        settings=settings,
        alternatives=tuple(from_json(other) for other in record["alternatives"]),
        **plain,
    )
    _check(law)
    _check_holdout(law.holdout, len(labels))
    refuse_difference(record, to_json(law), "law")
    return law


def _check(law: Law) -> None:
    """Raises BadInput for a field that no fit writes."""
    count, known = len(law.model.names), law.dof > 0
    wrong = {
        "target": law.target in law.form.axes,
        "level": not LEVELS[0] <= law.level <= LEVELS[1],
        "noise": not (0 <= law.noise <= _MOST_NOISE or (not known and np.isnan(law.noise))),
        "t": not (abs(t_within(law.t, law.dof) - law.level) < _LEVEL_TOLERANCE if law.dof >= 1 else law.t > 0),
        "data_hash": not re.fullmatch("[0-9a-f]{64}", law.data_hash),
        "theta": law.theta_P.shape != (count,) or not bool(np.all(np.isfinite(law.theta_P))),
        "covariance": law.covariance_PP.shape != (count, count) or not _is_covariance(law.covariance_PP, known),
        "settings": law.settings["loss"] not in LOSSES or law.settings["delta"] <= 0 or law.settings["seed"] < 0,
    }
    for name, is_wrong in wrong.items():
        if is_wrong:
            raise BadInput(f"{name} is not what a fit of {law.form.expression} writes")
    for name, value in law.settings["fixed"].items():
        if not np.isclose(law.parameters[name], value, rtol=_TOLERANCE, atol=0.0 if value else 1e-12):
            raise BadInput(f"fixed {name} is {value} and theta has {law.parameters[name]:.6g}")
    value = law.curve(law.runs.columns).value
    if not np.allclose(value, law.runs.fitted, rtol=_TOLERANCE, atol=0.0):
        row = int(np.argmax(np.abs(value / law.runs.fitted - 1)))
        raise BadInput(f"runs.fitted[{row}] is {law.runs.fitted[row]:.6g} and theta gives {value[row]:.6g}")


def _check_holdout(held: HoldOut | None, rows: int) -> None:
    """Raises BadInput for splits of other runs than the law's."""
    splits = held.splits if held else ()
    places = [run for split in splits for run in split.runs] + list(held.set_aside if held else ())
    several = any({len(split.runs)} != {*map(len, (split.predicted, split.low, split.high))} for split in splits)
    if several or not all(0 <= run < rows for run in places):
        raise BadInput("holdout: its runs are not those of the law, each with a prediction")


def _check_runs(runs: Runs) -> None:
    """Raises BadInput for columns of different lengths, or numbers that no run has."""
    series = runs.columns | {"target": runs.target, "fitted": runs.fitted, "weight": runs.weight}
    for name, values in series.items():
        usable = (values < np.inf) & ((values >= 0) if name == "weight" else (values > 0))
        if values.shape != (len(runs.labels),) or not np.all(usable):
            raise BadInput(f"runs: {name} is not a number above 0 for each of {len(runs.labels)} labels")
    ratio = runs.tokens_per_param
    if ratio and not 0 < ratio.low <= ratio.middle <= ratio.high < np.inf:
        raise BadInput("runs: tokens_per_param is not a number above 0, between a least and a most")
    if ratio and not (ratio.factor > 0 or not ratio.powers) or not all(map(np.isfinite, _relation(ratio))):
        raise BadInput("runs: tokens_per_param follows no finite power of its axes")


def _relation(ratio: TokenRatio | None) -> list[float]:
    return [ratio.factor, *ratio.powers.values()] if ratio else []


def _is_covariance(covariance_PP: np.ndarray, known: bool) -> bool:
    """Symmetric, and no direction of negative variance; NaN throughout where nothing is known of the noise."""
    if not known:
        return bool(np.all(np.isnan(covariance_PP)))
    variance = np.diag(covariance_PP)
    if not np.all(np.isfinite(covariance_PP)) or np.any(variance < 0):
        return False
    root = np.sqrt(np.where(variance > 0, variance, 1.0))
    scaled = covariance_PP / np.outer(root, root)
    symmetric = np.allclose(scaled, scaled.T, rtol=0.0, atol=_TOLERANCE)
    return bool(symmetric and np.linalg.eigvalsh(scaled)[0] > -_TOLERANCE)


@contextmanager
def unchanged(record: dict[str, Any]) -> Iterator[None]:
    """Takes the checksum out of a record that was read, and holds it against the record after all else was checked.

    Raises:
        BadInput: the content is not what was written, in a place that follows from no other.
    """
    given = record.pop(_CHECKSUM, None)
    yield
    if given is None:
        raise BadInput(f"it has no {_CHECKSUM}")
    if given != _checksum(record):
        raise BadInput(f"its {_CHECKSUM} is not that of its content, which was changed after it was written")


def _checksum(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(_plain(record), sort_keys=True).encode()).hexdigest()


def write_json(path: str | Path, record: dict[str, Any]) -> None:
    """One strict JSON object with its checksum, atomically; NaN and infinities are written as {"number": "nan"}.

    Raises:
        BadInput: `path` is a folder, or no path.
    """
    target = file_path(path)
    if os.path.isdir(target):
        raise BadInput(f"{path} is a folder: name a file, as in {target / 'law.json'}")
    record = record | {_CHECKSUM: _checksum(record)}
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(_plain(record), allow_nan=False, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: str | Path) -> dict[str, Any]:
    """The object that `write_json` wrote. Raises BadInput where there is none."""
    if not file_path(path).is_file():
        raise BadInput(f"law file {path} does not exist: name a file that `diloco fit --out` wrote")
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"), object_hook=_number)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(f"{path} is not JSON ({error}): fit the law again") from error
    if not isinstance(record, dict):
        raise BadInput(f"{path} is no JSON object: name a file that `diloco fit --out` wrote")
    return record


def _plain(node: Any) -> Any:
    if isinstance(node, float) and not np.isfinite(node):
        return {"number": repr(float(node))}
    if isinstance(node, dict):
        return {str(key): _plain(value) for key, value in node.items()}
    return [_plain(value) for value in node] if isinstance(node, (list, tuple)) else node


def _number(record: dict[str, Any]) -> Any:
    return _NOT_A_NUMBER[record["number"]] if set(record) == {"number"} else record
