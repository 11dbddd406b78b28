"""The wall clock of a run: the idealised model of `diloco.plan.ideal`, with codecs, overlap, fragments, sites and the
parallelism inside a replica.

Per inner step, for a replica of c chips = d data shards x t tensor x p pipeline, N parameters, L layers of width w:

    compute    6 N B/M / (c Q), of the slowest site
    inside     sharded data parallel: 3 (d-1)/d 2 N/(t p) bytes, hidden as far as the computation lasts;
               tensor parallel: 4 L/p all-reduces of 2 w bytes a token, 2 (t-1)/t each, not hidden
    bubble     (p - 1) / micro-batches of both

Per round of one of P fragments, f = bytes over the link + latency + coding. One exchange goes on at a time, as in
`diloco.wire.background`; a result is needed tau steps after its fragment was sent, and a wait delays later sends too:

    waiting in H steps = max(0, P f - min(P tau, H) step)

Where P divides H this is exact: with tau < H / P no two fragments meet and each hides tau steps, else the exchanges
follow one another without a pause. Uneven gaps come within 5% of a cycle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from diloco.errors import BadInput
from diloco.plan.hardware import Link, Site
from diloco.plan.ideal import Breakdown
from diloco.plan.run import Run

WIRE_BYTES = 2
"""Of weights, gradients and activations inside a replica: bf16."""

CODEC_PASSES = 16
"""Times that coding and merging go through a chip's memory, in units of the fp32 bytes. Assumed; a laptop's 50 GB/s
give 3 GB/s, of the order of what docs/wire.md measured on one core."""

SMALL_MESSAGES = 2
"""Of a round, beside its payload: who takes part, before it, and checksums, after it (`diloco.outer.round`)."""

MOST_GBIT_PER_S = 1e7


@dataclass(frozen=True)
class Round:
    """One exchange of one fragment."""

    link_s: float
    """The bytes on the link between sites; between replicas where there is one site."""
    latency_s: float
    inside_s: float
    """Summing and spreading inside the sites."""
    codec_s: float
    link_bits: float
    """Sent by one site, in one direction."""

    @property
    def total_s(self) -> float:
        return self.link_s + self.latency_s + self.inside_s + self.codec_s


@dataclass(frozen=True)
class Step:
    """An inner step without outer ones."""

    compute_s: float
    inside_s: float
    bubble_s: float

    @property
    def total_s(self) -> float:
        return self.compute_s + self.inside_s + self.bubble_s


def clock(run: Run) -> Breakdown:
    """Where the seconds of the whole run go."""
    step, one = inner_step(run), outer_round(run)
    share = waiting_per_step_s(run, step, one) / one.total_s if one.total_s else 0.0
    return Breakdown(
        steps=run.steps,
        compute_s=run.steps * step.compute_s,
        inside_s=run.steps * (step.inside_s + share * one.inside_s),
        between_s=run.steps * share * (one.link_s + one.latency_s),
        codec_s=run.steps * share * one.codec_s,
        bubble_s=run.steps * step.bubble_s,
        busy=_busy(run, step),
    )


def inner_step(run: Run) -> Step:
    """Of the slowest site."""
    return max(site_steps(run), key=lambda step: step.total_s)


def site_steps(run: Run) -> list[Step]:
    """Of each of `Cluster.kinds`."""
    return [_site_step(run, site) for site in run.cluster.kinds]


def _busy(run: Run, slowest: Step) -> float:
    """Computing of all chips over what it would be if each computed for as long as those of the slowest site."""
    if len(run.cluster.kinds) == 1:
        return 1.0
    chip_s = sum(
        count * site.chips * step.compute_s
        for (site, count), step in zip(run.cluster.counted, site_steps(run), strict=True)
    )
    return chip_s / (run.cluster.chips * slowest.compute_s)


def outer_round(run: Run) -> Round:
    """One fragment's, at the slowest site."""
    sites = len(run.cluster.sites)
    cost, params = run.codec_cost, run.model.params / run.fragments
    if sites == 1:
        link, members, inside_s = _port(run.cluster.sites[0], run), run.replicas, 0.0
    elif run.two_level or run.data_parallel:
        link, members = run.cluster.between, sites
        inside_s = max(_spread_s(params, run.site_replicas, _port(site, run)) for site in run.cluster.kinds)
    else:
        link, members, inside_s = run.cluster.between, run.replicas, 0.0
    bits = cost.payload_bits(params) * cost.factor(members)
    hops = 0 if members == 1 else 1 if cost.gathers else 2 * (members - 1)
    hops += 0 if run.data_parallel or members == 1 else SMALL_MESSAGES
    coded = 0.0 if run.data_parallel or members == 1 else _codec_s(run, params)
    return Round(link.busy_s(bits), hops * link.latency_s, inside_s, coded, bits)


