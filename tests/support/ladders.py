"""Tables of runs for the law verbs."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np


def write_rows(path: Path, **columns: object) -> Path:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def ladder(loss_name: str = "loss") -> dict[str, np.ndarray]:
    """Twelve exact runs of 2 + 40 params^-0.2 replicas^0.05."""
    params, replicas = (grid.ravel() for grid in np.meshgrid([1e7, 3e7, 1e8, 3e8], [1, 2, 4]))
    return {"params": params, "replicas": replicas, loss_name: 2 + 40 * params**-0.2 * replicas**0.05}
