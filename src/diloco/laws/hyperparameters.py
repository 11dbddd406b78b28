"""Learning rates and batch from sweep rows, as the paper finds them (arXiv:2503.09799 section 4).

For each size and replica count: the best run of each batch (its inner and outer lr), a quadratic of that loss in log2
of the batch, its minimum; then power laws in size, for each replica count alone and jointly. The outer lr is one
constant per replica count, as the paper found it not to move with size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import multimode
from typing import Any

import numpy as np

from diloco.errors import BadInput
from diloco.laws import lawfile
from diloco.laws.arguments import counted, positive
from diloco.laws.axes import SIZES, TOKENS_PER_PARAM
from diloco.laws.fit import fit_law
from diloco.laws.forms import power
from diloco.laws.law import Law
from diloco.laws.rows import Rows, read_rows
from diloco.laws.strict import build, refuse_difference, typed
from diloco.laws.unfitted import WATCHED

QUANTITIES = ("inner_lr", "batch_tokens")
KIND = "diloco-hyperparameters"
_LEAST_BATCHES = 3
_SETTINGS = tuple(name for name in (*SIZES, TOKENS_PER_PARAM, *WATCHED) if name not in ("params", "replicas"))


@dataclass(frozen=True)
class BestRun:
    """The optimum of one sweep: one size at one replica count."""

    params: float
    replicas: float
    inner_lr: float
    """Of the best run: read from the grid, as in the paper."""
    batch_tokens: float
    """Minimum of the quadratic; the best run's own where there is none."""
    outer_lr: float | None
    loss: float
    runs: int
    label: str
    """Where the best run stands in the rows."""
    settings: dict[str, float]
    """Of the best run, whatever else a law may have for an axis: its tokens, sync_every, ..."""
    notes: tuple[str, ...]


