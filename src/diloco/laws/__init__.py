"""Scaling laws: fit, predict, advise. numpy and scipy alone."""

from __future__ import annotations

from diloco.laws.advice import Advice, advise
from diloco.laws.compare import Comparison, compare_forms, counting_table
from diloco.laws.design import NextRun, next_runs
from diloco.laws.fit import fit_law
from diloco.laws.forms import FORMS, Form, power
from diloco.laws.hyperparameters import HyperparameterLaws, fit_hyperparameters, load_hyperparameters
from diloco.laws.law import Law
from diloco.laws.lawfile import load as load_law
from diloco.laws.prediction import Prediction
from diloco.laws.published import published_law
from diloco.laws.resample import bootstrap
from diloco.laws.rows import Rows, read_rows
from diloco.laws.rules import Recommendation, recommend

__all__ = [
    "Advice",
    "Comparison",
    "FORMS",
    "Form",
    "HyperparameterLaws",
    "Law",
    "NextRun",
    "Prediction",
    "Recommendation",
    "Rows",
    "advise",
    "bootstrap",
    "compare_forms",
    "counting_table",
    "fit_hyperparameters",
    "fit_law",
    "load_hyperparameters",
    "load_law",
    "next_runs",
    "power",
    "published_law",
    "read_rows",
    "recommend",
]
