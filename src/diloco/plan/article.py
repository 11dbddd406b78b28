"""The founding article's table of step times and its 650B claim: what would have to hold for them to come out.

Every size's data-parallel step is taken to be compute + c and its DiLoCo step compute + c / H, where c is an all-reduce
of bf16 gradients over one link between the replicas, the same for all sizes, with nothing hidden behind the backward
pass. That leaves a compute time for each size and one bandwidth for six printed numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from diloco.plan.graph import Wire
from diloco.units import DAY_S, format_bandwidth, format_count, format_duration, format_share

REPLICAS, SYNC_EVERY, BITS_PER_PARAM = 4, 100, 16.0
CHIP_PEAK_FLOP_PER_S, CHIP_NAME = 989.5e12, "H100 (bf16)"
LINK_GBIT_PER_S = 800.0
"""Two ports of 400 Gbit/s a replica."""

TOLERANCE = 0.05
ARTICLE_BATCH_TOKENS = 8192
"""A replica's: the article's batch is min(8192 M, 131072) tokens."""

CLAIM_PARAMS, CLAIM_BEFORE_DAYS, CLAIM_AFTER_DAYS = 650e9, 32.0, 19.0


@dataclass(frozen=True)
class Printed:
    """A line of the article's table."""

    size: str
    params: float
    data_parallel_s: float
    diloco_s: float
    data_parallel_half_s: float
    """Half a unit of the last digit printed."""
    diloco_half_s: float


PRINTED = (
    Printed("350M", 350e6, 0.120, 0.105, 0.0005, 0.0005),
    Printed("7B", 7e9, 0.680, 0.520, 0.005, 0.005),
    Printed("100B", 100e9, 12.4, 8.7, 0.05, 0.05),
)


@dataclass(frozen=True)
class Replica:
    """One replica's hardware and load for a size."""

    chips: int
    tensor: int
    pipeline: int
    micro_batches: int
    batch_tokens: float
    """Of this replica in a step."""
    mfu: float

    def compute_s(self, params: float) -> float:
        """6 N B / (chips Q), stretched by the pipeline's bubble (p - 1) / micro-batches."""
        flops = 6 * params * self.batch_tokens
        bubble = (self.pipeline - 1) / self.micro_batches
        return flops / (self.chips * self.mfu * CHIP_PEAK_FLOP_PER_S) * (1 + bubble)


CLUSTER = {
    "350M": Replica(chips=8, tensor=1, pipeline=1, micro_batches=1, batch_tokens=131072, mfu=0.325),
    "7B": Replica(chips=8, tensor=1, pipeline=1, micro_batches=1, batch_tokens=32768, mfu=0.35),
    "100B": Replica(chips=32, tensor=8, pipeline=4, micro_batches=16, batch_tokens=131072, mfu=0.33),
}
"""Batches are powers of two; 32 chips are the fewest that hold 100B, with anchor and momentum in the hosts' memory."""


@dataclass(frozen=True)
class Line:
    """A line of the table as computed, beside the printed one."""

    printed: Printed
    compute_s: float
    data_parallel_s: float
    diloco_s: float
    printed_gbit_per_s: float
    """The bandwidth that the two printed times alone ask for."""
    data_parallel_here_s: float
    """The data-parallel step if the link were one of 10 Gbit/s."""

    @property
    def error(self) -> float:
        """The larger of the two, as a share of the printed time."""
        errors = (
            self.data_parallel_s / self.printed.data_parallel_s - 1,
            self.diloco_s / self.printed.diloco_s - 1,
        )
        return max(errors, key=abs)


@dataclass(frozen=True)
class Claim:
    """What 32 and 19 days at 650B ask for."""

    tokens: float
    chips: float
    """At the 100B line's MFU and no waiting, in 19 days."""
    batch_tokens: float
    """Over all replicas, with which data parallelism over the same link loses the other 13 days."""


@dataclass(frozen=True)
class Article:
    """The answer of `diloco plan --like article`."""

    assumptions: tuple[str, ...]
    lines: tuple[Line, ...]
    claims: tuple[Claim, ...]
    verdict: tuple[str, ...]


def like_article() -> Article:
    """The table and the claim, with the assumptions that make each come out."""
    lines = tuple(_line(printed) for printed in PRINTED)
    claims = tuple(_claim(tokens) for tokens in (20 * CLAIM_PARAMS, 1e12))
    return Article(_assumptions(), lines, claims, _verdict(lines, claims))


def all_reduce_s(params: float, gbit_per_s: float = LINK_GBIT_PER_S) -> float:
    """A ring's 2 (M - 1) / M of the bf16 gradient, over each replica's port."""
    return Wire(gbit_per_s, factor=2 * (REPLICAS - 1) / REPLICAS).reduction_s(params, BITS_PER_PARAM)


def implied_gbit_per_s(printed: Printed, data_parallel_s: float, diloco_s: float) -> float:
    """The bandwidth at which c (1 - 1/H) is the difference of two times."""
    return all_reduce_s(printed.params, 1.0) * (1 - 1 / SYNC_EVERY) / (data_parallel_s - diloco_s)