def waiting_per_step_s(run: Run, step: Step, one: Round) -> float:
    """Seconds that a step waits for outer rounds, on average."""
    if run.data_parallel:
        return max(0.0, one.total_s - run.backward_share * step.compute_s) / run.sync_every
    hidden_steps = min(run.fragments * run.overlap_steps, run.sync_every)
    return max(0.0, run.fragments * one.total_s - hidden_steps * step.total_s) / run.sync_every


def needed_gbit_per_s(run: Run, utilization: float) -> float:
    """The least bandwidth between sites at which compute utilisation is `utilization`; infinity where none is enough.

    Raises BadInput for a share outside 0 to 1.
    """
    if not 0 < utilization < 1:
        raise BadInput(f"utilization is {utilization:g}: give a share between 0 and 1, as 0.95")
    low, high = 1e-9, MOST_GBIT_PER_S
    if clock(with_between(run, high)).utilization < utilization:
        return float("inf")
    while high > 1.001 * low:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if clock(with_between(run, middle)).utilization >= utilization else (middle, high)
    return high


def with_between(run: Run, gbit_per_s: float) -> Run:
    """The run over another bandwidth between sites."""
    between = replace(run.cluster.between, gbit_per_s=gbit_per_s)
    return replace(run, cluster=replace(run.cluster, between=between))


def _site_step(run: Run, site: Site) -> Step:
    chips, island = site.chips // run.site_replicas, run.island
    shards = island.data_shards(chips)
    tokens = run.batch_tokens / run.replicas
    compute_s = run.model.flops_per_token * tokens / (chips * run.flop_per_s(site.chip))
    split = island.tensor * island.pipeline
    link = site.node_link if chips <= site.node_chips else site.inside
    sharded_s = _bytes_s(3 * (shards - 1) / shards * WIRE_BYTES * run.model.params / split, link)
    tensor_link = site.node_link if island.tensor <= site.node_chips else site.inside
    reduces = 4 * run.model.layers / island.pipeline * 2 * (island.tensor - 1) / island.tensor
    tensor_s = _bytes_s(reduces * tokens / shards * run.model.width * WIRE_BYTES, tensor_link)
    average_s = 0.0
    if run.site_every and run.site_replicas > 1:
        average_s = _spread_s(run.model.params, run.site_replicas, _port(site, run)) / run.site_every
    inside_s = max(0.0, sharded_s - compute_s) + tensor_s + average_s
    bubble_s = (island.pipeline - 1) / run.micro_batches * (compute_s + tensor_s)
    return Step(compute_s, inside_s, bubble_s)


def _codec_s(run: Run, params: float) -> float:
    """At the slowest site; a replica's chips share the work."""
    rates = (
        (run.codec_bytes_per_s or site.chip.memory_bytes_per_s / CODEC_PASSES) * site.chips / run.site_replicas
        for site in run.cluster.kinds
    )
    return 4 * params / min(rates)


def _port(site: Site, run: Run) -> Link:
    """Of a whole replica, all its chips sending at once; within one server they use its own link."""
    chips = site.chips // run.site_replicas
    link = site.node_link if site.nodes == 1 else site.inside
    return replace(link, gbit_per_s=link.gbit_per_s * chips)


def _spread_s(params: float, replicas: int, port: Link) -> float:
    """An fp32 sum among the replicas of a site."""
    return _bytes_s(2 * (replicas - 1) / replicas * 4 * params, port) + (port.latency_s if replicas > 1 else 0.0)


def _bytes_s(sent_bytes: float, link: Link) -> float:
    return link.busy_s(8 * sent_bytes)
