"""The goodputs printed for Decoupled DiLoCo (arXiv:2604.21428v1, Tables 1 and 11), and what `simulate` makes of them.

The figures are second-hand: read in summaries of the paper, not in the paper. It is said to vary the time between a
chip's interruptions, the chips, the time to scale down and up and the time until failed chips return; of these only
the first two are known here. The rest below is assumed, once for all rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from diloco.plan.fleet import Fleet
from diloco.plan.goodput import Goodput, simulate
from diloco.plan.policy import Policy, decoupled, elastic_data_parallel, static

ASSUMED_FLEET = {"mtbi_days": 365.25, "slice_chips": 256, "return_s": 40.0, "idle_failures": False}
ASSUMED_POLICY = {"step_s": 1.0, "detect_s": 2.0, "downscale_s": 4.0, "upscale_s": 24.0, "restart_s": 24.0}
"""Found by trying round numbers until all rows came within 3 points; see docs/plan-goodput.md."""


@dataclass(frozen=True)
class PrintedGoodput:
    """One printed figure. `note` says what of its setting is not stated."""

    system: str
    chips: int
    learners: int
    goodput_pct: float
    note: str = ""


PRINTED = (
    PrintedGoodput("elastic data parallel", 1_200_000, 1, 58),
    PrintedGoodput("Decoupled DiLoCo", 1_200_000, 8, 88),
    PrintedGoodput("Decoupled DiLoCo", 1_200_000, 16, 93),
    PrintedGoodput("Decoupled DiLoCo", 1_200_000, 2, 70, "no number of chips is given: that of its table is taken"),
    PrintedGoodput("data parallel", 2_400_000, 1, 18),
    PrintedGoodput("elastic data parallel", 2_400_000, 1, 40),
    PrintedGoodput("Decoupled DiLoCo", 2_400_000, 8, 80),
    PrintedGoodput("Decoupled DiLoCo", 2_400_000, 16, 86),
)


@dataclass(frozen=True)
class GoodputRow:
    """A printed figure beside ours, both in percent."""

    printed: PrintedGoodput
    ours: Goodput

    @property
    def ours_pct(self) -> float:
        return 100 * self.ours.mean

    @property
    def difference(self) -> float:
        """Points, ours less printed."""
        return self.ours_pct - self.printed.goodput_pct


def policy_of(printed: PrintedGoodput) -> Policy:
    """The policy that a printed figure is about, under the one set of assumptions."""
    if printed.system == "data parallel":
        return static(**ASSUMED_POLICY)
    if printed.learners == 1:
        return elastic_data_parallel(**ASSUMED_POLICY)
    return decoupled(printed.learners, **ASSUMED_POLICY)


def compare_printed(days: float = 3.0, seed: int = 0, repeats: int = 3) -> tuple[GoodputRow, ...]:
    """Every printed figure beside a simulation of its setting."""
    fleets = [Fleet(printed.chips, **ASSUMED_FLEET) for printed in PRINTED]
    return tuple(
        GoodputRow(printed, simulate(fleet, policy_of(printed), days, seed, repeats))
        for printed, fleet in zip(PRINTED, fleets, strict=True)
    )
