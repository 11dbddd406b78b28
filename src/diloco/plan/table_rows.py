"""Rows of a table of bandwidths as papers and spreadsheets have them: other headers, units, sizes that only a name has,
and a column for each target.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from diloco.errors import BadInput
from diloco.plan.model import known_models
from diloco.units import format_things, parse_bandwidth, parse_count, parse_duration

PUBLISHED = ("streaming_t04", "scaling_t06")

COLUMNS: dict[str, tuple[str, ...]] = {
    "model": ("model", "arch", "architecture", "name"),
    "params": ("params", "parameters", "n_params", "num_params"),
    "size": ("size", "model_size"),
    "layers": ("layers", "n_layers", "num_layers"),
    "step_time_s": ("step_time_s", "step_time", "step_s", "step_time_ms"),
    "method": ("method", "algorithm"),
    "target": (
        "target_cu_pct",
        "target_cu",
        "target_pct",
        "target",
        "compute_utilization",
        "compute_utilisation",
        "utilization",
        "utilisation",
        "cu",
    ),
    "gbit_per_s": ("gbit_per_s", "bandwidth"),
    "sync_every": ("sync_every", "h"),
    "overlap_steps": ("overlap_steps", "overlapped_steps", "tau"),
    "bits_per_param": ("bits_per_param", "bits"),
    "fragment_layers": ("fragment_layers",),
    "fragments": ("fragments", "p"),
}
"""What is read from a column with any of these headers, in whatever case, with blanks or signs for underscores."""

SETTINGS = ("sync_every", "overlap_steps", "bits_per_param", "fragment_layers", "fragments")

_TARGET_HEADER = re.compile(
    r"(?:target|cu|at|gbit_per_s|gbit_s|gbps)?_*(\d{1,2}(?:\.\d+)?)_*(?:%|pct|percent)?_*(?:cu)?"
)
_ENDS_IN_PERCENT = re.compile(r"(?:.*[^\d.])?(\d{1,2}(?:\.\d+)?)_*%")
_GBIT = r"(?:gbit_per_s|gbits?(?:_s)?|gb_s|gbps)"
_BANDWIDTH_HEADER = re.compile(rf"(?:needed_|required_)?(?:bandwidth|(?:bandwidth_)?{_GBIT})(?:_needed|_required)?")
_OTHER_UNIT = re.compile(r"(?<![A-Za-z])(?:[KMGT]i?B|[kKMT]i?b(?:its?|ps)?|[kKMGT]?[Bb]ytes?)(?![A-Za-z])")
_BLANK = ("", "-", "\N{EN DASH}", "\N{EM DASH}", "nan")
_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[ ]?([kmbt])(?:illion)?\b", re.IGNORECASE)


@dataclass(frozen=True)
class TableRow:
    """One cell of a table and what it rests on."""

    place: str
    """"row 3 of table.csv", for a refusal."""
    model: str
    method: str
    params: float
    layers: int
    step_s: float
    target: float
    """A share, 0 to 1."""
    printed: str
    """Gbit/s; "" where the table leaves it open."""
    settings: dict[str, float] = field(default_factory=dict)
    """Fields of `diloco.plan.graph.Method` that stand in columns of their own."""


@dataclass(frozen=True)
class UnreadRow:
    """A row that is left out."""

    place: str
    why: str
    """A sentence without its full stop."""
    cells: int = 1

    def __str__(self) -> str:
        return f"{self.place}: {self.why}"


@dataclass(frozen=True)
class Table:
    """What was read."""

    rows: tuple[TableRow, ...]
    unread: tuple[str, ...]
    """Headers of columns that say nothing here, such as source."""
    unread_rows: tuple[UnreadRow, ...] = ()


def published_table(name: str) -> list[dict[str, str]]:
    """The records of a table in the package's data: streaming_t04 or scaling_t06."""
    text = resources.files("diloco.plan").joinpath("data", f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def read_table(table: str | Path | Iterable[Mapping[str, Any]], layers: int | None = None) -> Table:
    """Rows of a CSV file, or of mappings from header to cell.

    Args:
        layers: for the rows of models whose layers are neither in the table nor known.

    Raises:
        BadInput: no such file, a missing column, or not one row whose cells are what their columns hold; names the row.
    """
    is_file = isinstance(table, (str, Path))
    name = f" of {Path(table).name}" if is_file else ""
    records = _read_csv(Path(table)) if is_file else [dict(record) for record in table]
    if not records:
        raise BadInput(f"table{name} has no rows: give one with {_columns_wanted()}")
    found: dict[str, dict[str, str]] = {}
    rows: list[TableRow] = []
    unread: list[UnreadRow] = []
    for number, record in enumerate(records, 1):
        place, whole = f"row {number}{name}", {key: cell for key, cell in record.items() if key is not None}
        headers = found.setdefault(str(list(whole)), _headers(whole, f"table{name}"))
        try:
            if is_file and (None in record or None in record.values()):
                raise BadInput("it has not as many cells as the header: add or remove some")
            rows += _rows(whole, headers, place, layers)
        except BadInput as error:
            unread.append(UnreadRow(place, str(error), max(1, sum(map(_is_target, headers.values())))))
    refuse_none(rows, unread)
    used = {header for headers in found.values() for header in headers} | {None}
    others = tuple(dict.fromkeys(h for record in records for h in record if h not in used))
    return Table(tuple(rows), others, tuple(unread))


def refuse_none(read: Sequence[Any], unread: Sequence[UnreadRow]) -> None:
    """Raises BadInput where nothing is read, with the first reason."""
    if not read and unread:
        others = len({row.place for row in unread}) - 1
        more = f"; {format_things(others, 'other row')} cannot be read either" if others else ""
        raise BadInput(f"{unread[0]}{more}")


def _read_csv(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise BadInput(f"table {path} is no file: give a CSV file with {_columns_wanted()}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"table {path} cannot be read ({error}): give a CSV file in UTF-8") from error
    head = text.partition("\n")[0]
    delimiter = max(",;\t", key=head.count)
    return list(csv.DictReader(text.splitlines(), delimiter=delimiter, skipinitialspace=True))


def _headers(record: Mapping[str, Any], name: str) -> dict[str, str]:
    """What each header stands for, of those that stand for anything; a target's own column for a number such as 50."""
    found: dict[str, str] = {}
    ends: dict[str, str] = {}
    for header in record:
        plain = re.sub(r"[^a-z0-9.%]+", "_", str(header).strip().lower()).strip("_")
        target, end = _TARGET_HEADER.fullmatch(plain), _ENDS_IN_PERCENT.fullmatch(plain)
        if meaning := _meaning(plain):
            found[header] = meaning
        elif target and 0 < float(target[1]) < 100:
            found[header] = f"{float(target[1]):g}"
        elif end and 0 < float(end[1]) < 100:
            ends[header] = f"{float(end[1]):g}"
    if "target" not in found.values():
        found = {header: {**found, **ends}[header] for header in record if header in found or header in ends}
    _refuse_units(found, name)
    has = set(found.values())
    wide = any(_is_target(key) for key in has)
    if wide and "target" in has:
        raise BadInput(f"{name} has a column of targets and one for each target: leave one kind out")
    for key in ("step_time_s", "method", *(() if wide else ("target", "gbit_per_s"))):
        if key not in has:
            raise BadInput(f"{name} has no column {COLUMNS[key][0]!r}: give {_columns_wanted()}")
    if not has & {"params", "size", "model"}:
        raise BadInput(f"{name} has no column 'params' or 'model': give {_columns_wanted()}")
    return found


def _meaning(plain: str) -> str | None:
    for key, aliases in COLUMNS.items():
        if plain in aliases or (key == "target" and re.sub(r"_?(?:%|pct|percent)$", "", plain) in aliases):
            return key
    return "gbit_per_s" if _BANDWIDTH_HEADER.fullmatch(plain) else None


def _refuse_units(found: Mapping[str, str], name: str) -> None:
    """Raises BadInput for bandwidths in other units, and for two columns of one target."""
    targets: dict[str, str] = {}
    for header, key in found.items():
        if (_is_target(key) or key == "gbit_per_s") and (other := _OTHER_UNIT.search(str(header))):
            raise BadInput(f"{name} has a column {header!r} in {other[0]}: give Gbit/s, and say so in its header")
        if _is_target(key) and targets.setdefault(key, header) != header:
            raise BadInput(f"{name} has two columns for {key}%, {targets[key]!r} and {header!r}: leave one out")


def _columns_wanted() -> str:
    return "columns model (or params and layers), step_time_s, method, target_cu_pct and gbit_per_s"


def _is_target(key: str) -> bool:
    return key[:1].isdigit()


def _rows(record: Mapping[str, Any], headers: dict[str, str], place: str, layers: int | None) -> list[TableRow]:
    cells: dict[str, list[tuple[str, str]]] = {}
    for header, key in headers.items():
        cells.setdefault(key, []).append((str(header), _text(record[header])))
    one = {key: next(((h, text) for h, text in found if text), (found[0][0], "")) for key, found in cells.items()}
    names = [text for key in ("model", "size") for _, text in cells.get(key, []) if text]
    model = " ".join(dict.fromkeys(names)) or one.get("params", ("", ""))[1]
    params = _params(one, model)
    settings = {key: _number(*one[key]) for key in SETTINGS if one.get(key, ("", ""))[1]}
    whole = {k: v if k == "bits_per_param" else _whole(k, v) for k, v in settings.items()}
    if not one["method"][1]:
        raise BadInput("method is empty: give one, as DiLoCo")
    if any(map(_is_target, one)):
        targets = {target: text for target, (_, text) in one.items() if _is_target(target)}
    else:
        targets = {one["target"][1]: one["gbit_per_s"][1]}
    layer_count, step_s = _layers(one, model, params, layers), _seconds(*one["step_time_s"])
    rows = []
    for target, text in targets.items():
        share = _target(one["target"][0], target) if "target" in one else float(target) / 100
        printed = "" if text.lower() in _BLANK else text
        rows.append(TableRow(place, model, one["method"][1], params, layer_count, step_s, share, printed, whole))
    return rows


def _text(cell: Any) -> str:
    return "" if cell is None else str(cell).strip()


def _number(header: str, text: str) -> float:
    return 0.0 if re.fullmatch(r"0+(\.0*)?", text) else parse_count(text, header, "100")


def _whole(name: str, value: float) -> int:
    if value != int(value):
        raise BadInput(f"{name} is {value:g}: give a whole number, as {round(value)}")
    return int(value)


def _params(one: dict[str, tuple[str, str]], model: str) -> float:
    """Of a column, or else the size that stands in the model's name."""
    header, text = one.get("params", ("", ""))
    if text:
        return parse_count(text, header, "1e9 or 1B")
    sizes = {parse_count("".join(found), "model", "1B") for found in _SIZE.findall(re.sub(r"[-_(),/]+", " ", model))}
    if len(sizes) != 1:
        many = "more than one size" if sizes else "no size"
        raise BadInput(f"model is {model!r}, which has {many} in it: add a column params, as 1e9 or 1B")
    return sizes.pop()


def _layers(one: dict[str, tuple[str, str]], model: str, params: float, layers: int | None) -> int:
    header, text = one.get("layers", ("", ""))
    if text:
        return _whole(header, parse_count(text, header, "24"))
    found = known_layers(model, params) or layers
    if found is None:
        raise BadInput(f"model is {model!r}, whose layers are unknown: add a column layers (in Python, layers=24)")
    return found


def _seconds(header: str, text: str) -> float:
    if re.fullmatch(r"[\d.]+(?:[eE][+-]?\d+)?", text):
        text += "ms" if header.strip().lower().endswith("ms") else "s"
    return parse_duration(text, header, "0.1 or 100ms")


def _target(header: str, text: str) -> float:
    """A share from 50 or 50%; 0.5 may be either and is refused."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(%?)", text)
    percent = float(found[1]) if found else 0.0
    if found is None or not 0 < percent < 100:
        raise BadInput(f"{header} is {text!r}: give a percentage above 0 and below 100, as 50 or 50%")
    if percent <= 1 and not found[2]:
        way = f"{100 * percent:g}% or {percent:g}%" if percent < 1 else "1%, or a larger one"
        raise BadInput(f"{header} is {text!r}, which may be a share or a percentage: write {way}")
    return percent / 100


def printed_gbit_per_s(text: str, name: str = "gbit_per_s") -> tuple[float, bool]:
    """A printed cell as Gbit/s, and whether it is "1000.0+", which is more than that. Raises BadInput for no number."""
    found = re.fullmatch(r"(>?)\s*(.*?)\s*(\+?)", text.strip())
    assert found is not None
    number = found[2] if re.search(r"[a-zA-Z]", found[2].replace("e", "")) else f"{found[2]}gbit"
    return parse_bandwidth(number, name, "86.8 or 1000.0+"), bool(found[1] or found[3])


def known_layers(model: str, params: float) -> int | None:
    """Layers of a model of this size in a published table or in data/models.toml, if its name is of that family.

    A size alone is one of the papers' own models, which are Chinchilla's in shape, or else the one model of that size.
    """
    family = _family(model)
    found = {
        (theirs, layers)
        for theirs, size, layers in _known_sizes()
        if abs(size - params) <= 1e-6 * params
        and (not family or family == theirs or (theirs and (theirs.startswith(family) or family.startswith(theirs))))
    }
    own = {layers for theirs, layers in found if theirs == _OWN_FAMILY}
    layers = own or {layers for _, layers in found}
    return layers.pop() if len(layers) == 1 else None


_OWN_FAMILY = "chinchilla"


@cache
def _known_sizes() -> tuple[tuple[str, float, int], ...]:
    """Family, parameters and layers."""
    tables = [
        (r["model"], parse_count(r["params"], "params"), int(r["layers"]))
        for t in PUBLISHED
        for r in published_table(t)
    ]
    models = []
    for name, shape in known_models().items():
        nominal = _SIZE.fullmatch(name)
        models.append((name, parse_count(name, "params") if nominal else shape.params, shape.layers))
    return tuple({(_family(name) or _OWN_FAMILY, params, layers) for name, params, layers in [*tables, *models]})


def _family(model: str) -> str:
    """Llama3 405B -> llama, 10B -> nothing."""
    return re.sub(r"[^a-z]", "", _SIZE.sub("", re.sub(r"[-_(),/]+", " ", model)).lower())
