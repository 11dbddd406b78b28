"""Numbers as a reader wants them: three figures and a unit."""

from __future__ import annotations

import math

NONE = "\N{EN DASH}"
_DECIMAL = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_MINUTE_S, _HOUR_S = 60, 3600


def count(value: float | None) -> str:
    """2_500_000 -> "2.5M"; billions are B, as the field writes parameters and tokens."""
    return _scaled(value, "").replace("G", "B")


def size(size_bytes: float | None) -> str:
    """12_300_000 -> "12.3 MB" (powers of ten)."""
    return _scaled(size_bytes, "B", " ")


def bandwidth(mbit_per_s: float | None) -> str:
    """94.1 -> "94.1 Mbit/s"."""
    return _scaled(None if mbit_per_s is None else 1e6 * mbit_per_s, "bit/s", " ")


def duration(seconds: float | None) -> str:
    """75 -> "1 min 15 s"."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < _MINUTE_S:
        return f"{seconds:.3g} s"
    if seconds < _HOUR_S:
        return f"{int(seconds // _MINUTE_S)} min {int(seconds % _MINUTE_S)} s"
    return f"{int(seconds // _HOUR_S)} h {int(seconds % _HOUR_S // _MINUTE_S)} min"


def loss(nats: float | None) -> str:
    """Four significant figures, as far as held-out sets of this size can tell losses apart."""
    if nats is None:
        return NONE
    return f"{nats:.4g}" if not math.isfinite(nats) else f"{nats:#.4g}"


def percent(value: float | None) -> str:
    """Signed, one decimal: "+3.1%"."""
    return NONE if value is None else f"{value:+.1f}%".replace("-", "\N{MINUS SIGN}")


def _scaled(value: float | None, unit: str, gap: str = "") -> str:
    if value is None or not math.isfinite(value):
        return NONE
    for factor, prefix in _DECIMAL:
        if abs(value) >= factor:
            scaled = value / factor
            return f"{scaled:.{0 if scaled >= 100 else 1}f}".removesuffix(".0") + gap + prefix + unit
    return f"{value:g}" + (gap + unit if unit else "")
