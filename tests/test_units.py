"""Quantities as people write them, and back again.

pytest tests/test_units.py
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diloco import units
from diloco.errors import BadInput


@pytest.mark.parametrize(
    "parse, text, value",
    [
        (units.parse_bandwidth, "10gbit", 10),
        (units.parse_bandwidth, "10 Gbit/s", 10),
        (units.parse_bandwidth, "10Gb/s", 10),
        (units.parse_bandwidth, "10gbps", 10),
        (units.parse_bandwidth, "100mbit", 0.1),
        (units.parse_bandwidth, "900 GB/s", 7200),
        (units.parse_bandwidth, "1.5 Tbit/s", 1500),
        (units.parse_duration, "20ms", 0.02),
        (units.parse_duration, "5us", 5e-6),
        (units.parse_duration, "30d", 30 * 86400),
        (units.parse_duration, "1d12h", 36 * 3600),
        (units.parse_duration, "90 min", 5400),
        (units.parse_bytes, "80GB", 80e9),
        (units.parse_bytes, "80 GiB", 80 * 2**30),
        (units.parse_flop_per_s, "989.5 TFLOP/s", 989.5e12),
        (units.parse_flop_per_s, "3e14", 3e14),
        (units.parse_usd, "$50000", 50000),
        (units.parse_usd, "50k usd", 50000),
        (units.parse_share, "40%", 0.4),
        (units.parse_share, 0.4, 0.4),
    ],
)
def test_quantities_are_read_with_their_units(parse, text, value) -> None:
    assert parse(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("text, value", [("7b", 7e9), ("350m", 350e6), ("1.5t", 1.5e12), ("140e9", 140e9), (7e9, 7e9)])
def test_counts(text, value) -> None:
    assert units.parse_count(text, "params") == pytest.approx(value, rel=1e-12)
    assert units.parse_count("140_000", "tokens") == units.parse_count("140,000", "tokens") == 140e3


@pytest.mark.parametrize(
    "parse, text, words",
    [
        (units.parse_bandwidth, "10", "give a rate in kbit, mbit, gbit or tbit"),
        (units.parse_bandwidth, "10gb", "may be bits or bytes: write 10gbit or GB/s"),
        (units.parse_bandwidth, "-10gbit", "must be above 0"),
        (units.parse_bandwidth, "fast", "no number: give one with its unit, as 10gbit"),
        (units.parse_duration, "20", "give a time in us, ms, s"),
        (units.parse_duration, "3m", "give a time in us, ms, s, min"),
        (units.parse_duration, "0s", "must be above 0"),
        (units.parse_duration, "-2ms", "must be above 0"),
        (units.parse_bytes, "80", "give a size in MB"),
        (units.parse_flop_per_s, "5 apples", "give a speed in GFLOP/s"),
        (units.parse_usd, "5 eur", "US dollars"),
        (units.parse_share, "140%", "at most 100%, give 100%"),
        (units.parse_share, "0", "above 0"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(parse, text, words) -> None:
    with pytest.raises(BadInput, match=words) as caught:
        parse(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "parse, text, meant",
    [
        (units.parse_count, "1,3b", "write 1.3b"),
        (units.parse_count, "1_3b", "write 1.3b"),
        (units.parse_count, "0,123b", "write 0.123b"),
        (units.parse_count, "1,0000", "write 1.0000"),
        (units.parse_count, "1,,0", "give it as 7b"),
        (units.parse_count, "1_000,000", "give it as 7b"),
        (units.parse_count, "1.000,5", "give it as 7b"),
        (units.parse_count, "1,000,00", "give it as 7b"),
        (units.parse_count, "1,", "give it as 7b"),
        (units.parse_bandwidth, "2,5gbit", "write 2.5gbit"),
        (units.parse_duration, "5,5s", "write 5.5s"),
        (units.parse_duration, "1d 12,5 h", "write 1d 12.5 h"),
        (units.parse_bytes, "80,5GB", "write 80.5GB"),
        (units.parse_flop_per_s, "989,5 TFLOP/s", "write 989.5 TFLOP/s"),
        (units.parse_usd, "2,50", "write 2.50"),
        (units.parse_share, "2,5%", "write 2.5%"),
    ],
)
def test_a_decimal_comma_is_refused_with_the_spelling_meant(parse, text, meant) -> None:
    with pytest.raises(BadInput, match="commas and underscores part thousands only") as caught:
        parse(text)
    assert str(caught.value).endswith(f"; {meant}")


@given(st.floats(1, 1e12) | st.integers(1, 10**15))
def test_thousands_may_be_parted(number) -> None:
    assert units.parse_count(f"{number:,}" if isinstance(number, int) else f"{number:,.3f}") == pytest.approx(
        number, rel=1e-3
    )


@given(st.integers(0, 99999), st.sampled_from([",", "_"]), st.integers(0, 99999), st.sampled_from(["", "b", "k"]))
def test_a_parting_mark_never_changes_a_number_in_silence(left, mark, right, unit) -> None:
    """What is read is what is left without the marks of whole thousands; anything else is refused."""
    text = f"{left}{mark}{right}"
    if f"{left * 1000 + right:,}".replace(",", mark) == text:
        assert units.parse_count(text + unit) == units.parse_count(f"{left * 1000 + right}{unit}")
    else:
        with pytest.raises(BadInput):
            units.parse_count(text + unit)


@pytest.mark.parametrize(
    "text, seconds",
    [("1 day", 86400), ("2 days", 172800), ("1hr", 3600), ("2 hrs", 7200), ("5 minutes", 300), ("90 secs", 90),
     ("1 hour 30 mins", 5400), ("3 weeks", 1814400), ("1 year", units.YEAR_S)],
)  # fmt: skip
def test_times_may_be_written_out(text, seconds) -> None:
    assert units.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["7bn", "7 billion", "7000 million", "7B"])
def test_counts_may_be_written_out(text) -> None:
    assert units.parse_count(text) == 7e9


@given(st.floats(1e-6, 1e10))
def test_a_duration_rounds_into_the_next_unit(seconds) -> None:
    text = units.format_duration(seconds)
    assert not text.startswith("1,000 ") and not text.startswith(("60 s", "60 min"))
    number, unit = text.split()
    assert units.parse_duration(f"{number}{unit}") == pytest.approx(seconds, rel=6e-3)


def test_a_latency_may_be_nothing() -> None:
    assert units.parse_duration("0", zero=True) == units.parse_duration("0ms", zero=True) == 0


@given(st.floats(1e-3, 1e6))
def test_a_bandwidth_that_was_written_reads_the_same(gbit_per_s) -> None:
    assert units.parse_bandwidth(units.format_bandwidth(gbit_per_s)) == pytest.approx(gbit_per_s, rel=6e-3)


@pytest.mark.parametrize(
    "show, value, text",
    [
        (units.format_count, 140e9, "140B"),
        (units.format_count, 2_500_000, "2.5M"),
        (units.format_count, 2_530_000, "2.53M"),
        (units.format_count, 950, "950"),
        (units.format_count, 999_950, "1M"),
        (units.format_count, 999_400, "999k"),
        (units.format_bandwidth, 0.1, "100 Mbit/s"),
        (units.format_bandwidth, 0.0941, "94.1 Mbit/s"),
        (units.format_bandwidth, 1234.5, "1.23 Tbit/s"),
        (units.format_needed, 0.0, "\N{EN DASH}"),
        (units.format_needed, math.inf, "none will do"),
        (units.format_bytes, 1.4e10, "14 GB"),
        (units.format_bytes, 12_345_678, "12.3 MB"),
        (units.format_bytes, 0, "0 B"),
        (units.format_duration, 0.68, "680 ms"),
        (units.format_duration, 42.54, "42.5 s"),
        (units.format_duration, 75, "1.25 min"),
        (units.format_duration, 5400, "1.5 h"),
        (units.format_duration, 30 * 86400, "30 d"),
        (units.format_duration, math.inf, "never"),
        (units.format_days, 1.4134, "1.41 days"),
        (units.format_days, 1.0, "1 day"),
        (units.format_days, 0.5, "12 h"),
        (units.format_days, 2111.0, "2,111 days"),
        (units.format_days, math.inf, "never"),
        (units.format_usd, 52_300, "$52.3k"),
        (units.format_usd, math.inf, "\N{EN DASH}"),
        (units.format_share, 0.954, "95.4%"),
        (units.format_share, 0.9997, "99.97%"),
        (units.format_change, 3.14, "+3.1%"),
        (units.format_change, -0.5, "\N{MINUS SIGN}0.5%"),
        (units.format_flop_per_s, 3.958e14, "396 TFLOP/s"),
        (units.format_loss, 1.28, "1.280"),
        (units.format_loss, 2.0784, "2.078"),
        (units.format_loss, math.nan, "nan"),
        (units.format_number, 1234567.0, "1,234,567"),
        (units.format_things, 1, "1 chip"),
        (units.format_things, 1024, "1,024 chips"),
    ],
)
def test_quantities_are_written_for_readers(show, value, text) -> None:
    assert (show(value, "chip") if show is units.format_things else show(value)) == text


@pytest.mark.parametrize("name", ["count", "bytes", "bandwidth", "duration", "usd", "change", "loss"])
def test_what_there_is_none_of_is_a_dash(name) -> None:
    assert getattr(units, f"format_{name}")(None) == units.NONE


@given(st.floats(1e-2, 1e14))
def test_three_figures_are_kept_and_no_unit_is_filled(value) -> None:
    """What is written reads back within half a unit of the third figure; nothing is 1000 of a unit that has a next."""
    for show, parse in ((units.format_count, units.parse_count), (units.format_bytes, units.parse_bytes)):
        text = show(value)
        assert parse(text, "it") == pytest.approx(value, rel=5.1e-3) and "1,000" not in text
