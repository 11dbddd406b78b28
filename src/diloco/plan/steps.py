"""Plays training steps layer by layer over a slow link, and says how long the chips stand still.

`diloco.plan.graph` has the nodes of a step and their order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from diloco.plan.graph import Method, Wire, Workload, fragments, parameter_ready_s, sends

SETTLED, MOST_CYCLES = 1e-9, 100
"""Cycles are played until one leaves things as the one before it did, to this share of a step; at most so many."""


@dataclass(frozen=True)
class Span:
    """One node of the graph in time."""

    kind: str
    """forward, activations, parameters or reduction."""
    layer: int
    """From 1."""
    step: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Simulation:
    """One cycle, in which each fragment is reduced once, after the start has been forgotten."""

    steps: int
    compute_s: float
    total_s: float
    reduction_s: float
    """The link's busy time."""

    @property
    def utilization(self) -> float:
        """Compute time over total time."""
        return self.compute_s / self.total_s

    @property
    def exposed_s(self) -> float:
        """The chips' waiting in a step, on average over the cycle."""
        return (self.total_s - self.compute_s) / self.steps


@dataclass
class _Clock:
    """The state between two steps of a simulation."""

    now_s: float = 0.0
    step: int = 0
    link_free_s: float = 0.0
    due: dict[int, dict[int, float]] = field(default_factory=dict)
    """Arrival time by layer, by the step whose forward pass needs it."""

    def relative(self, unit_s: float) -> tuple[int, frozenset[tuple[int, int, int]]]:
        """What the next cycle depends on, as whole units from now: the link's backlog and what is still to come."""
        ahead = frozenset(
            (step - self.step, layer, max(0, round((arrival_s - self.now_s) / unit_s)))
            for step, arrivals in self.due.items()
            for layer, arrival_s in arrivals.items()
        )
        return max(0, round((self.link_free_s - self.now_s) / unit_s)), ahead


def simulate(work: Workload, method: Method, wire: Wire) -> Simulation:
    """Plays cycles until they repeat, or takes the mean of the later half of `MOST_CYCLES`.

    A link that is a little too slow fills up over many cycles before anybody waits, so that no cycle is taken to be
    shorter than what it puts on the link.
    """
    cycle_steps, _ = sends(work.layers, method)
    clock, starts_s, before = _Clock(), [0.0], None
    for cycle in range(MOST_CYCLES):
        _play_cycle(clock, work, method, wire, cycle)
        starts_s.append(clock.now_s)
        state = clock.relative(SETTLED * work.step_s)
        if state == before:
            total_s = starts_s[-1] - starts_s[-2]
            break
        before = state
    else:
        half = MOST_CYCLES // 2
        total_s = (starts_s[-1] - starts_s[half]) / (MOST_CYCLES - half)
    busy_s = wire.reduction_s(work.params, method.bits_per_param)
    return Simulation(cycle_steps, cycle_steps * work.step_s, max(total_s, busy_s), busy_s)


def timeline(work: Workload, method: Method, wire: Wire, steps: int = 3, cycles_before: int = 2) -> list[Span]:
    """Every node of the first `steps` steps of a cycle, for a picture; times from the start of that cycle.

    Reductions that begin in these steps may end after them.
    """
    clock, spans = _Clock(), []
    for cycle in range(cycles_before):
        _play_cycle(clock, work, method, wire, cycle)
    first, origin_s = clock.step, clock.now_s
    for cycle in range(cycles_before, cycles_before + math.ceil(steps / sends(work.layers, method)[0])):
        _play_cycle(clock, work, method, wire, cycle, spans)
    return [
        Span(s.kind, s.layer, s.step - first, s.start_s - origin_s, s.end_s - origin_s)
        for s in spans
        if first <= s.step < first + steps
    ]


def _play_cycle(
    clock: _Clock, work: Workload, method: Method, wire: Wire, cycle: int, spans: list[Span] | None = None
) -> None:
    cycle_steps, offsets = sends(work.layers, method)
    parts, ready_s = fragments(work.layers, method), parameter_ready_s(work, method)
    layer_s = wire.reduction_s(work.params / work.layers, method.bits_per_param)
    sent: dict[int, list[int]] = {}
    for part, offset in zip(parts, offsets, strict=True):
        sent.setdefault(offset, []).extend(part)
    first, last = cycle * cycle_steps, (cycle + 1) * cycle_steps
    busy = range(first, last) if spans is not None else _busy_steps(clock, first, last, sent)
    for step in busy:
        clock.now_s += (step - clock.step) * work.step_s
        clock.step = step
        waits = _forward_waits(clock.now_s, clock.due.pop(step, {}), work.node_s)
        if spans is not None:
            spans.extend(_compute_spans(clock.now_s, step, work, waits))
        clock.now_s += sum(waits.values())
        for layer in sorted(sent.get(step - first, ()), reverse=True):
            start_s = max(clock.link_free_s, clock.now_s + ready_s[layer - 1])
            clock.link_free_s = start_s + layer_s
            arrival_s = clock.link_free_s + wire.latency_s
            clock.due.setdefault(step + 1 + method.overlap_steps, {})[layer if method.layerwise else 1] = arrival_s
            if spans is not None:
                spans.append(Span("reduction", layer, step, start_s, arrival_s))
    clock.now_s += (last - clock.step) * work.step_s
    clock.step = last


def _busy_steps(clock: _Clock, first: int, last: int, sent: dict[int, list[int]]) -> Iterator[int]:
    """Steps of a cycle in which something is sent or waited for, in order; `clock.due` grows as they are played."""
    step = first
    while step < last:
        coming = [s for s in clock.due if step <= s < last] + [first + o for o in sent if first + o >= step]
        if not coming:
            return
        step = min(coming)
        yield step
        step += 1


def _forward_waits(start_s: float, arrivals: dict[int, float], node_s: float) -> dict[int, float]:
    """Seconds that a forward pass starting at `start_s` stands still before each layer that has to arrive."""
    waits, waited_s = {}, 0.0
    for layer, arrival_s in sorted(arrivals.items()):
        waits[layer] = max(0.0, arrival_s - (start_s + waited_s + (layer - 1) * node_s))
        waited_s += waits[layer]
    return waits


def _compute_spans(start_s: float, step: int, work: Workload, waits: dict[int, float]) -> Iterator[Span]:
    now_s, layers = start_s, work.layers
    order = [("forward", layer) for layer in range(1, layers + 1)]
    for layer in range(layers, 0, -1):
        order += [("activations", layer)] if layer > 1 else []
        order += [("parameters", layer)]
    for kind, layer in order:
        now_s += waits.get(layer, 0.0) if kind == "forward" else 0.0
        yield Span(kind, layer, step, now_s, now_s + work.node_s)
        now_s += work.node_s
