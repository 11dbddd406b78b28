"""The chips and links that are known by name: data/*.toml, and a file of the user's own that overrides them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from diloco.errors import BadInput
from diloco.plan.hardware import PRECISIONS, Chip, Link, Site
from diloco.plan.toml import read_toml
from diloco.units import parse_bandwidth, parse_bytes, parse_count, parse_duration, parse_flop_per_s, parse_usd

_RATE = re.compile(r"([0-9.]+(?=,\s*[0-9.]+\s*[num]?s$)|.*?[a-zA-Z]\s*|[^,]*)(?:(,)(.*))?", re.DOTALL)
"""A rate, whose digits a comma may part, and what follows the comma after its unit, or after a number before a time."""

DEFAULT_INSIDE = "infiniband-ndr"
"""Between the servers of a site, where nothing else is said."""


@dataclass(frozen=True)
class Catalogue:
    """Every chip and link known by name."""

    chips: Mapping[str, Chip]
    links: Mapping[str, Link]
    own: frozenset[str] = frozenset()
    """Names that a file of the user's own has, as in "chip.h100"."""

    def chip(self, name: str) -> Chip:
        """Raises BadInput, with the nearest names, for one that is unknown."""
        return _named(name, self.chips, "chip")

    def link(self, name: str) -> Link:
        """Raises BadInput, with the nearest names, for one that is unknown."""
        return _named(name, self.links, "link")

    def parse_link(self, text: str, option: str = "between") -> Link:
        """`10gbit,20ms`, `10gbit`, or a name such as `wan-10g`. Raises BadInput for anything else."""
        if text.strip().lower() in self.links:
            return self.link(text)
        rate, comma, latency = _RATE.fullmatch(text.strip()).groups()
        if not re.match(r"[+-]?\.?[0-9]", rate) and not comma:
            return self.link(text)
        gbit_per_s = parse_bandwidth(rate, option, "10gbit,20ms")
        latency_s = parse_duration(latency, f"latency of {option}", "20ms", zero=True) if comma else 0.0
        return Link(text.strip(), gbit_per_s, latency_s, label=text.strip(), source="given")

    def site(self, chip: str, chips: int, inside: Link | None = None) -> Site:
        """`chips` of one kind in whole usual servers, or in one smaller server; InfiniBand NDR between servers unless
        `inside` says otherwise. Raises BadInput for 0 chips and for a number that fills no whole servers."""
        kind = self.chip(chip)
        if chips < 1:
            raise BadInput(f"a site has {chips} chips: give 1 or more, as 64x{kind.name}")
        node_chips = min(kind.node_chips, chips)
        if chips % node_chips:
            near = max(1, round(chips / node_chips)) * node_chips
            raise BadInput(f"{chips} chips do not fill servers of {node_chips} {kind.name}: give {near}")
        links = self.link(kind.node_link), inside or self.link(DEFAULT_INSIDE)
        return Site(kind, chips // node_chips, node_chips, *links)


@cache
def catalogue(path: str | None = None) -> Catalogue:
    """What ships with the package, with the entries of the TOML file at `path` in place of those of the same name.

    An entry that has a shipped one's name may give some of its keys only.

    Raises:
        BadInput: the file cannot be read, or an entry has an unknown or missing key or a value that is none.
    """
    data = resources.files("diloco.plan").joinpath("data")
    tables: dict[str, dict[str, dict[str, Any]]] = {"chip": {}, "link": {}}
    for file in [data / "chips.toml", data / "links.toml", *([Path(path)] if path else [])]:
        read = read_toml(file)
        if not read:
            raise BadInput(f"hardware file {file} is empty: write tables [chip.NAME] or [link.NAME], or leave it out")
        for kind, entries in read.items():
            if kind not in tables or not isinstance(entries, dict):
                raise BadInput(f"{file.name} has a table {kind!r}: name tables [chip.NAME] or [link.NAME]")
            for name, entry in entries.items():
                if not isinstance(entry, dict):
                    raise BadInput(f"{file.name} has {kind}.{name} = {entry!r}: write a table [{kind}.{name}]")
                tables[kind][name.lower()] = {**tables[kind].get(name.lower(), {}), **entry}
    chips = {name: _chip(name, entry) for name, entry in tables["chip"].items()}
    links = {name: _link(name, entry) for name, entry in tables["link"].items()}
    given = read_toml(Path(path)) if path else {}
    own = frozenset(f"{kind}.{name.lower()}" for kind, entries in given.items() for name in entries)
    return Catalogue(chips, links, own)


_LISTED = ", ".join(PRECISIONS)
_CHIP = {"memory", "memory_bandwidth", "power_w", "peak"}
_CHIP_MAY = {"label", "usd_per_h", "price_date", "node_chips", "node_link", "source", "date"}
_LINK, _LINK_MAY = {"bandwidth"}, {"latency", "label", "source", "date"}


def _chip(name: str, entry: dict[str, Any]) -> Chip:
    place = f"chip.{name}"
    _check_keys(entry, _CHIP, _CHIP_MAY, place)
    return Chip(
        name=name,
        label=str(entry.get("label", name)),
        peak_flop_per_s=_peaks(entry["peak"], f"{place}.peak"),
        memory_bytes=parse_bytes(entry["memory"], f"{place}.memory"),
        memory_bytes_per_s=1e9 / 8 * parse_bandwidth(entry["memory_bandwidth"], f"{place}.memory_bandwidth"),
        power_w=parse_count(entry["power_w"], f"{place}.power_w", "700"),
        usd_per_h=parse_usd(entry["usd_per_h"], f"{place}.usd_per_h") if "usd_per_h" in entry else None,
        price_date=str(entry.get("price_date", "")),
        node_chips=_whole(entry.get("node_chips", 1), f"{place}.node_chips"),
        node_link=str(entry.get("node_link", "pcie4")),
        source=str(entry.get("source", "given")),
        date=str(entry.get("date", "")),
    )


def _peaks(value: Any, place: str) -> dict[str, float]:
    """By precision, with a unit each."""
    if not isinstance(value, dict) or not value:
        raise BadInput(f"{place} is {value!r}: give FLOP/s by precision, as {{ bf16 = '989 TFLOP/s' }}")
    for precision, speed in value.items():
        if precision not in PRECISIONS:
            near = difflib.get_close_matches(precision, PRECISIONS, n=1, cutoff=0)[0]
            raise BadInput(f"{place} has an unknown precision {precision!r}: write {near!r}, or one of {_LISTED}")
        if not isinstance(speed, str) or speed.strip()[-1:].isdigit():
            raise BadInput(f"{place}.{precision} is {speed!r}, without a unit: write it as '989 TFLOP/s'")
    return {precision: parse_flop_per_s(speed, f"{place}.{precision}") for precision, speed in value.items()}


def _whole(value: Any, place: str) -> int:
    number = parse_count(value, place, "8")
    if number != int(number):
        raise BadInput(f"{place} is {value!r}: give a whole number, as {max(1, round(number))}")
    return int(number)


def _link(name: str, entry: dict[str, Any]) -> Link:
    place = f"link.{name}"
    _check_keys(entry, _LINK, _LINK_MAY, place)
    return Link(
        name=name,
        gbit_per_s=parse_bandwidth(entry["bandwidth"], f"{place}.bandwidth"),
        latency_s=parse_duration(entry.get("latency", "0"), f"{place}.latency", zero=True),
        **{key: str(entry.get(key, "")) for key in ("label", "source", "date")},
    )


def _check_keys(entry: dict[str, Any], needed: set[str], may: set[str], place: str) -> None:
    for key in entry:
        if key not in needed | may:
            near = next(iter(difflib.get_close_matches(key, needed | may, n=1, cutoff=0.5)), None)
            raise BadInput(f"{place} has an unknown key {key!r}: {f'write {near!r}' if near else 'leave it out'}")
    if missing := needed - set(entry):
        raise BadInput(f"{place} has no {sorted(missing)[0]!r}: add it, as the shipped entries have")


def _named(name: str, known: Mapping[str, Any], kind: str) -> Any:
    found = known.get(name.strip().lower())
    if found is None:
        near = difflib.get_close_matches(name.strip().lower(), known, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}? " if near else ""
        raise BadInput(f"{kind} {name!r} is unknown: {hint}choose one of {', '.join(known)}")
    return found
