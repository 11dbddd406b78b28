"""Reads a table of runs from wherever it lies: CSV, JSONL, parquet, run folders, a DataFrame or a dict of columns.

Every reader gives a list of records (header -> cell) and a list that says where each lies, for messages.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diloco.errors import BadInput

Records = tuple[list[dict[str, Any]], list[str]]

_QUOTED = re.compile(r'"[^"]*"')
_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+(e[+-]?\d+)?[kmbt]?\s*", re.IGNORECASE)
_DECIMAL_POINT = re.compile(r"\s*[+-]?\d*\.\d+(e[+-]?\d+)?[kmbt]?\s*", re.IGNORECASE)

_SHOWN = 60
"""Characters of a header in a message."""

_ROW, _CONFIG, _RECEIPT = "row.csv", "config.json", "receipt.json"


def read_table(source: Any) -> Records:
    """Records of `source`: a path, a list of paths, a mapping of columns, a list of dicts, or a DataFrame.

    Raises:
        BadInput: it is not there, empty, or of no known kind.
    """
    if isinstance(source, (str, Path)):
        records, places = _read_path(Path(source))
    elif isinstance(source, Mapping):
        records, places = _from_columns(source)
    elif hasattr(source, "columns"):
        records, places = _from_columns({str(name): list(source[name]) for name in source.columns})
    elif isinstance(source, Sequence) and source and all(isinstance(item, Mapping) for item in source):
        records, places = [dict(item) for item in source], _numbered(len(source))
    elif isinstance(source, Sequence) and source:
        parts = [_read_path(Path(item)) for item in source]
        records = [record for part, _ in parts for record in part]
        places = [f"{place} of {path}" for path, (_, part) in zip(source, parts, strict=True) for place in part]
    else:
        raise BadInput(f"rows of type {type(source).__name__} cannot be read: give a file, a run folder or columns")
    if not records:
        raise BadInput(f"{_named(source)} holds no rows: give at least one run")
    return records, places


def _read_path(path: Path) -> Records:
    if path.is_dir():
        return _run_folders(path)
    if not path.exists():
        raise BadInput(f"rows file {path} does not exist: name a CSV, JSONL or parquet file or a folder of runs")
    if not path.is_file():
        raise BadInput(f"rows file {path} is a device or a pipe: save the rows to a file such as rows.csv")
    readers = {".csv": _csv, ".tsv": _csv, ".jsonl": _jsonl, ".ndjson": _jsonl, ".json": _json, ".parquet": _parquet}
    if path.suffix.lower() not in readers:
        ending = f"ends in '{path.suffix}'" if path.suffix else "has no ending"
        raise BadInput(f"rows file {path} {ending}: use one of {', '.join(readers)}")
    try:
        return readers[path.suffix.lower()](path)
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from error
    except csv.Error as error:
        raise BadInput(f"{path} cannot be read as a table ({error}): save it as CSV again") from error
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror or 'damaged'}): mend it or name another") from error


def _csv(path: Path) -> Records:
    with open(path, encoding="utf-8-sig", newline="") as file:
        start, blank, first = 0, 0, file.readline()
        while first and not first.strip():
            start, blank, first = file.tell(), blank + 1, file.readline()
        file.seek(start)
        delimiter = "\t" if path.suffix.lower() == ".tsv" else _delimiter(first)
        reader = csv.DictReader(file, delimiter=delimiter)
        headers = [header.strip() for header in reader.fieldnames or () if header.strip()]
        if twice := [header for header in headers if headers.count(header) > 1]:
            raise BadInput(f"{path} has {headers.count(twice[0])} columns '{twice[0]}': rename or remove all but one")
        records, places = [], []
        for record in reader:
            if None in record or None in record.values():
                raise BadInput(
                    f"{path} line {blank + reader.line_num} has another number of cells than the header, "
                    f"'{first.strip()[:_SHOWN]}': mend it"
                )
            records.append(record)
            places.append(f"row {len(records)} (line {blank + reader.line_num})")
    return records if delimiter == "," else _with_points(path, records, places), places


def _delimiter(header: str) -> str:
    """What stands between the names of the first line; a comma where nothing does."""
    bare = _QUOTED.sub("", header)
    return max(",;\t|", key=bare.count)


def _with_points(path: Path, records: list[dict[str, str]], places: list[str]) -> list[dict[str, str]]:
    """The records with 2.5 for 2,5, as spreadsheets write numbers where the comma is the decimal sign."""
    cells = [(i, cell) for i, record in enumerate(records) for cell in record.values()]
    commas = next(((i, cell) for i, cell in cells if _DECIMAL_COMMA.fullmatch(cell)), None)
    points = next(((i, cell) for i, cell in cells if _DECIMAL_POINT.fullmatch(cell)), None)
    if commas and points:
        raise BadInput(
            f"{path} has {points[1].strip()} in {places[points[0]]} and {commas[1].strip()} in {places[commas[0]]}, so "
            "that neither sign is sure to be the decimal one: save it with one of them and none for thousands"
        )
    if not commas:
        return records
    return [
        {name: cell.replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell) else cell for name, cell in record.items()}
        for record in records
    ]


def _jsonl(path: Path) -> Records:
    records = []
    for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if text.strip():
            records.append(_object(text, f"{path} line {line}"))
    return records, _numbered(len(records))


def _json(path: Path) -> Records:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not JSON ({error}): write a list of objects, or a JSONL file") from error
    if isinstance(value, dict) and all(isinstance(cells, list) for cells in value.values()):
        return _from_columns(value)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise BadInput(f"{path} holds no runs: write a list of objects, or an object with a list per column")
    return [dict(item) for item in value], _numbered(len(value))


def _object(text: str, place: str) -> dict:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{place} is not JSON ({error}): mend or remove that line") from error
    if not isinstance(value, dict):
        raise BadInput(f"{place} is no JSON object: each line of a JSONL file is one run")
    return value


def _parquet(path: Path) -> Records:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise BadInput(f"{path} needs pyarrow: pip install 'diloco[data]', or save the rows as CSV") from error
    try:
        return _from_columns(pyarrow.parquet.read_table(path).to_pydict())
    except (pyarrow.ArrowException, OSError) as error:
        raise BadInput(f"{path} is no parquet file that can be read: write it again, or save it as CSV") from error


def _run_folders(path: Path) -> Records:
    """A run's folder, or a folder of them; a run without its row or receipt counts as unfinished."""
    folders = [path] if (path / _CONFIG).is_file() else sorted(p.parent for p in path.glob(f"*/{_CONFIG}"))
    if not folders:
        raise BadInput(
            f"folder {path} holds no runs (no {_CONFIG} in it or one level below): name a folder of run folders, or "
            "the table itself"
        )
    records = [_run_record(folder) for folder in folders]
    return records, [f"run {folder.name}" for folder in folders]


