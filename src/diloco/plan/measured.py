"""Realised FLOP/s of a device: from `diloco bench device`, or from the folder of a finished run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from diloco.errors import BadInput
from diloco.plan.hardware import Chip, Speed
from diloco.plan.model import SEQ_LEN, shape_of
from diloco.units import format_count, format_flop_per_s

KIND = "diloco bench device"
"""The `kind` of a file that `diloco bench device` wrote."""

_GIVE = f"give what `{KIND} --out FILE` wrote"


def measured_speed(path: str, chip: Chip | None = None) -> Speed:
    """Of a chip as measured: `ModelShape.flops_per_token` over the seconds of computing. With `chip`, says so where it
    was another device that was measured.

    Raises:
        BadInput: neither a file of `diloco bench device` nor a run folder with a receipt that tells computing apart, or
            a speed beyond the chip's peak.
    """
    place = Path(path)
    speed, device = _of_a_run(place) if place.is_dir() else _of_a_bench(place)
    if chip is None:
        return speed
    peak = chip.most
    if speed.flop_per_s > peak:
        raise BadInput(
            f"--measured is {path}, which says {format_flop_per_s(speed.flop_per_s)}, more than the peak of "
            f"{chip.label}, {format_flop_per_s(peak)}: measure that chip, or name the one that was measured in --sites"
        )
    if device and not _alike(device, chip):
        return Speed(speed.flop_per_s, f"{speed.how}, on {device!r} and not on {chip.label}: taken to hold for it")
    return speed


def _of_a_bench(path: Path) -> tuple[Speed, str]:
    record = _read(path)
    if record.get("kind") != KIND:
        raise BadInput(f"--measured is {path}, which is no file of `{KIND}`: {_GIVE}")
    flop_per_s = record.get("flop_per_s")
    if not _above_zero(flop_per_s):
        raise BadInput(f"--measured is {path}, without a flop_per_s: {_GIVE}")
    size = f" with a model of {record['size']}" if "size" in record else ""
    how = f"measured by `{KIND}`: {format_flop_per_s(flop_per_s)}{size} ({path.name})"
    return Speed(flop_per_s * _beside_weights(record), how), str(record.get("device", ""))


def _of_a_run(folder: Path) -> tuple[Speed, str]:
    receipt, config = _read(folder / "receipt.json"), _read(folder / "config.json")
    seconds, tokens, params = receipt.get("compute_s"), receipt.get("tokens_per_replica"), config.get("params")
    if not (_above_zero(seconds) and _above_zero(params) and tokens):
        raise BadInput(
            f"--measured is {folder}, whose receipt has no compute_s: give a run with --method diloco, or a file that "
            f"`{KIND} --out FILE` wrote"
        )
    devices = _devices(str(config.get("mesh", "")))
    model = shape_of(params, seq_len=_seq_len(config.get("config")))
    flop_per_s = model.flops_per_token * tokens[receipt.get("replica", 0)] / seconds / devices
    speed = format_flop_per_s(flop_per_s)
    how = f"measured in {folder}: {speed} a device while computing, with {format_count(params)} parameters"
    device = str(config.get("device", ""))
    return Speed(flop_per_s, how), device if device.startswith("cpu") else ""


def _beside_weights(record: dict[str, Any]) -> float:
    """All operations of a measured token over the 6 N that the file counts."""
    if not (_above_zero(record.get("params")) and _above_zero(record.get("seq_len"))):
        return 1.0
    model = shape_of(record["params"], seq_len=int(record["seq_len"]))
    return model.flops_per_token / model.weight_flops_per_token


def _seq_len(settings: Any) -> int:
    """Tokens of a sequence, of a run's settings; where they do not say, those up to which 6 N stands for all."""
    data = settings.get("data") if isinstance(settings, dict) else None
    found = data.get("seq_len") if isinstance(data, dict) else None
    return int(found) if _above_zero(found) else SEQ_LEN


def _alike(device: str, chip: Chip) -> bool:
    """Whether a device's own name, such as "NVIDIA H100 80GB HBM3" or "cpu", is that of a kind of chip."""
    words = device.lower().replace("-", " ").split()
    return any(word in words for word in chip.name.lower().replace("-", " ").split()) or device == chip.label


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
        raise BadInput(f"--measured {path} is not JSON ({error}): {_GIVE}") from error
    if not isinstance(found, dict):
        raise BadInput(f"--measured {path} is not one JSON object: {_GIVE}")
    return found


def _above_zero(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
