"""Realised FLOP/s of a device: from `diloco bench device`, or from the folder of a finished run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from diloco.errors import BadInput
from diloco.plan.hardware import Speed
from diloco.plan.units import format_flop_per_s


def measured_speed(path: str) -> Speed:
    """Of a chip as measured: 6 N FLOPs a token over the seconds of computing.

    Raises:
        BadInput: neither a file of `diloco bench device` nor a run folder with a receipt that tells computing apart.
    """
    place = Path(path)
    if place.is_dir():
        return _of_a_run(place)
    flop_per_s = _read(place).get("flop_per_s")
    if not _above_zero(flop_per_s):
        raise BadInput(f"--measured is {path}, without a flop_per_s: give what `diloco bench device --out FILE` wrote")
    return Speed(
        float(flop_per_s), f"measured by `diloco bench device`: {format_flop_per_s(flop_per_s)} ({place.name})"
    )


def _of_a_run(folder: Path) -> Speed:
    receipt, config = _read(folder / "receipt.json"), _read(folder / "config.json")
    seconds, tokens, params = receipt.get("compute_s"), receipt.get("tokens_per_replica"), config.get("params")
    if not (_above_zero(seconds) and _above_zero(params) and tokens):
        raise BadInput(
            f"--measured is {folder}, whose receipt has no compute_s: give a run with --method diloco, or a file that "
            "`diloco bench device --out FILE` wrote"
        )
    devices = _devices(str(config.get("mesh", "")))
    flop_per_s = 6 * params * tokens[receipt.get("replica", 0)] / seconds / devices
    return Speed(flop_per_s, f"measured in {folder}: {format_flop_per_s(flop_per_s)} a device while computing")


def _devices(mesh: str) -> int:
    """Of one replica, from a mesh such as "replica=2,shard=4"."""
    sizes = dict(part.split("=") for part in mesh.replace(" ", "").split(",") if "=" in part)
    return math.prod(int(size) for axis, size in sizes.items() if axis != "replica")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"--measured {path} cannot be read ({error.strerror}): check the path") from error
    except ValueError as error:
        raise BadInput(f"--measured {path} is not JSON ({error}): give what `diloco bench device` wrote") from error
    if not isinstance(found, dict):
        raise BadInput(f"--measured {path} is not one JSON object: give what `diloco bench device` wrote")
    return found


def _above_zero(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
