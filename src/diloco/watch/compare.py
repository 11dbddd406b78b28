"""Several runs side by side: seeds of the same settings form a group, groups are set against data parallel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from diloco.errors import BadInput
from diloco.watch.runfolder import ROW_COLUMNS, RunFolder
from diloco.watch.student import welch_interval

BASELINE_METHOD = "dp"
LEVEL = 0.95
"""Of the interval around a difference."""

_ON_THE_WIRE = {
    "interval": "fixed", "overlap": "0", "mixing": "0", "merge": "mean", "sites": 1, "site_every": 0, "link": "none",
}  # fmt: skip
"""Settings that a row does not hold but the run's configuration, and what they are where it is older than they."""

PLAIN = {**_ON_THE_WIRE, "fragments": 1, "codec": "fp32"}
"""What a setting is where nothing is made of it: no name of a group need say so."""

_RESULTS = ("run", "seed", "loss", "loss_se", "flops", "seconds", "bytes_sent")
SETTINGS = (*(column for column in ROW_COLUMNS if column not in _RESULTS), *_ON_THE_WIRE)
"""What runs of one group agree in: they differ in the seed alone."""

# Every table shows these; other settings join where the groups differ in them.
_ALWAYS_SHOWN = ("method", "replicas", "sync_every")


@dataclass(frozen=True)
class Group:
    """Runs that differ only in the seed. Two runs of one seed count once, as their mean."""

    settings: dict[str, Any]
    rows: list[dict]
    folders: list[RunFolder]

    @property
    def losses(self) -> list[float]:
        by_seed: dict[Any, list[float]] = {}
        for row in self.rows:
            by_seed.setdefault(row["seed"], []).append(row["loss"])
        return [fmean(losses) for losses in by_seed.values()]

    @property
    def mean(self) -> float:
        """NaN where a seed diverged: leaving it out would flatter the group."""
        return fmean(self.losses)

    @property
    def sd(self) -> float | None:
        """Over seeds; None for one seed."""
        return stdev(self.losses) if len(self.losses) > 1 and math.isfinite(self.mean) else None

    @property
    def diverged(self) -> int:
        return sum(not math.isfinite(loss) for loss in self.losses)

    @property
    def is_baseline_method(self) -> bool:
        return self.settings["method"] == BASELINE_METHOD


@dataclass(frozen=True)
class Comparison:
    """Groups from the best mean loss to the worst (diverged last), and what a reader must know about them."""

    groups: list[Group]
    runs: list[RunFolder]
    notes: list[str] = field(default_factory=list)

    @property
    def shown_settings(self) -> list[str]:
        """The settings that tell these groups apart, after those always shown. What a method lacks tells nothing."""
        values = {s: {repr(group.settings[s]) for group in self.groups} - {"None"} for s in SETTINGS}
        varying = [setting for setting in SETTINGS if len(values[setting]) > 1]
        return [*_ALWAYS_SHOWN, *(setting for setting in varying if setting not in _ALWAYS_SHOWN)]

    def baseline_of(self, group: Group) -> Group | None:
        """The best data-parallel group with the same model and tokens."""
        same = ("model", "tokens")
        fits = (
            other
            for other in self.groups
            if other.is_baseline_method and all(other.settings[key] == group.settings[key] for key in same)
        )
        return next(fits, None)

    def table(self) -> list[dict]:
        """A dict per group: its settings, runs, seeds, and loss against data parallel. Plain JSON."""
        return [self._line(group) for group in self.groups]

    def _line(self, group: Group) -> dict:
        baseline = self.baseline_of(group)
        low, high = self._interval_percent(group, baseline)
        return {
            **group.settings,
            "runs": [run.name for run in group.folders],
            "seeds": sorted({row["seed"] for row in group.rows}),
            "n": len(group.losses),
            "diverged": group.diverged,
            "loss_mean": group.mean if math.isfinite(group.mean) else None,
            "loss_sd": group.sd,
            "is_baseline": group is baseline,
            "difference_percent": _percent(group, baseline),
            "difference_low_percent": low,
            "difference_high_percent": high,
            "bytes_sent_mean": _mean_of(group, "bytes_sent"),
            "seconds_mean": _mean_of(group, "seconds"),
            "note": _note(group, baseline),
        }

    def _interval_percent(self, group: Group, baseline: Group | None) -> tuple[float | None, float | None]:
        if _percent(group, baseline) is None:
            return None, None
        interval = welch_interval(group.losses, baseline.losses, LEVEL)
        return tuple(100 * bound / baseline.mean for bound in interval) if interval else (None, None)


