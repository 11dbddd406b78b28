"""Rows of runs, checked: what a law is fitted on."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from diloco.errors import BadInput
from diloco.laws import axes as ax
from diloco.laws.arguments import MOST, mapping, named
from diloco.laws.tables import read_table

_SHOWN = 6
"""Rows named in a message before it says how many more there are."""

_NOMINAL = math.log(1.25)
"""How far a nominal size, such as 35M, may be from the counted one."""

_NOT_IDENTITY = ("run", "seconds")
"""Columns that may differ between two copies of one run."""


@dataclass(frozen=True)
class Rows:
    """Runs as columns. `numbers` holds NaN where a cell was empty; `places` says where each row came from."""

    numbers: dict[str, np.ndarray]
    texts: dict[str, tuple[str, ...]]
    places: tuple[str, ...]
    headers: dict[str, str] = field(default_factory=dict)
    """The file's own column name -> canonical name."""
    notes: tuple[str, ...] = ()
    """What was left out or assumed, a sentence each."""
    unreadable: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Numeric column -> what stood in each cell that is no number, "" elsewhere."""

    def __len__(self) -> int:
        return len(self.places)

    def label(self, index: int) -> str:
        run = self.texts.get("run", self.texts.get("model"))
        return f"{self.places[index]} ({run[index]})" if run and run[index] else self.places[index]

    def take(self, chosen: Iterable[int]) -> Rows:
        index = list(chosen)
        return replace(
            self,
            numbers={name: values[index] for name, values in self.numbers.items()},
            texts={name: tuple(values[i] for i in index) for name, values in self.texts.items()},
            places=tuple(self.places[i] for i in index),
            unreadable={name: tuple(cells[i] for i in index) for name, cells in self.unreadable.items()},
        )

    def where(self, **conditions: Any) -> Rows:
        """The rows whose columns have these values (one value, or a list of them).

        Raises:
            BadInput: no such column, or no row left.
        """
        kept = range(len(self))
        for header, wanted in conditions.items():
            name = self.headers.get(header, ax.canonical(header))
            values = wanted if isinstance(wanted, (list, tuple, set)) else [wanted]
            if name in self.texts:
                kept = [i for i in kept if self.texts[name][i] in {str(value) for value in values}]
            elif name in self.numbers:
                kept = [i for i in kept if self.numbers[name][i] in {ax.number(value) for value in values}]
            else:
                raise BadInput(
                    f"{named('where', {header: wanted})}: the rows have no column '{header}', only {self._columns()}"
                )
        if not kept:
            raise BadInput(f"{named('where', conditions)} leaves no row: choose values that occur in the rows")
        return self.take(kept)

    def column(self, name: str) -> np.ndarray:
        """A numeric column (n,), derived where it can be; every value finite and above 0.

        Raises:
            BadInput: no such column, or a value that has no logarithm, with its row.
        """
        if name == ax.TOKENS_PER_PARAM and name not in self.numbers and {"tokens", "params"} <= set(self.numbers):
            return self.column("tokens") / self.column("params")
        if name not in self.numbers:
            raise BadInput(f"the rows have no numeric column '{name}', only {self._columns()}: {self._which(name)}")
        values = self.numbers[name]
        bad = [(i, _why(values[i], name)) for i in self.unusable(name)]
        if bad:
            raise BadInput(f"{self._listed(bad)}: fill them in, or take those rows out of the table")
        return values

    def has(self, name: str) -> bool:
        """Whether `column(name)` would have a value in each row."""
        derived = name == ax.TOKENS_PER_PARAM and {"tokens", "params"} <= set(self.numbers)
        return derived or (name in self.numbers and bool(np.all(np.isfinite(self.numbers[name]))))

    def varying(self, names: Sequence[str]) -> list[str]:
        """Those of `names` that can be an axis: usable in every row, and not the same in all."""
        usable = [name for name in names if self.has(name) and not self.unusable(name)]
        return [name for name in usable if np.ptp(np.log(self.column(name))) > 1e-9]

    def unusable(self, name: str) -> list[int]:
        """The rows in which a column has no logarithm, being empty or 0."""
        values = self.numbers.get(name, np.ones(len(self)))
        return np.flatnonzero(~(np.isfinite(values) & (values > 0))).tolist()

    def gaps(self, names: Sequence[str]) -> dict[str, list[int]]:
        """Column -> rows in which it is empty or 0, for those of `names` that say something in other rows."""
        found = {name: self.unusable(name) for name in names if name in self.numbers}
        return {name: rows for name, rows in found.items() if 0 < len(rows) < len(self)}

    def named(self, indices: Sequence[int]) -> str:
        """How many rows these are, and which."""
        more = f" and {len(indices) - _SHOWN} more" if len(indices) > _SHOWN else ""
        return f"{len(indices)} of {len(self)} rows ({', '.join(self.label(i) for i in indices[:_SHOWN])}{more})"

    @property
    def data_hash(self) -> str:
        """SHA-256 over all cells, whatever the order of rows and columns."""
        lines = []
        for i in range(len(self)):
            cells = {name: repr(float(values[i])) for name, values in self.numbers.items()}
            cells |= {name: values[i] for name, values in self.texts.items()}
            lines.append(json.dumps(cells, sort_keys=True))
        return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()

    def _which(self, name: str) -> str:
        """How to say which column is `name`: those that look like it, where it is the loss."""
        likely = [header for header in self.headers if self._may_be_loss(header)] if name == ax.LOSS else []
        others = f", or {' or '.join(likely[1:])}" if likely[1:] else ""
        return f"name yours with {named('rename', {name: (likely or ['COLUMN'])[0]})}{others}"

    def _may_be_loss(self, header: str) -> bool:
        name = self.headers[header]
        return name in self.numbers and name not in ax.NUMBERS and bool(ax.LIKE_A_LOSS.search(name))

    def _columns(self) -> str:
        return ", ".join(sorted({*self.numbers, *self.texts}))

    def _listed(self, problems: Sequence[tuple[int, str]]) -> str:
        shown = "; ".join(f"{self.label(i)}: {reason}" for i, reason in problems[:_SHOWN])
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        return f"{len(problems)} of {len(self)} rows cannot be used ({shown}{more})"


def read_rows(
    source: Any,
    *,
    rename: Mapping[str, str] | None = None,
    where: Mapping[str, Any] | None = None,
    pool: str | Sequence[str] = (),
    target: str = ax.LOSS,
    bad: str = "refuse",
) -> Rows:
    """Runs from a CSV, JSONL, JSON or parquet file, run folders, a list of these, a DataFrame or columns, checked.

    Args:
        rename: canonical name -> the source's own column, as in {"loss": "val_bpb"}.
        where: keep only rows with these values, before any check.
        pool: grouping columns (tokenizer, method, ...) whose mixture is meant.
        target: the column that will be fitted; its values are checked.
        bad: "refuse" raises on a row that cannot be used; "drop" leaves it out and says so in `notes`.

    Raises:
        BadInput: naming the rows: NaN, non-positive, unfinished, duplicate or mixed.
    """
    if bad not in ("refuse", "drop"):
        raise BadInput(f"{named('bad', bad)} is no way to treat unusable rows: use refuse or drop")
    if isinstance(source, Rows):
        rows = source
    else:
        rows = _columns(*read_table(source), mapping("rename", rename, "{'loss': 'val_bpb'}"))
    where = mapping("where", where, "{'method': 'diloco'}")
    rows = rows.where(**where) if where else rows
    problems = _problems(rows, target)
    if problems and bad == "refuse":
        raise BadInput(f"{rows._listed(problems)}: mend them, or leave them out by name with {named('bad', 'drop')}")
    if problems:
        dropped = {i for i, _ in problems}
        if len(dropped) == len(rows):
            raise BadInput(f"{rows._listed(problems)}: no row is left to fit")
        were = "was left out" if len(problems) == 1 else "were left out"
        note = rows._listed(problems).replace("cannot be used", were)
        rows = replace(rows.take(i for i in range(len(rows)) if i not in dropped), notes=(*rows.notes, note))
    rows = _without_contradiction(rows)
    pool = [pool] if isinstance(pool, str) else list(pool)
    if unknown := [name for name in pool if name not in ax.GROUPS]:
        raise BadInput(
            f"{named('pool', [unknown[0]])} has no effect: a mixture is refused of {', '.join(ax.GROUPS)} alone"
        )
    _refuse_mixture(rows, pool)
    return rows


def _columns(records: list[dict[str, Any]], places: list[str], rename: dict[str, str]) -> Rows:
    found = list(dict.fromkeys(header for record in records for header in record))
    headers = _headers(found, rename)
    numbers, texts, notes, unreadable = {}, {}, _rename_notes(found, rename), {}
    for header, name in headers.items():
        cells = [record.get(header) for record in records]
        values = [math.nan if _empty(cell) else ax.number(cell) for cell in cells]
        if name in ax.TEXTS or (name not in ax.NUMBERS and None in values):
            texts[name] = tuple("" if _empty(cell) else str(cell) for cell in cells)
        else:
            numbers[name] = np.array([math.nan if value is None else value for value in values], dtype=float)
            if None in values:
                unreadable[name] = tuple(
                    str(cell) if value is None else "" for cell, value in zip(cells, values, strict=True)
                )
    if "params" not in numbers and "model" in texts:
        sizes = [ax.number(cell) for cell in texts["model"]]
        if all(sizes):
            numbers["params"] = np.array(sizes, dtype=float)
            notes.append("params are the nominal sizes in column 'model': real counts give a better law")
    return Rows(numbers, texts, tuple(places), headers, tuple(notes), unreadable)


def _headers(found: list[str], rename: dict[str, str]) -> dict[str, str]:
    """Header -> canonical name; a name that is asked for or spelt out wins over an alias."""
    for name, header in rename.items():
        if header not in found:
            raise BadInput(
                f"{named('rename', {name: header})}: the rows have no column '{header}', only {', '.join(found)}"
            )
    others = [header for header in found if header not in rename.values()]
    refuse_two_of_a_kind([header for header in others if ax.canonical(header) not in rename])
    headers = {header: name for name, header in rename.items()}
    taken = set(headers.values())
    for header in sorted(found, key=lambda h: ax.canonical(h) != h):
        name = ax.canonical(header)
        if header in headers or (name in taken and name != header):
            headers.setdefault(header, header)
        elif name not in taken:
            headers[header] = name
            taken.add(name)
    return headers


def refuse_two_of_a_kind(headers: Sequence[str], way_out: str = "") -> None:
    """Two columns that are names of one thing may differ, and which of them was meant is not ours to guess.

    Raises:
        BadInput: naming both, and `way_out` where it is not the argument that says which column is which.
    """
    of_name: dict[str, list[str]] = {}
    for header in headers:
        of_name.setdefault(ax.canonical(header), []).append(header)
    for name, both in of_name.items():
        if len(both) > 1 and name in ax.UNAMBIGUOUS:
            listed = " and ".join(f"'{header}'" for header in both)
            way = way_out or f"say which is meant with {named('rename', {name: both[0]})}, or take the other out"
            raise BadInput(f"columns {listed} are both names of {name}: {way}")


def _rename_notes(found: list[str], rename: dict[str, str]) -> list[str]:
    """For a column that was asked for in place of the one that has the name."""
    return [
        f"{name} is read from column '{header}', as {named('rename', {name: header})} says, and column '{name}' is not "
        "used"
        for name, header in rename.items()
        if name in found and header != name and ax.canonical(header) != name
    ]


def _problems(rows: Rows, target: str) -> list[tuple[int, str]]:
    status, done = rows.texts.get(ax.STATUS), rows.numbers.get(ax.FRACTION_DONE)
    if target not in rows.numbers and not (status and all(_unfinished(word, status) for word in status)):
        rows.column(target)
    values = rows.numbers.get(target, np.full(len(rows), math.nan))
    problems, seen = [], {}
    for i in range(len(rows)):
        key = _identity(rows, i)
        if status and _unfinished(status[i], status):
            problems.append((i, f"status is '{status[i]}'"))
        elif done is not None and done[i] < 1:
            problems.append((i, f"only {done[i]:.0%} of the run is done"))
        elif not _usable(values[i]):
            problems.append((i, _unreadable(rows, target, i) or _why(values[i], target)))
        elif reason := _bad_axis(rows, i):
            problems.append((i, reason))
        elif key in seen:
            problems.append((i, f"the same as {rows.places[seen[key]]}"))
        seen.setdefault(key, i)
    return problems


def _unfinished(status: str, column: tuple[str, ...]) -> bool:
    """A status of no known meaning counts only in a column that says "finished" elsewhere."""
    state = status.strip().lower()
    told = any(other.strip().lower() in ax.FINISHED for other in column)
    return state in ax.UNFINISHED or (told and bool(state) and state not in ax.FINISHED)


def _bad_axis(rows: Rows, index: int) -> str:
    """An empty cell is judged when a form needs the column; no number, infinity or one below 0 is always wrong."""
    never_0 = ("params", "tokens", "replicas", "flops", ax.WEIGHT)
    for name in (*ax.AXES, ax.WEIGHT, ax.LOSS_SE):
        if reason := _unreadable(rows, name, index):
            return reason
        value = rows.numbers[name][index] if name in rows.numbers else 1.0
        # No bytes sent, no overlap, no outer step: a zero that says something, refused only where a form uses it.
        if value < 0 or math.isinf(value) or (value == 0 and name in never_0):
            return _why(value, name)
        if name in ax.AXES and value and (value < 1 / MOST or value > MOST):
            return f"{name} is {value:g}, which no run has"
    return ""


def _without_contradiction(rows: Rows) -> Rows:
    """With a note on columns that differ about one thing: people count sizes and tokens in more ways than we know.

    Tokens per parameter are then those of tokens and params, where all rows have both.
    """
    told = [(i, *found) for i in range(len(rows)) if (found := _contradiction(rows, i))]
    notes, numbers = list(rows.notes), rows.numbers
    for column in dict.fromkeys(column for _, column, _ in told):
        where = [i for i, name, _ in told if name == column]
        reason = next(reason for _, name, reason in told if name == column)
        derived = column == ax.TOKENS_PER_PARAM and all(
            name in numbers and not rows.unusable(name) for name in ("tokens", "params")
        )
        numbers = {name: values for name, values in numbers.items() if not (derived and name == column)}
        used = "tokens and params are used" if derived else "each column is used as it stands"
        also = f" and {len(where) - 1} more" if len(where) > 1 else ""
        notes.append(f"{rows.label(where[0])}{also}: {reason}: {used}")
    return replace(rows, numbers=numbers, notes=tuple(dict.fromkeys(notes)))


def _contradiction(rows: Rows, index: int) -> tuple[str, str] | None:
    """The column of a row that differs from others, and how; a size may be nominal, and counted in any of the ways."""
    found = {name: float(values[index]) for name, values in rows.numbers.items() if _usable(values[index])}
    sizes = [found[name] for name in ax.SIZES if name in found]
    tokens, ratio = found.get("tokens"), found.get(ax.TOKENS_PER_PARAM)
    if tokens and ratio and sizes and min(abs(math.log(tokens / ratio / size)) for size in sizes) > _NOMINAL:
        return ax.TOKENS_PER_PARAM, f"tokens_per_param is {ratio:g}, and tokens over params are {tokens / sizes[0]:.4g}"
    for part in ax.SIZES[1:]:
        if part in found and found[part] > found.get("params", math.inf) * math.exp(_NOMINAL):
            return part, f"{part} is {found[part]:g}, more than params, {found['params']:g}"
    return None


def _unreadable(rows: Rows, name: str, index: int) -> str:
    """What is wrong with a cell that holds something, but no number; "" for any other."""
    cell = rows.unreadable[name][index] if name in rows.unreadable else ""
    return f"{name} is '{cell}', which is no number" if cell else ""


def _identity(rows: Rows, index: int) -> tuple:
    numbers = ((n, repr(float(v[index]))) for n, v in rows.numbers.items() if n not in _NOT_IDENTITY)
    return (*numbers, *((n, v[index]) for n, v in rows.texts.items() if n not in _NOT_IDENTITY))


def _refuse_mixture(rows: Rows, pool: Sequence[str]) -> None:
    for name in ax.GROUPS:
        if name in pool or name not in rows.texts:
            continue
        first: dict[str, int] = {}
        for i, value in enumerate(rows.texts[name]):
            first.setdefault(value, i)
        if len(first) > 1:
            values = ", ".join(f"'{value}' ({rows.places[i]})" for value, i in list(first.items())[:_SHOWN])
            raise BadInput(
                f"the rows mix {name} {values}, whose losses cannot be compared: choose one with "
                f"{named('where', {name: next(iter(first))})}, or say that you mean it with {named('pool', [name])}"
            )


def _empty(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip())


def _usable(value: float) -> bool:
    return bool(np.isfinite(value) and value > 0)


def _why(value: float, name: str) -> str:
    return f"{name} is empty or no number" if math.isnan(value) else f"{name} is {value:g}, which has no logarithm"
