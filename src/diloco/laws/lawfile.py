"""A law as one JSON file: coefficients, covariance, runs, and where it came from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from diloco.errors import BadInput
from diloco.laws.certify import Certificate
from diloco.laws.forms import Form
from diloco.laws.holdout import HoldOut, Influence, Split
from diloco.laws.law import Law, Runs, unfitted_model

KIND, VERSION = "diloco-law", 1
_NOT_A_NUMBER = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_DAMAGE = (
    *(ValueError, KeyError, TypeError, IndexError, AttributeError, StopIteration, OverflowError, RecursionError),
    np.linalg.LinAlgError,
)
_FIXED_TOLERANCE = 1e-6
"""Relative, between a coefficient that was given and the one in theta."""


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
    if record.get("kind") != KIND or record.get("version") != VERSION:
        raise BadInput(f"{path} is no law of version {VERSION}: make one with `diloco fit`")
    with told_as_damage(path):
        return from_json(record)


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
    described, ran = record["form"], record["runs"]
    bounds = {name: tuple(bound) for name, bound in described["bounds"].items()}
    form = Form(described["name"], described["expression"], bounds, described["source"], tuple(described["columns"]))
    columns = {axis: np.array(values, dtype=float) for axis, values in ran["columns"].items()}
    series = (np.array(ran[name], dtype=float) for name in ("target", "fitted", "weight"))
    runs = Runs(tuple(ran["labels"]), columns, *series)
    certificate = record["certificate"] | {"at_bound": tuple(record["certificate"]["at_bound"])}
    law = Law(
        form=form,
        target=record["target"],
        model=unfitted_model(form, runs, record["settings"]["fixed"]),
        theta_P=np.array(record["theta"], dtype=float),
        covariance_PP=np.array(record["covariance"], dtype=float),
        noise=float(record["noise"]),
        dof=float(record["dof"]),
        level=record["level"],
        t=float(record["t"]),
        runs=runs,
        certificate=Certificate(**certificate),
        holdout=_holdout(record["holdout"]),
        notes=tuple(record["notes"]),
        data_hash=record["data_hash"],
        settings=record["settings"],
        versions=record["versions"],
        alternatives=tuple(from_json(other) for other in record["alternatives"]),
    )
    _check(law)
    return law


def _check(law: Law) -> None:
    """Raises BadInput for a field that no fit writes."""
    count, known = len(law.model.names), law.dof > 0
    diagonal = np.diag(law.covariance_PP) if law.covariance_PP.shape == (count, count) else np.full(count, -1.0)
    lengths = {len(law.runs.labels), *(values.size for values in _series(law.runs))}
    wrong = {
        "form": not isinstance(law.form.name, str),
        "target": not isinstance(law.target, str) or law.target in law.form.axes,
        "level": not 0 < law.level < 1,
        "dof": not (known or (law.dof == law.dof and bool(np.all(np.isnan(diagonal))))),
        "noise": not (0 <= law.noise <= _MOST_NOISE or (not known and np.isnan(law.noise))),
        "t": not (law.t >= 0 or (not known and np.isnan(law.t))),
        "theta": law.theta_P.shape != (count,) or not bool(np.all(np.isfinite(law.theta_P))),
        "covariance": bool(np.any(diagonal < 0)) or (known and not bool(np.all(np.isfinite(law.covariance_PP)))),
        "runs": len(lengths) > 1 or not all(bool(np.all(values > 0)) for values in law.runs.columns.values()),
    }
    for name, is_wrong in wrong.items():
        if is_wrong:
            raise BadInput(f"{name} is not what a fit of {law.form.expression} writes")
    for name, value in law.settings["fixed"].items():
        if not np.isclose(law.parameters[name], value, rtol=_FIXED_TOLERANCE, atol=0.0 if value else 1e-12):
            raise BadInput(f"fixed {name} is {value} and theta has {law.parameters[name]:.6g}")


def _series(runs: Runs) -> list[np.ndarray]:
    return [*runs.columns.values(), runs.target, runs.fitted, runs.weight]


def _holdout(record: dict[str, Any] | None) -> HoldOut | None:
    if record is None:
        return None
    splits = tuple(Split(**split) for split in record["splits"])
    influence = tuple(Influence(**item) for item in record["influence"])
    return HoldOut(record["size_axis"], splits, influence, record["impossible"])


def write_json(path: str | Path, record: dict[str, Any]) -> None:
    """One strict JSON object, atomically; NaN and infinities are written as {"number": "nan"}."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(_plain(record), allow_nan=False, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: str | Path) -> dict[str, Any]:
    """The object that `write_json` wrote. Raises BadInput where there is none."""
    if not Path(path).is_file():
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
