"""What one measurement is: a model, a method, a link, and how long to look. Read by both sides of the benchmark."""

from __future__ import annotations

from dataclasses import dataclass

from diloco.train.sizes import count, get_size
from diloco.wire.exchange import sum_bytes
from diloco.wire.link import Link

REPLICAS = 2
SYNC_EVERY, OVERLAP, MIXING = 100, 5, 0.0
VOCAB, SEQ_LEN = 256, 128
SEQUENCES = {"1m": 8, "10m": 2}
"""A replica's batch, so that an inner step takes about 0.1 s with 1m and 0.2 s with 10m on one core."""
WINDOWS = {"1m": 2, "10m": 1}
"""Whole windows of SYNC_EVERY steps that are timed."""
BASELINE_STEPS = {"1m": 15, "10m": 6}
"""Steps without a sync, before the timed ones and again after them."""
WARMUP_STEPS = 3
GUESSED_STEP_S = {"1m": 0.11, "10m": 0.22}
"""Only to decide how many data-parallel steps fit into DP_S."""
DP_S, DP_MIN_STEPS, DP_MAX_STEPS = 12.0, 2, 50

METHODS = ("compute", "dp", "diloco", "streaming", "streaming-e3m0", "socket")
"""socket: no replicas at all, but a plain socket that keeps the line full both ways: what the kernel's own packets cost
the core that computes."""
LINKS = ("100mbit", "20mbit", "5mbit")
TORCHFT_LINK = "100mbit"


@dataclass(frozen=True)
class Cell:
    """One measurement. `path`: what slows the link: the kernel's token bucket (tbf), diloco's own throttle, a virtual
    clock in one process, or nothing (none)."""

    model: str
    method: str
    link: str
    path: str

    @property
    def name(self) -> str:
        return f"{self.model} {self.method} {self.link or 'no link'} ({self.path})"

    @property
    def tokens(self) -> int:
        """A replica's tokens in one inner step."""
        return SEQUENCES[self.model] * SEQ_LEN

    @property
    def steps(self) -> int:
        """Timed inner steps: whole windows. Data parallel has no windows and is cut short where a step takes long."""
        if self.method in ("compute", "socket"):
            return SYNC_EVERY // 2
        if self.method == "dp":
            return max(DP_MIN_STEPS, min(DP_MAX_STEPS, int(DP_S / self._dp_step_s())))
        return WINDOWS[self.model] * SYNC_EVERY

    @property
    def note(self) -> str:
        """What the reader must know about how long was measured; empty for whole windows."""
        if self.method == "dp" and self.steps < DP_MAX_STEPS:
            return f"cut to {self.steps} steps: one takes {self._dp_step_s():.1f} s"
        return ""

    def _dp_step_s(self) -> float:
        payload = sum_bytes(4 * count(get_size(self.model), VOCAB).params, REPLICAS)
        return GUESSED_STEP_S[self.model] + Link.parse(self.link).seconds(payload)


def table_cells(models: list[str], links: list[str], methods: list[str], torchft: bool) -> list[Cell]:
    """The table: every model and method on every link that the kernel limits; computing alone needs no link."""
    cells = []
    for model in models:
        cells += [Cell(model, method, "", "none") for method in methods if method == "compute"]
        cells += [Cell(model, method, link, "tbf") for link in links for method in methods if method != "compute"]
        if torchft and TORCHFT_LINK in links:
            cells.append(Cell(model, "torchft", TORCHFT_LINK, "tbf"))
    return cells


def throttle_cells(cells: list[Cell]) -> list[Cell]:
    """Those of the small model on the middle link, and its overlapped one on the slowest, over diloco's throttle."""
    chosen = [(LINKS[1], "dp"), (LINKS[1], "diloco"), (LINKS[2], "streaming")]
    small = [c for c in cells if c.path == "tbf" and c.model == "1m" and (c.link, c.method) in chosen]
    return [Cell(c.model, c.method, c.link, "throttle") for c in small]


def virtual_cells(cells: list[Cell]) -> list[Cell]:
    left_out = ("torchft", "socket")
    return [Cell(c.model, c.method, c.link, "virtual") for c in cells if c.path == "tbf" and c.method not in left_out]
