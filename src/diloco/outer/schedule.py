"""Schedules: at which inner steps which fragment is sent. A pure function of the step and of gathered numbers.

Cycle k begins at step c_k and lasts H_k steps; c_0 = 0 and c_{k+1} = c_k + H_k. In every cycle but the first, which
only trains, fragment p of P is sent at c_k + offset_p(H_k), by default floor(p * H_k / P). With a constant H of 100 and
two fragments these are the paper's 100, 200, ... and 150, 250, ... (Streaming DiLoCo, arXiv 2501.18512, section 2.1);
H need not divide by P. Two sends of one fragment are never closer than the shorter of the two cycles' H.

The driver of a run, at every step t = 1, 2, ...:

    if table.ends(t):
        table = table.next(interval.at(t, table.every, noise))
    for p in table.due(t):
        send fragment p
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diloco.errors import BadInput
from diloco.outer.interval import (
    Adaptive,
    Fixed,
    Interval,
    Smooth,
    Tapered,
    as_interval,
    noise_ratio,
    parse_interval,
    whole_number,
)

__all__ = [
    "Adaptive",
    "Fixed",
    "Interval",
    "Smooth",
    "Tapered",
    "Timetable",
    "as_interval",
    "check_overlap",
    "noise_ratio",
    "parse_interval",
]


@dataclass(frozen=True)
class Timetable:
    """The cycle that a run is in: all the state a schedule has.

    `start` and `every` are c_k and H_k in inner steps, `first` is H_0, to which `offsets` (None: evenly spread) refer.
    """

    fragments: int
    start: int
    every: int
    first: int
    offsets: tuple[int, ...] | None = None

    @classmethod
    def begin(cls, fragments: int, every: int, offsets: Sequence[int] | None = None) -> Timetable:
        """The timetable before the first step: nothing is due before step `every`, where the next cycle begins.

        `offsets`: one whole number of 0 to every - 1 per fragment. All equal, the fragments sync together.

        Raises BadInput for offsets that do not fit, or counts below 1.
        """
        whole_number("fragments", fragments)
        whole_number("sync_every", every)
        if offsets is not None:
            offsets = tuple(offsets)
            if len(offsets) != fragments:
                raise BadInput(f"offsets are {list(offsets)} for {fragments} fragments: give {fragments} of them")
            if not all(isinstance(o, int) and not isinstance(o, bool) and 0 <= o < every for o in offsets):
                raise BadInput(f"offsets are {list(offsets)}: with sync_every {every} each must be 0 to {every - 1}")
        return cls(fragments, 0, every, every, offsets)

    def offset(self, fragment: int) -> int:
        """Steps from the beginning of this cycle to the sending of the fragment, 0 to every - 1."""
        if self.offsets is None:
            return fragment * self.every // self.fragments
        return self.offsets[fragment] * self.every // self.first

    def due(self, step: int) -> list[int]:
        """The fragments to send at this step of the present cycle, ascending."""
        if self.start == 0:
            return []
        return [p for p in range(self.fragments) if self.start + self.offset(p) == step]

    def ends(self, step: int) -> bool:
        """The cycle is over: the next one begins at this step."""
        return step == self.start + self.every

    def next(self, every: int) -> Timetable:
        """The following cycle, of `every` steps."""
        whole_number("sync_every", every)
        return Timetable(self.fragments, self.start + self.every, every, self.first, self.offsets)

    def to_dict(self) -> dict[str, int | list[int] | None]:
        """JSON values, for a checkpoint."""
        offsets = None if self.offsets is None else list(self.offsets)
        return {
            "fragments": self.fragments,
            "start": self.start,
            "every": self.every,
            "first": self.first,
            "offsets": offsets,
        }

    @classmethod
    def from_dict(cls, values: dict[str, int | list[int] | None]) -> Timetable:
        """The inverse of `to_dict`."""
        offsets = values["offsets"]
        return cls(**{**values, "offsets": None if offsets is None else tuple(offsets)})


def count_rounds(interval: Interval, steps: int) -> int:
    """Rounds of one fragment in a run of so many inner steps, the partial one at its end included.

    An interval that goes by measurements is taken to stay as it begins.
    """
    every = interval.at(0, 0, None)
    begins, rounds = every, 0
    while begins <= steps:
        rounds, last = rounds + 1, begins
        every = interval.at(begins, every, None)
        begins += every
    return rounds + 1 if not rounds or last < steps else rounds


def check_overlap(interval: Interval, overlap: int) -> None:
    """Raises BadInput unless a result sent at t can be applied at t + overlap before the fragment is sent again."""
    if isinstance(overlap, bool) or not isinstance(overlap, int) or not 0 <= overlap < interval.shortest:
        largest = interval.shortest - 1
        raise BadInput(
            f"overlap is {overlap!r} but the shortest sync interval is {interval.shortest} steps: give a whole number "
            f"from 0 to {largest}"
        )
