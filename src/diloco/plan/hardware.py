"""Chips, links, sites and clusters, as frozen records. `catalogue` has those that are known by name."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from diloco.errors import BadInput

TCP_FRAMING = 1538 / 1448
"""Bytes on an Ethernet line for each byte that TCP carries: a full frame, its gap and preamble included, holds 1448."""

PRECISIONS = ("fp4", "fp8", "int8", "bf16", "fp16", "tf32", "fp32", "fp64")

ASSUMED_MFU = 0.4
"""Share of the peak that a well-tuned training run reaches, where nobody has measured it."""


@dataclass(frozen=True)
class Chip:
    """One accelerator."""

    name: str
    label: str
    peak_flop_per_s: Mapping[str, float]
    """Dense, by one of `PRECISIONS`."""
    memory_bytes: float
    memory_bytes_per_s: float
    power_w: float
    usd_per_h: float | None
    price_date: str
    node_chips: int
    """Chips that `node_link` joins in a usual server or slice."""
    node_link: str
    source: str
    date: str

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "memory_bytes_per_s", "power_w"):
            _above_zero(f"{name} of chip {self.name}", getattr(self, name))
        if not self.peak_flop_per_s:
            raise BadInput(f"chip {self.name} has no peak: give one, as peak = {{ bf16 = '989 TFLOP/s' }}")
        if self.node_chips < 1:
            raise BadInput(f"node_chips of chip {self.name} is {self.node_chips}: give 1 or more")

    @property
    def most(self) -> float:
        """FLOP/s that training in bf16 cannot pass, or in the chip's fastest precision where it has no bf16."""
        return self.peak_flop_per_s.get("bf16") or max(self.peak_flop_per_s.values())

    def peak(self, precision: str = "bf16") -> float:
        """FLOP/s. Raises BadInput for a precision that the chip lacks."""
        if precision not in self.peak_flop_per_s:
            have = ", ".join(self.peak_flop_per_s)
            raise BadInput(
                f"chip {self.name} has a peak in {have} alone: add one in {precision}, by which steps are reckoned, as "
                f"peak = {{ {precision} = '989 TFLOP/s' }}"
            )
        return self.peak_flop_per_s[precision]


@dataclass(frozen=True)
class Link:
    """What a port sends in one direction, and how long a bit takes."""

    name: str
    gbit_per_s: float
    latency_s: float = 0.0
    """One way."""
    label: str = ""
    source: str = ""
    date: str = ""
    framing: float = 1.0
    """Bytes on the line for each of payload: `TCP_FRAMING` where the rate is an Ethernet line's, 1 where it is what a
    transfer was seen to reach."""

    def __post_init__(self) -> None:
        if not self.gbit_per_s > 0:
            raise BadInput(f"link {self.name} has {self.gbit_per_s:g} Gbit/s: give more than 0, as 10gbit")
        if not 0 <= self.latency_s < math.inf:
            raise BadInput(f"link {self.name} has a latency of {self.latency_s:g} s: give 0 or more, as 20ms")
        if not 1 <= self.framing < math.inf:
            raise BadInput(f"link {self.name} has a framing of {self.framing:g}: give 1 or more, as 1.06")

    def busy_s(self, bits: float) -> float:
        """Seconds that so much payload keeps it busy, latency aside."""
        return bits * self.framing / (1e9 * self.gbit_per_s)


@dataclass(frozen=True)
class Site:
    """Chips that one fast network joins: `nodes` servers of `node_chips` each."""

    chip: Chip
    nodes: int
    node_chips: int
    node_link: Link
    """Per chip, within a server."""
    inside: Link
    """Per chip, between servers."""

    def __post_init__(self) -> None:
        for name in ("nodes", "node_chips"):
            value = getattr(self, name)
            if value < 1 or value != int(value):
                raise BadInput(f"{name} of a site is {value:g}: give a whole number from 1 on")

    @property
    def chips(self) -> int:
        return self.nodes * self.node_chips


@dataclass(frozen=True)
class Cluster:
    """Sites and the link between them: `between` is what one site sends in one direction, over all its chips."""

    sites: tuple[Site, ...]
    between: Link

    def __post_init__(self) -> None:
        if not self.sites:
            raise BadInput("a cluster has 0 sites: give 1 or more, as 2x64xh100")

    @cached_property
    def counted(self) -> tuple[tuple[Site, int], ...]:
        """Every site once, with the number of those that are the same: hundreds may be."""
        same = {id(site): site for site in self.sites}
        count = Counter(map(id, self.sites))
        return tuple((site, count[key]) for key, site in same.items())

    @cached_property
    def kinds(self) -> tuple[Site, ...]:
        """Every site once."""
        return tuple(site for site, _ in self.counted)

    @cached_property
    def chips(self) -> int:
        return sum(count * site.chips for site, count in self.counted)

    @property
    def usd_per_h(self) -> float | None:
        """None where a chip has no price."""
        prices = [(site.chip.usd_per_h, count * site.chips) for site, count in self.counted]
        return None if any(price is None for price, _ in prices) else sum(p * n for p, n in prices if p is not None)

    @property
    def power_w(self) -> float:
        return sum(count * site.chip.power_w * site.chips for site, count in self.counted)


@dataclass(frozen=True)
class Speed:
    """What a chip really does, and how one knows."""

    flop_per_s: float
    how: str
    """A sentence for the list of assumptions."""

    def __post_init__(self) -> None:
        _above_zero("speed of a chip in FLOP/s", self.flop_per_s)


def assumed_speed(chip: Chip, precision: str = "bf16", mfu: float = ASSUMED_MFU) -> Speed:
    """`mfu` of the peak: model FLOPs (6 N a token) over what the chip could do. Raises BadInput outside 0 to 1."""
    if not 0 < mfu <= 1:
        raise BadInput(f"mfu is {mfu:g}: give a share above 0 and at most 1, as {ASSUMED_MFU}")
    peak = chip.peak(precision)
    how = f"assumed, not measured: {mfu:.0%} of the {precision} peak of {peak / 1e12:.4g} TFLOP/s of {chip.label}"
    return Speed(mfu * peak, how)


def with_price(chip: Chip, usd_per_h: float) -> Chip:
    """The chip at another price."""
    _above_zero(f"price of chip {chip.name} in US dollars an hour", usd_per_h)
    return replace(chip, usd_per_h=usd_per_h, price_date="given")


def _above_zero(what: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise BadInput(f"{what} is {value:g}: give a finite number above 0")