def compare(run_paths: Sequence[str | Path]) -> Comparison:
    """Group the runs in `run_paths`. Runs without a final loss are named in the notes and left out of the groups.

    Raises:
        BadInput: no path, a path that is no run folder, one named twice, or none of the runs has ended.
    """
    if not run_paths:
        raise BadInput("no runs to compare: name at least one run folder")
    runs = [RunFolder(path) for path in run_paths]
    places = [run.path.resolve() for run in runs]
    if twice := [str(run.path) for run, place in zip(runs, places, strict=True) if places.count(place) > 1]:
        raise BadInput(f"run {twice[0]} is named twice: name each run once")
    rows = [(run, row) for run in runs if (row := run.row) and row["loss"] is not None]
    ended = [run for run, _ in rows]
    unfinished = [run.name for run in runs if run not in ended]
    if len(unfinished) == len(runs):
        raise BadInput(f"none of the runs has ended ({', '.join(unfinished)}): wait for one or resume it")
    groups = _group(rows)
    return Comparison(groups, ended, _notes(groups, unfinished))


def comparison_table(run_paths: Sequence[str | Path]) -> list[dict]:
    """`compare(run_paths).table()`: a dict per group of runs, best first, ready for JSON."""
    return compare(run_paths).table()


def _group(rows: list[tuple[RunFolder, dict]]) -> list[Group]:
    groups: dict[tuple, Group] = {}
    for run, row in rows:
        settings = {**{column: row[column] for column in SETTINGS if column in row}, **_wire_settings(run, row)}
        group = groups.setdefault(tuple(settings.values()), Group(settings, [], []))
        group.rows.append(row)
        group.folders.append(run)
    return sorted(groups.values(), key=lambda group: (not math.isfinite(group.mean), group.mean))


def _wire_settings(run: RunFolder, row: dict) -> dict[str, Any]:
    """None for what the run has not got."""
    config = run.config.get("config", {})
    found = {name: default if config.get(name, "") == "" else config[name] for name, default in _ON_THE_WIRE.items()}
    if row["method"] != BASELINE_METHOD:
        return found
    # The baseline's gradients cross its link too; the rest it does not have.
    return {name: value if name == "link" else None for name, value in found.items()}


def _notes(groups: list[Group], unfinished: list[str]) -> list[str]:
    notes = []
    if unfinished:
        notes.append(f"Left out because they have not ended ({len(unfinished)}): {', '.join(unfinished)}.")
    if all(len(group.losses) == 1 for group in groups):
        notes.append("One seed: no spread. A difference of a few per cent may be chance; run three seeds or more.")
    elif single := sum(len(group.losses) == 1 for group in groups):
        notes.append(f"{single} of {len(groups)} settings have one seed: no spread, no interval.")
    if not any(group.is_baseline_method for group in groups):
        notes.append("No data-parallel run (method dp) among these: there is no baseline.")
    if len({group.settings["tokens"] for group in groups}) > 1:
        notes.append("Token budgets differ between these runs: only equal ones are set against each other.")
    return notes


def _percent(group: Group, baseline: Group | None) -> float | None:
    if baseline is None or group is baseline or not math.isfinite(group.mean + baseline.mean):
        return None
    return 100 * (group.mean / baseline.mean - 1)


def _mean_of(group: Group, column: str) -> float | None:
    values = [row[column] for row in group.rows if row[column] is not None]
    return fmean(values) if values else None


def _note(group: Group, baseline: Group | None) -> str:
    if group.diverged:
        return f"{group.diverged} of {len(group.losses)} seeds diverged"
    if group is baseline:
        return "baseline"
    if len(group.losses) == 1:
        return "one seed: no spread"
    return ""