def bandwidth_range(printed: Printed, tolerance: float = TOLERANCE) -> tuple[float, float]:
    """The least and the greatest bandwidth with which both times of a size come out within `tolerance`, whatever its
    compute time."""
    most = implied_gbit_per_s(printed, printed.data_parallel_s * (1 - tolerance), printed.diloco_s * (1 + tolerance))
    least = implied_gbit_per_s(printed, printed.data_parallel_s * (1 + tolerance), printed.diloco_s * (1 - tolerance))
    return least, most if most > 0 else float("inf")


def least_tolerance() -> float:
    """The smallest error with which any one bandwidth gives all six times, to 1e-6."""
    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        ranges = [bandwidth_range(printed, middle) for printed in PRINTED]
        possible = max(least for least, _ in ranges) <= min(most for _, most in ranges)
        low, high = (low, middle) if possible else (middle, high)
    return high


def _line(printed: Printed) -> Line:
    compute_s, reduce_s = CLUSTER[printed.size].compute_s(printed.params), all_reduce_s(printed.params)
    return Line(
        printed=printed,
        compute_s=compute_s,
        data_parallel_s=compute_s + reduce_s,
        diloco_s=compute_s + reduce_s / SYNC_EVERY,
        printed_gbit_per_s=implied_gbit_per_s(printed, printed.data_parallel_s, printed.diloco_s),
        data_parallel_here_s=compute_s + all_reduce_s(printed.params, 10.0),
    )


def _claim(tokens: float) -> Claim:
    """Days fix chips: 6 N D / (Q days). The ratio fixes the step: compute = c / (32/19 - 1), and so the batch."""
    flop_per_s = CLUSTER["100B"].mfu * CHIP_PEAK_FLOP_PER_S
    chips = 6 * CLAIM_PARAMS * tokens / (flop_per_s * CLAIM_AFTER_DAYS * DAY_S)
    compute_s = all_reduce_s(CLAIM_PARAMS) / (CLAIM_BEFORE_DAYS / CLAIM_AFTER_DAYS - 1)
    return Claim(tokens, chips, compute_s * chips * flop_per_s / (6 * CLAIM_PARAMS))


def _assumptions() -> tuple[str, ...]:
    replicas = "; ".join(
        f"{size}: {r.chips} chips, {format_count(r.batch_tokens)} tokens a step, MFU {format_share(r.mfu)}"
        + (f", tensor {r.tensor} x pipeline {r.pipeline}, {r.micro_batches} micro-batches" if r.pipeline > 1 else "")
        for size, r in CLUSTER.items()
    )
    return (
        f"{REPLICAS} replicas of {CHIP_NAME} chips with a peak of {CHIP_PEAK_FLOP_PER_S / 1e12:g} TFLOP/s",
        f"a replica has one link of {format_bandwidth(LINK_GBIT_PER_S)} to the others, two ports of 400 Gbit/s",
        f"gradients and outer gradients of {BITS_PER_PARAM:g} bits a parameter, ring all-reduce, latency left out",
        f"H = {SYNC_EVERY}; nothing is hidden behind the backward pass",
        f"each replica: {replicas}",
    )


def _verdict(lines: tuple[Line, ...], claims: tuple[Claim, ...]) -> tuple[str, ...]:
    asked = [line.printed_gbit_per_s for line in lines]
    worst = max(abs(line.error) for line in lines)
    gain = PRINTED[-1].data_parallel_s / PRINTED[-1].diloco_s - 1
    big = lines[-1]
    chinchilla, short = claims
    own_batch_mfu = [r.mfu * ARTICLE_BATCH_TOKENS / r.batch_tokens for r in CLUSTER.values()]
    return (
        f"All six step times come out within {worst:.1%} with one link of {format_bandwidth(LINK_GBIT_PER_S)} a replica"
        f"; no single link does better than {least_tolerance():.1%}.",
        "Taken at their word the three sizes ask for links of "
        + ", ".join(format_bandwidth(g) for g in asked)
        + f": a factor of {max(asked) / min(asked):.1f} between them, so the digits as printed come from no one link.",
        f"Such a link is a data centre's: over 10 Gbit/s the 100B data-parallel step is "
        f"{format_duration(big.data_parallel_here_s)}, not {format_duration(big.printed.data_parallel_s)}.",
        f"The table's own 12.4 s and 8.7 s are +{gain:.1%}, not +43.7%, which takes unrounded times such as 12.45 and "
        "8.66 s.",
        f"With the article's own batch of {ARTICLE_BATCH_TOKENS} tokens a replica the same compute times would mean an "
        f"MFU of {', '.join(f'{mfu:.1%}' for mfu in own_batch_mfu)}.",
        f"650B in {CLAIM_AFTER_DAYS:g} days needs {chinchilla.chips:,.0f} chips for {format_count(chinchilla.tokens)} "
        f"tokens (20 a parameter), or {short.chips:,.0f} for {format_count(short.tokens)}.",
        f"For data parallelism to take {CLAIM_BEFORE_DAYS:g} days on them over the same link, a step must be of "
        f"{format_count(chinchilla.batch_tokens)} or {format_count(short.batch_tokens)} tokens; only the second is "
        "of a size in use (16M in arXiv:2407.21783).",
    )
