"""A law as plain data for tables, figures and `--json`."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np

from diloco.laws.law import Law


def report(law: Law) -> dict[str, Any]:
    """JSON-ready: NaN and infinities are None. Percentages are of the target."""
    ratio = law.runs.tokens_per_param
    return finite(
        {
            "law": law.id,
            "form": law.form.name,
            "expression": law.form.expression,
            "source": law.form.source,
            "target": law.target,
            "coefficients": law.coefficients,
            "intervals": {key: list(ends) if ends else None for key, ends in law.intervals.items()},
            "parameters": law.parameters,
            "level": law.level,
            "noise_pct": 100 * law.noise,
            "exact": law.exact,
            "rms_residual_pct": law.rms_residual_pct,
            "dof": law.dof,
            "certificate": asdict(law.certificate),
            "holdout": _holdout(law),
            "alternatives": [
                {
                    "form": other.form.name,
                    "coefficients": other.coefficients,
                    "holdout_error_pct": other.holdout_error_pct,
                }
                for other in law.alternatives
            ],
            "tokens_per_param": asdict(ratio) if ratio else None,
            "runs": _runs(law),
            "notes": list(law.notes),
            "data_hash": law.data_hash,
            "settings": law.settings,
            "versions": law.versions,
        }
    )


def _runs(law: Law) -> list[dict[str, Any]]:
    runs = law.runs
    return [
        {
            "run": runs.labels[i],
            **{axis: float(values[i]) for axis, values in runs.columns.items()},
            law.target: float(runs.target[i]),
            "fitted": float(runs.fitted[i]),
            "residual_pct": float(100 * math.expm1(np.log(runs.target[i] / runs.fitted[i]))),
            "weight": float(runs.weight[i]),
        }
        for i in range(len(runs.labels))
    ]


def _holdout(law: Law) -> dict[str, Any] | None:
    if law.holdout is None:
        return None
    return asdict(law.holdout) | {"mean_error_pct": law.holdout.error_pct}


def finite(node: Any) -> Any:
    """`node` with None for NaN and infinities, and numpy's scalars as Python's."""
    if isinstance(node, dict):
        return {str(key): finite(value) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [finite(value) for value in node]
    if isinstance(node, (float, np.floating)):
        return float(node) if math.isfinite(node) else None
    return node.item() if isinstance(node, np.generic) else node
