"""A round that is under way while its replica takes inner steps."""

from __future__ import annotations

from dataclasses import dataclass

from diloco.outer.round import Round
from diloco.wire.exchange import Flight


@dataclass(eq=False)
class Airborne:
    """It lands after inner step `lands_at`, or (None) at its fragment's next boundary."""

    round: Round
    lands_at: int | None
    flight: Flight
