"""Quantities as people write them, `7b`, `10gbit`, `900 GB/s`, `20ms`, `30d`, and back again: three figures and a unit.

Elsewhere every number is a float in one unit, and its name says which: `_s`, `_bytes`, `gbit_per_s`, `flop_per_s`,
`usd`, `power_w`. Counts (parameters, tokens) have none.

Every package may import this file, which itself imports the standard library and `diloco.errors` alone.
"""

from __future__ import annotations

import math
import re

from diloco.errors import BadInput

HOUR_S, DAY_S = 3600.0, 86400.0
YEAR_S = 365.25 * DAY_S

NONE = "\N{EN DASH}"
"""In place of a number that there is none of."""

_COUNT = {
    **{"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12, "bn": 1e9},
    **{"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12},
}
_DECIMAL = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15, "e": 1e18}
_BINARY = {"ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40}
_SECONDS = {
    **{"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "minute": 60.0},
    **{"h": HOUR_S, "hr": HOUR_S, "hour": HOUR_S, "d": DAY_S, "day": DAY_S, "w": 7 * DAY_S, "week": 7 * DAY_S},
    **{"y": YEAR_S, "yr": YEAR_S, "year": YEAR_S},
}
"""Each may end in another s."""

_EXPONENT = r"(?:[eE][+-]?[0-9]+)?"
_NUMBER = rf"([+-]?[0-9][0-9_,]*(?:\.[0-9_,]*)?{_EXPONENT}|[+-]?\.[0-9]+{_EXPONENT})"
_QUANTITY = re.compile(_NUMBER + r"\s*(.*)", re.DOTALL)
_THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:(?:,[0-9]{3})+|(?:_[0-9]{3})+)")
_DECIMAL_COMMA = re.compile(r"([+-]?[0-9]+)[,_]([0-9]+)")
_PART = re.compile(_NUMBER + r"\s*([a-zA-Zµμ]+)\s*")


def parse_count(value: str | float, name: str = "count", example: str = "7b") -> float:
    """A number of things: `7b`, `350m`, `1.5t`, `140e9`, `140_000_000`. Raises BadInput for anything else."""
    number, unit = _split(value, name, example)
    if unit.lower() not in _COUNT:
        raise _refuse(name, value, "a number that may end in k, m, b or t", example)
    return _above_zero(number * _COUNT[unit.lower()], name, value, example)


def parse_bandwidth(value: str | float, name: str = "bandwidth", example: str = "10gbit") -> float:
    """Gbit/s from `10gbit`, `10 Gbit/s`, `100mbps`, `900 GB/s`: a capital B is a byte. A bare number has no unit.

    Raises BadInput for anything else, and for `gb`, which may be either.
    """
    number, unit = _split(value, name, example)
    word = re.sub(r"(/s|ps)$", "", unit.strip())
    found = re.fullmatch(r"([kKmMgGtT]?)(bits?|Bit|b|B|bytes?|Byte)", word)
    if found is None:
        raise _refuse(name, value, "a rate in kbit, mbit, gbit or tbit (a second), or in GB/s", example)
    prefix, kind = found[1], found[2]
    if kind == "b" and (prefix.islower() or not prefix) and not unit.endswith("ps"):
        raise BadInput(f"{name} is {value!r}, which may be bits or bytes: write {number:g}{prefix}bit or GB/s")
    bits = 8.0 if kind == "B" or "yte" in kind else 1.0
    return _above_zero(number * bits * _DECIMAL[prefix.lower()] / 1e9, name, value, example)


def parse_duration(value: str | float, name: str = "duration", example: str = "20ms", zero: bool = False) -> float:
    """Seconds from `20ms`, `90 s`, `12h`, `30d`, `1d12h`; `zero` lets 0 through. Raises BadInput for anything else."""
    text = str(value).strip()
    parts, end = [], 0
    for part in _PART.finditer(text):
        unit = part[2].replace("µ", "u").replace("μ", "u").lower()
        unit = unit if unit in _SECONDS else unit.removesuffix("s")
        if part.start() != end or unit not in _SECONDS:
            break
        parts.append(_plain(part[1], text, name, example) * _SECONDS[unit])
        end = part.end()
    if zero and text in ("0", "0.0"):
        return 0.0
    if not parts or end != len(text):
        raise _refuse(name, value, "a time in us, ms, s, min, h, d or w", example)
    seconds = sum(parts)
    return 0.0 if zero and seconds == 0 else _above_zero(seconds, name, value, example)


def parse_bytes(value: str | float, name: str = "memory", example: str = "80GB") -> float:
    """Bytes from `80GB`, `80 GiB`, `512mb`. Raises BadInput for anything else."""
    number, unit = _split(value, name, example)
    prefix = re.sub(r"(b|bytes?)$", "", unit.lower())
    factor = _BINARY.get(prefix, _DECIMAL.get(prefix))
    if factor is None or not unit:
        raise _refuse(name, value, "a size in MB, GB, GiB or TB", example)
    return _above_zero(number * factor, name, value, example)


def parse_flop_per_s(value: str | float, name: str = "speed", example: str = "989 TFLOP/s") -> float:
    """FLOP/s from `989 TFLOP/s`, `300tflops`, `3e14`. Raises BadInput for anything else."""
    number, unit = _split(value, name, example)
    prefix = re.sub(r"flops?(/s)?$", "", unit.lower())
    if prefix not in _DECIMAL:
        raise _refuse(name, value, "a speed in GFLOP/s, TFLOP/s or PFLOP/s", example)
    return _above_zero(number * _DECIMAL[prefix], name, value, example)


def parse_usd(value: str | float, name: str = "cost", example: str = "$50000") -> float:
    """US dollars from `$50000`, `50k usd`, `1.2m`. Raises BadInput for anything else."""
    text = re.sub(r"^\$|(\s*(usd|\$))$", "", str(value).strip().lower())
    number, unit = _split(text, name, example)
    if unit not in _COUNT:
        raise _refuse(name, value, "an amount of US dollars that may end in k, m or b", example)
    return _above_zero(number * _COUNT[unit], name, value, example)


def parse_share(value: str | float, name: str = "share", example: str = "40%") -> float:
    """A share above 0 and at most 1, from `40%` or `0.4`. Raises BadInput for anything else."""
    number, unit = _split(value, name, example)
    if unit not in ("", "%"):
        raise _refuse(name, value, "a share such as 40% or 0.4", example)
    share = number / 100 if unit else number
    if not 0 < share <= 1:
        near = "100%" if share > 1 else example
        near = f"{number:g}%" if not unit and 1 < number <= 100 else near
        raise BadInput(f"{name} is {value!r}: it must be above 0 and at most 100%, give {near}")
    return share


def format_count(value: float | None) -> str:
    """1.4e11 -> "140B"; billions are B, as the field writes parameters and tokens."""
    return _scaled(value, (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)), "")


def format_number(value: float, figures: int = 10) -> str:
    """1234567.0 -> "1,234,567": with no exponent, as an option takes it."""
    text = f"{value:,.{figures}g}"
    return f"{value:,.0f}" if "e" in text and abs(value) >= 1 else text


def format_things(count: int, one: str, many: str = "") -> str:
    """1, "chip" -> "1 chip"; 64, "chip" -> "64 chips"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def format_tokens(count: float) -> str:
    """1.4e11 -> "140B tokens", 1 -> "1 token"."""
    return f"{format_count(count)} token{'s' * (format_count(count) != '1')}"


def format_bytes(size_bytes: float | None) -> str:
    """1.4e10 -> "14 GB" (powers of ten)."""
    return _scaled(size_bytes, (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)), " B")


def format_bandwidth(gbit_per_s: float | None) -> str:
    """0.1 -> "100 Mbit/s"."""
    bit_per_s = None if gbit_per_s is None else 1e9 * gbit_per_s
    return _scaled(bit_per_s, (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)), " bit/s")


def format_needed(gbit_per_s: float) -> str:
    """A bandwidth; "none will do" where the link is not what is missing, nothing where nothing crosses it."""
    if not gbit_per_s:
        return NONE
    return format_bandwidth(gbit_per_s) if math.isfinite(gbit_per_s) else "none will do"


def format_flop_per_s(flop_per_s: float) -> str:
    """3.96e14 -> "396 TFLOP/s"."""
    scales = (("EFLOP/s", 1e18), ("PFLOP/s", 1e15), ("TFLOP/s", 1e12), ("GFLOP/s", 1e9))
    return _scaled(flop_per_s, scales, " FLOP/s")


def format_duration(seconds: float | None) -> str:
    """0.68 -> "680 ms", 5400 -> "1.5 h", 2.6e6 -> "30.1 d", infinity -> "never"."""
    if seconds is None or math.isnan(seconds):
        return NONE
    if math.isinf(seconds):
        return "never"
    scales = (("y", 2 * YEAR_S, YEAR_S), ("d", 2 * DAY_S, DAY_S), ("h", HOUR_S, HOUR_S), ("min", 60.0, 60.0))
    for unit, least, factor in (*scales, ("s", 1.0, 1.0), ("ms", 1e-3, 1e-3), ("us", 1e-6, 1e-6)):
        if float(f"{seconds:.3g}") >= least:
            return f"{_figures(max(seconds, least) / factor)} {unit}"
    return f"{seconds:.3g} s"


def format_days(days: float) -> str:
    """1.4134 -> "1.41 days", 0.5 -> "12 h", infinity -> "never"."""
    if days < 1 or not math.isfinite(days):
        return format_duration(days * DAY_S)
    return f"{days:,.0f} days" if days >= 100 else f"{days:.3g} day{'s' * (f'{days:.3g}' != '1')}"


def format_usd(usd: float | None) -> str:
    """52300 -> "$52.3k"."""
    text = _scaled(usd, (("B", 1e9), ("M", 1e6), ("k", 1e3)), "")
    return text if text == NONE else f"${text}"


def format_share(share: float) -> str:
    """0.954 -> "95.4%"."""
    return f"{100 * share:.1f}%" if share < 0.9995 else f"{100 * share:.4g}%"


def format_change(percent: float | None) -> str:
    """3.14 -> "+3.1%": signed, one decimal."""
    return NONE if percent is None else f"{percent:+.1f}%".replace("-", "\N{MINUS SIGN}")


def format_loss(nats: float | None) -> str:
    """2.0784 -> "2.078": four figures, as far as held-out sets can tell losses apart."""
    if nats is None:
        return NONE
    return f"{nats:#.4g}" if math.isfinite(nats) else f"{nats:.4g}"


def _split(value: str | float, name: str, example: str) -> tuple[float, str]:
    found = _QUANTITY.fullmatch(str(value).strip())
    if found is None:
        raise BadInput(f"{name} is {value!r}, which is no number: give one with its unit, as {example}")
    return _plain(found[1], str(value).strip(), name, example), found[2].strip()


def _plain(digits: str, value: str, name: str, example: str) -> float:
    """Of digits in which commas or underscores part thousands; a comma that may be a decimal one is refused."""
    whole = re.split(r"[.eE]", digits)[0]
    rest = digits[len(whole) :]
    if not re.search("[,_]", digits) or (_THOUSANDS.fullmatch(whole) and not re.search("[,_]", rest)):
        return float(digits.replace(",", "").replace("_", ""))
    found = _DECIMAL_COMMA.fullmatch(whole)
    way_out = f"give it as {example}"
    if found and "." not in rest:
        way_out = f"write {value.replace(digits, f'{found[1]}.{found[2]}{rest}', 1)}"
    raise BadInput(f"{name} is {value!r}: commas and underscores part thousands only, as in 1,000; {way_out}")


def _refuse(name: str, value: str | float, wanted: str, example: str) -> BadInput:
    return BadInput(f"{name} is {value!r}: give {wanted}, as {example}")


def _above_zero(number: float, name: str, value: str | float, example: str) -> float:
    if not (math.isfinite(number) and number > 0):
        raise BadInput(f"{name} is {value!r}: it must be above 0 and finite, as {example}")
    return number


def _scaled(value: float | None, scales: tuple[tuple[str, float], ...], none: str) -> str:
    """In the largest unit that leaves 1 or more, rounding included; `none` is the unit where all are too large."""
    if value is None or not math.isfinite(value):
        return NONE
    for unit, factor in scales:
        if abs(value) >= 0.9995 * factor:
            gap = " " if len(unit) > 1 else ""
            return f"{_figures(value / factor)}{gap}{unit}"
    return f"{value:.3g}{none}"


def _figures(value: float) -> str:
    """Three figures, and no exponent where there are more before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
