"""The idealised wall clock of Scaling Laws for DiLoCo (arXiv:2503.09799v1, Appendix A), formula by formula.

N parameters, D tokens, T inner steps, R chips of Q FLOP/s, M replicas, H the sync interval; W0, e0 bandwidth and
latency inside a data centre, W1, e1 between them. Nothing overlaps, and every chip has the whole bandwidth to itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from diloco.errors import BadInput
from diloco.plan.hardware import Link

PAPER_BITS_PER_PARAM = 16.0
"""The paper leaves N's unit in 2 N / W open; it trains in bf16."""


@dataclass(frozen=True)
class IdealRun:
    """The appendix's inputs."""

    params: float
    tokens: float
    batch_tokens: float
    """Over all replicas together."""
    chips: int
    flop_per_s: float
    """Of a chip, as realised."""
    inside: Link
    between: Link
    bits_per_param: float = PAPER_BITS_PER_PARAM

    def __post_init__(self) -> None:
        for name in ("params", "tokens", "batch_tokens", "flop_per_s", "bits_per_param"):
            if not 0 < getattr(self, name) < math.inf:
                raise BadInput(f"{name} is {getattr(self, name):g}: give a finite number above 0")
        if self.chips < 1:
            raise BadInput(f"chips is {self.chips}: give 1 or more")
        if self.batch_tokens > self.tokens:
            raise BadInput(
                f"batch_tokens is {self.batch_tokens:g}, more than the run's {self.tokens:g} tokens: give at most that"
            )

    @property
    def steps(self) -> float:
        """T = D / B."""
        return self.tokens / self.batch_tokens


@dataclass(frozen=True)
class Breakdown:
    """Where the seconds of a whole run go."""

    steps: float
    compute_s: float
    inside_s: float
    """Waiting for links inside a site."""
    between_s: float
    """Waiting for the link between sites."""
    codec_s: float = 0.0
    """Waiting for outer gradients to be coded and merged."""
    bubble_s: float = 0.0
    """Waiting of pipeline stages for one another."""
    busy: float = 1.0
    """Share of the chips that compute meanwhile, on average: those at faster sites wait for the slowest."""

    @property
    def communication_s(self) -> float:
        return self.inside_s + self.between_s + self.codec_s

    @property
    def total_s(self) -> float:
        return self.compute_s + self.bubble_s + self.communication_s

    @property
    def step_s(self) -> float:
        """On average."""
        return self.total_s / self.steps

    @property
    def utilization(self) -> float:
        """Compute time over total time, of all chips."""
        return self.busy * self.compute_s / self.total_s


def compute_s(params: float, tokens: float, chips: int, flop_per_s: float) -> float:
    """6 N D / (R Q)."""
    return 6 * params * tokens / (chips * flop_per_s)


def all_reduce_s(params: float, bits_per_param: float, share: float, link: Link) -> float:
    """(2 N / W) share + e: a lower bound, with share = 1 - 1/R among R nodes."""
    return 2 * params * bits_per_param / (1e9 * link.gbit_per_s) * share + link.latency_s


def data_parallel(run: IdealRun) -> Breakdown:
    """T [ (2 N / W1) (1 - 1/R) + e1 ], all of it between."""
    return Breakdown(run.steps, _compute(run), 0.0, run.steps * _outer_s(run))


def diloco(run: IdealRun, replicas: int, sync_every: int) -> Breakdown:
    """M = 1: data parallel's times (1 + 1/H). M >= 2: T [ (2 N / W0) (1 - M/R) + e0 ] inside, and
    (T/H) [ (2 N / W1) (1 - 1/R) + e1 ] between.

    Raises:
        BadInput: fewer than 1 replica, more replicas than chips, or H below 1.
    """
    if not 1 <= replicas <= run.chips:
        near = min(max(replicas, 1), run.chips)
        raise BadInput(f"replicas is {replicas}: {run.chips} chips can hold 1 to {run.chips}, give {near}")
    if not sync_every >= 1:
        raise BadInput(f"sync_every is {sync_every}: give 1 or more")
    if replicas == 1:
        return Breakdown(run.steps, _compute(run), 0.0, run.steps * _outer_s(run) * (1 + 1 / sync_every))
    inner_s = all_reduce_s(run.params, run.bits_per_param, (run.chips - replicas) / run.chips, run.inside)
    return Breakdown(run.steps, _compute(run), run.steps * inner_s, run.steps / sync_every * _outer_s(run))


def streaming(run: IdealRun, replicas: int, sync_every: int, fragments: int = 1) -> Breakdown:
    """The same total as `diloco`: each of P fragments is sent every H steps, 1/P of the bytes at a time.

    That latency is then paid P times, and that overlap hides much of it, is left to `diloco.plan.clock`.

    Raises:
        BadInput: as `diloco`, and for fewer than 1 fragment.
    """
    if fragments < 1:
        raise BadInput(f"fragments is {fragments}: give 1 or more")
    return diloco(run, replicas, sync_every)


def balanced_sync_every(run: IdealRun) -> float:
    """W0 / W1: from this H on, the outer steps' bytes take at most as long as the inner steps' do."""
    return run.inside.gbit_per_s / run.between.gbit_per_s


def _compute(run: IdealRun) -> float:
    return compute_s(run.params, run.tokens, run.chips, run.flop_per_s)


def _outer_s(run: IdealRun) -> float:
    return all_reduce_s(run.params, run.bits_per_param, (run.chips - 1) / run.chips, run.between)
