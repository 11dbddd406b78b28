"""How the replicas of a run talk: the options of `diloco train` that say when what is sent over which link."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from diloco.errors import BadInput
from diloco.outer.codec import get_codec
from diloco.outer.fragments import Fragmentation, as_fragmentation
from diloco.outer.interval import Interval, parse_interval
from diloco.outer.late import LATE
from diloco.outer.merge import get_merge
from diloco.outer.round import REBASE
from diloco.outer.schedule import check_overlap
from diloco.wire.choose import AUTO
from diloco.wire.hierarchical import divide_into_sites
from diloco.wire.link import Link


@dataclass(frozen=True)
class WireOptions:
    """Joined to `TrainConfig`, so these are flags of their own."""

    replicas: int = 4
    """M. Simulated in one process in lock step; under torchrun one per rank, so leave it out or give the world size."""
    sync_every: int = 30
    """H: inner steps between two outer steps of a fragment."""
    interval: str = "fixed"
    """How H changes: fixed; taper:0.5=60,0.75=120 (from these fractions of the run on); smooth:120 (to that H over the
    run); adaptive:10-200 (by the replicas' disagreement, within these bounds)."""
    fragments: str = "whole"
    """What syncs together: whole, sequential:3 or strided:3 (so many blocks), balanced:4 (so many fragments of equal
    bytes)."""
    overlap: str = "0"
    """Inner steps between sending a fragment and applying the result, less than H; or delayed or eager, to apply it at
    the next sync."""
    mixing: str = "0"
    """Weight of the local values when an overlapped result is applied, 0 to 1; or rebase, to carry the inner steps
    since the sending over to it."""
    codec: str = "fp32"
    """How outer gradients travel: fp32 bf16 fp16 int8 int4 e3m0 topk:0.01 randk:0.01, with +ef or -ef for error
    feedback or none; auto measures the link and chooses."""
    merge: str = "mean"
    """mean; tokens: weigh the replicas by the tokens they trained on; trimmed:0.25; clipped:1.0; rda."""
    sites: int = 1
    """Sites of equally many replicas: a round sums inside a site first, then between the sites."""
    site_every: int = 0
    """Inner steps between two averages inside a site; 0 for none."""
    link: str = ""
    """What joins the replicas (the sites, if several), as in 100mbit,25ms: real messages are made as slow; in one
    process a virtual clock adds up the time they would take. Empty: as fast as it is."""

    def check_wire(self) -> None:
        """Raises BadInput naming the option that cannot work."""
        interval = self.build_interval(1_000_000)
        self.build_fragments()
        if self.codec != AUTO:
            get_codec(self.codec)
        if self.overlap not in LATE:
            check_overlap(interval, self.build_overlap())
        self.build_mixing()
        merge = get_merge(self.merge)
        if self.replicas < merge.least_replicas:
            raise BadInput(f"merge is {self.merge!r}, which needs {merge.least_replicas} replicas or more: use mean")
        divide_into_sites(self.replicas, self.sites)
        if self.link:
            Link.parse(self.link)

    def build_interval(self, total_steps: int) -> Interval:
        return parse_interval(self.interval, self.sync_every, total_steps)

    def build_fragments(self) -> Fragmentation:
        return as_fragmentation(self.fragments)

    def build_overlap(self) -> int | str:
        if self.overlap in LATE:
            return self.overlap
        if not self.overlap.removeprefix("-").isdecimal():
            raise BadInput(f"overlap is {self.overlap!r}: give a whole number of inner steps, or {' or '.join(LATE)}")
        return int(self.overlap)

    def build_mixing(self) -> float | str:
        if self.mixing == REBASE:
            return REBASE
        try:
            mixing = float(self.mixing)
        except ValueError:
            mixing = -1.0
        if not 0 <= mixing <= 1:
            raise BadInput(
                f"mixing is {self.mixing}: give the weight of the local values, a number from 0 to 1, or {REBASE}"
            )
        return mixing

    def build_link(self) -> Link | None:
        return Link.parse(self.link) if self.link else None

    def ignored_on_the_wire(self, method: str) -> list[str]:
        """Options that were changed but have no effect, each as a sentence."""
        names = ("interval", "fragments", "overlap", "mixing", "codec", "merge", "sites", "site_every")
        if method == "dp":
            return [f"{n} has no effect with method dp" for n in names if getattr(self, n) != _DEFAULTS[n]]
        found = []
        if self.build_mixing() and self.overlap in ("0", *LATE):
            found.append(f"mixing has no effect with overlap {self.overlap}")
        if self.site_every and self.sites == 1:
            found.append("site_every has no effect with one site")
        if self.replicas == 1:
            found += [
                f"{n} has no effect with one replica" for n in ("codec", "link") if getattr(self, n) != _DEFAULTS[n]
            ]
        return found


_DEFAULTS = {f.name: f.default for f in dataclasses.fields(WireOptions)}