@dataclass(frozen=True)
class HyperparameterLaws:
    """Power laws for `inner_lr` and `batch_tokens`, and an outer lr per replica count."""

    optima: tuple[BestRun, ...]
    joint: dict[str, Law]
    independent: dict[str, dict[float, Law]]
    """Quantity -> replicas -> law in params alone."""
    outer_lr: dict[float, float]
    row_notes: tuple[str, ...]
    """What was left out or assumed when the sweep was read."""
    notes: tuple[str, ...]

    def predict(self, params: float, replicas: float, joint: bool = True) -> dict[str, float | None]:
        """`inner_lr`, `batch_tokens`, `outer_lr` at a size.

        Raises:
            BadInput: this fit (joint, or for that replica count) could not be made.
        """
        params, replicas = positive("params", params), positive("replicas", replicas)
        found: dict[str, float | None] = {}
        for quantity in QUANTITIES:
            law = self.joint.get(quantity) if joint else self.independent[quantity].get(replicas)
            if law is None:
                way = "joint" if joint else f"independent, replicas {replicas:g},"
                raise BadInput(f"no {way} law for {quantity}: sweep at least three sizes of it")
            point = {"params": params, "replicas": replicas}
            found[quantity] = law.predict(**{axis: point[axis] for axis in law.form.axes}).value
        nearest = min(self.outer_lr, key=lambda known: abs(np.log(known / replicas)), default=None)
        return found | {"outer_lr": self.outer_lr[nearest] if nearest is not None else None}

    def best_runs(self) -> Rows:
        """Each sweep's best run with its loss and settings, to fit a law of the tuned loss to."""
        rows = _rows(self.optima, "loss")
        names = dict.fromkeys(name for best in self.optima for name in best.settings)
        settings = {name: np.array([best.settings.get(name, np.nan) for best in self.optima]) for name in names}
        return replace(rows, numbers=rows.numbers | settings, notes=self.row_notes)

    def save(self, path: str | Path) -> None:
        """One JSON file, atomically."""
        lawfile.write_json(path, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """What the file holds."""
        return {
            "kind": KIND,
            "version": lawfile.VERSION,
            "optima": [vars(best) | {"notes": list(best.notes)} for best in self.optima],
            "joint": {quantity: lawfile.to_json(law) for quantity, law in self.joint.items()},
            "independent": {
                quantity: [[replicas, lawfile.to_json(law)] for replicas, law in laws.items()]
                for quantity, laws in self.independent.items()
            },
            "outer_lr": [list(pair) for pair in self.outer_lr.items()],
            "row_notes": list(self.row_notes),
            "notes": list(self.notes),
        }


def load_hyperparameters(path: str | Path) -> HyperparameterLaws:
    """What `HyperparameterLaws.save` wrote. Raises BadInput where it is something else."""
    record = lawfile.read_json(path)
    if record.get("kind") != KIND:
        raise BadInput(f"{path} holds no hyperparameter laws: name a file that `diloco fit --hyperparameters` wrote")
    lawfile.refuse_version(path, record)
    with lawfile.told_as_damage(path), lawfile.unchanged(record):
        laws = HyperparameterLaws(
            optima=tuple(build(BestRun, best, "rates.optima") for best in record["optima"]),
            joint={quantity: lawfile.from_json(law) for quantity, law in record["joint"].items()},
            independent={
                quantity: {replicas: lawfile.from_json(law) for replicas, law in laws}
                for quantity, laws in record["independent"].items()
            },
            outer_lr=dict(map(tuple, record["outer_lr"])),
            row_notes=typed(record["row_notes"], tuple[str, ...], "rates.row_notes"),
            notes=typed(record["notes"], tuple[str, ...], "rates.notes"),
        )
        refuse_difference(record, laws.to_json(), "rates")
        _check(laws)
        return laws


def _check(laws: HyperparameterLaws) -> None:
    """Raises BadInput for what no fit writes."""
    if wrong := sorted({*laws.joint, *laws.independent} - set(QUANTITIES)):
        raise BadInput(f"{wrong[0]} is none of {', '.join(QUANTITIES)}")
    for quantity, found in laws.independent.items():
        for law in (*found.values(), *([laws.joint[quantity]] if quantity in laws.joint else [])):
            if law.target != quantity:
                raise BadInput(f"the law of {quantity} has the target {law.target}")
    numbers = [*laws.outer_lr, *laws.outer_lr.values()]
    numbers += [value for best in laws.optima for value in (best.params, best.replicas, best.loss)]
    if not all(0 <= value < np.inf for best in laws.optima for value in best.settings.values()):
        raise BadInput("optima hold a setting that is no number")
    if not all(0 < value < np.inf for value in numbers):
        raise BadInput("outer_lr or optima hold a number that is not above 0")


def fit_hyperparameters(rows: Any) -> HyperparameterLaws:
    """From sweep rows with `params, replicas, batch_tokens, inner_lr, loss` and where swept `outer_lr`.

    Raises:
        BadInput: a column is missing, or fewer than two sizes were swept.
    """
    rows = rows if isinstance(rows, Rows) else read_rows(rows)
    params, replicas = rows.column("params"), rows.column("replicas")
    pairs = sorted(set(zip(replicas.tolist(), params.tolist(), strict=True)))
    optima = [_optimum(rows.take(np.flatnonzero((params == n) & (replicas == m)))) for m, n in pairs]
    if len({best.params for best in optima}) < 2:
        raise BadInput("the sweep holds one size only: a law in size needs at least two, better four")
    joint, independent, notes = {}, {}, []
    for quantity in QUANTITIES:
        several = len({best.replicas for best in optima}) > 1
        joint[quantity] = _law(optima, quantity, ["params", "replicas"] if several else ["params"])
        independent[quantity] = {
            m: law
            for m in sorted({best.replicas for best in optima})
            if (law := _law([best for best in optima if best.replicas == m], quantity, ["params"]))
        }
        if joint[quantity] is None:
            notes.append(f"too few sweeps for a law of {quantity}: {len(optima)} optima")
    notes += [note for best in optima for note in best.notes]
    joint = {quantity: law for quantity, law in joint.items() if law}
    return HyperparameterLaws(tuple(optima), joint, independent, _outer_lr(optima), rows.notes, tuple(notes))


def _law(optima: Sequence[BestRun], quantity: str, axes: list[str]) -> Law | None:
    """Ordinary least squares on logs; None where a coefficient would have no run to spare."""
    if len(optima) <= len(axes) + 1 or len({best.params for best in optima}) < 2:
        return None
    return fit_law(_rows(optima, quantity), power(axes, floor=False), target=quantity, loss="mse", holdout=False)


def _rows(optima: Sequence[BestRun], quantity: str) -> Rows:
    """One row a sweep, which keeps the name that its best run has in the sweep's own rows."""
    names = ("params", "replicas", quantity)
    numbers = {name: np.array([getattr(best, name) for best in optima], dtype=float) for name in names}
    return Rows(numbers, {}, tuple(best.label for best in optima))


def _optimum(rows: Rows) -> BestRun:
    loss, batch, lr = (rows.column(name) for name in ("loss", "batch_tokens", "inner_lr"))
    outer = rows.column("outer_lr") if rows.has("outer_lr") else None
    best = int(np.argmin(loss))
    where = f"params {rows.column('params')[0]:.4g}, replicas {rows.column('replicas')[0]:g}"
    notes = _edge_notes(where, batch, lr, best)
    vertex, note = _vertex(batch, loss)
    if note:
        notes.append(f"{where}: {note}")
    return BestRun(
        params=float(rows.column("params")[0]),
        replicas=float(rows.column("replicas")[0]),
        inner_lr=float(lr[best]),
        batch_tokens=vertex,
        outer_lr=float(outer[best]) if outer is not None else None,
        loss=float(loss[best]),
        runs=len(rows),
        label=rows.label(best),
        settings={name: float(rows.numbers[name][best]) for name in _SETTINGS if _says(rows, name, best)},
        notes=tuple(notes),
    )


def _says(rows: Rows, name: str, index: int) -> bool:
    return name in rows.numbers and bool(np.isfinite(rows.numbers[name][index]))


def _edge_notes(where: str, batch: np.ndarray, lr: np.ndarray, best: int) -> list[str]:
    notes = []
    same_batch = lr[batch == batch[best]]
    for name, value, grid in (("inner_lr", lr[best], same_batch), ("batch_tokens", batch[best], batch)):
        if np.ptp(grid) > 0 and value in (grid.min(), grid.max()):
            side = "largest" if value == grid.max() else "smallest"
            notes.append(
                f"{where}: the best {name}, {value:.4g}, is the {side} tried: extend the grid, the optimum may lie "
                "beyond it"
            )
    return notes


def _vertex(batch: np.ndarray, loss: np.ndarray) -> tuple[float, str]:
    """Minimum of a quadratic of the best loss at each batch, in log2 of the batch, and what is wrong with it."""
    sizes = np.unique(batch)
    lowest = np.array([loss[batch == size].min() for size in sizes])
    best = float(sizes[np.argmin(lowest)])
    if sizes.size < _LEAST_BATCHES:
        return best, f"no quadratic goes through {counted(sizes.size, 'batch size')}: the best is taken as it is"
    x = np.log2(sizes)
    curvature, slope, _ = np.polyfit(x - x.mean(), lowest, 2)
    if curvature <= 0:
        return best, "loss against batch has no minimum: the best batch is taken as it is"
    place = x.mean() - slope / (2 * curvature)
    inside = float(np.clip(place, x[0], x[-1]))
    note = "" if inside == place else "the quadratic's minimum lies outside the batches tried: the nearest is taken"
    return float(2.0**inside), note


def _outer_lr(optima: Sequence[BestRun]) -> dict[float, float]:
    """The outer lr that is best at most sizes, per replica count; of equals the one that larger sizes prefer."""
    found = {}
    for m in sorted({best.replicas for best in optima}):
        rates = [
            best.outer_lr for best in sorted(optima, key=lambda b: -b.params) if best.replicas == m and best.outer_lr
        ]
        if rates:
            found[m] = multimode(rates)[0]
    return found
