"""Other scaling-law fitters behind one interface, run by `benchmarks/laws.py` in an environment of their own.

    python3.12 -m venv peers && peers/bin/pip install chinchilla==0.2.0 simple-scaling-laws==0.2.0
    echo REQUEST | peers/bin/python benchmarks/law_peers.py SYSTEM    # JSON in, JSON out

simple-scaling-laws needs Python 3.12; chinchilla does not. A request holds `rows` and `at` (columns `x`, `y`, and
`loss` in the rows) and settings. All fit
E + A x^-alpha + B y^-beta. The seconds are those of the fit alone, without imports, files and plots.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np


def chinchilla(request: dict[str, Any]) -> dict[str, Any]:
    """BFGS from every point of the grid, on all cores: its own way, with its loss set to the asked Huber of logs."""
    import pandas as pd
    from chinchilla import Chinchilla
    from chinchilla._metrics import log_huber

    rows, grid = request["rows"], request["grid"]
    with tempfile.TemporaryDirectory() as folder:
        loss_fn = partial(log_huber, delta=request["delta"])
        fitter = Chinchilla(folder, param_grid=grid, loss_fn=loss_fn, log_level=50)
        fitter.database.df = pd.DataFrame({"C": np.nan, "N": rows["x"], "D": rows["y"], "loss": rows["loss"]})
        fitter.visualizer.optim = lambda *_, **__: None
        start = time.perf_counter()
        fitter.fit()
        seconds = time.perf_counter() - start
    found = {name: float(getattr(fitter, name)) for name in ("E", "A", "B", "alpha", "beta")}
    return {"seconds": seconds, "starts": int(np.prod([len(axis) for axis in grid.values()])), "coefficients": found}


def simple_scaling_laws(request: dict[str, Any]) -> dict[str, Any]:
    """Its defaults: squared error of the raw loss, 1000 draws of its wild bootstrap."""
    import polars as pl
    from simple_scaling_laws import fit

    rows, at = request["rows"], request["at"]
    runs = [f"run {i}" for i in range(len(rows["loss"]))]
    table = pl.DataFrame(
        {
            "training_run_id": runs,
            "model_size__x": rows["x"],
            "dataset_size__y": rows["y"],
            "test_loss__loss": rows["loss"],
        }
    )
    start = time.perf_counter()
    model = fit(table, law="separable-power")
    seconds = time.perf_counter() - start
    points = pl.DataFrame({"model_size__x": at["x"], "dataset_size__y": at["y"]})
    told = model.predict(points, kind=request["interval"], quantiles=[0.025, 0.5, 0.975])
    ends = {
        end: told[f"test_loss__loss__{name}"].to_list()
        for end, name in (("low", "q025"), ("median", "median"), ("high", "q975"))
    }
    return {
        "seconds": seconds,
        "coefficients": _in_raw_units(model.params("test_loss__loss"), model.observed_domain),
        "interval": {"low": ends["low"], "high": ends["high"]},
        "predicted": ends["median"],
        "notes": [str(note) for note in model.warnings],
    }


def _in_raw_units(params: dict[str, float], domain: dict[str, dict[str, float]]) -> dict[str, float]:
    x, y = (domain[name]["reference"] for name in ("model_size__x", "dataset_size__y"))
    return params | {"A": params["A"] * x ** params["alpha"], "B": params["B"] * y ** params["beta"]}


SYSTEMS = {"chinchilla": chinchilla, "simple-scaling-laws": simple_scaling_laws}

if __name__ == "__main__":
    name = sys.argv[1]
    try:
        import_module(name.replace("-", "_"))
    except ImportError as error:
        needs = ", which needs Python 3.12" if name == "simple-scaling-laws" and sys.version_info < (3, 12) else ""
        print(json.dumps({"missing": f"not installed on Python {sys.version.split()[0]}{needs} ({error})"}))
    else:
        answer = SYSTEMS[name](json.load(sys.stdin))
        print(json.dumps(answer | {"version": version(name), "python": sys.version.split()[0]}))