def _run_record(folder: Path) -> dict[str, Any]:
    if not (folder / _ROW).is_file() or not (folder / _RECEIPT).is_file():
        return {"run": folder.name, "status": "unfinished"}
    records, _ = _csv(folder / _ROW)
    if len(records) != 1:
        raise BadInput(f"{folder / _ROW} holds {len(records)} rows, and a run is one: mend it or leave the folder out")
    return {**records[0], "status": "finished"}


def _from_columns(columns: Mapping[str, Any]) -> Records:
    cells = {str(name): _cells(str(name), values) for name, values in columns.items()}
    lengths = {name: len(values) for name, values in cells.items()}
    if len(set(lengths.values())) > 1:
        raise BadInput(f"columns have different lengths {lengths}: give one value per run in each")
    count = next(iter(lengths.values()), 0)
    return [{name: values[i] for name, values in cells.items()} for i in range(count)], _numbered(count)


def _cells(name: str, values: Any) -> list[Any]:
    """One column's values, masked ones as empty. Raises BadInput for what is no column."""
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__") or getattr(values, "ndim", 1) != 1:
        raise BadInput(f"column {name} is {type(values).__name__} with no value per run: give a list or a 1-d array")
    return values.tolist() if hasattr(values, "mask") and hasattr(values, "filled") else list(values)


def files_of(path: Path) -> list[Path]:
    """The files that reading `path` reads: itself, or those of the run folders in it."""
    names = (_ROW, _CONFIG, _RECEIPT)
    return [file for name in names for file in (path / name, *path.glob(f"*/{name}"))] if path.is_dir() else [path]


def _numbered(count: int) -> list[str]:
    return [f"row {i}" for i in range(1, count + 1)]


def _named(source: Any) -> str:
    return str(source) if isinstance(source, (str, Path)) else f"the {type(source).__name__} of rows"
