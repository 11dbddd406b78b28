"""The layers of a training step, and which of them cross a slow link when.

The graph of Streaming DiLoCo (arXiv:2501.18512, supplement): of L layers each has a forward node F, a backward node for
its activations A (the first layer needs none), one for its parameters P, and a reduction R: 4 L - 1 nodes. F, A and P
run one after another on the chips and take equal times; R run one after another on the link between replicas:

    F1 .. FL  AL PL  A(L-1) P(L-1)  ..  A2 P2  P1        Rl starts after Pl, and the next Fl waits for Rl

A reduction of step n must be over when the forward pass of step n + 1 + overlap reaches its layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from diloco.errors import BadInput


@dataclass(frozen=True)
class Workload:
    """What one replica computes in an inner step."""

    params: float
    layers: int
    step_s: float
    """Compute alone."""

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise BadInput(f"layers is {self.layers}: give 1 or more")
        for name in ("params", "step_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise BadInput(f"{name} is {getattr(self, name):g}: give a finite number above 0")

    @property
    def node_s(self) -> float:
        """Of one of the 3 L - 1 nodes that compute."""
        return self.step_s / (3 * self.layers - 1)


@dataclass(frozen=True)
class Method:
    """What crosses the link, and when. The defaults are data parallel in bf16."""

    sync_every: int = 1
    """H: inner steps between two reductions of one layer."""
    fragment_layers: int | None = None
    """Layers that are reduced in the same step; None for all of them."""
    overlap_steps: int = 0
    """tau: whole inner steps for which nobody waits; `sync_every` where the result is used an outer step later."""
    bits_per_param: float = 16.0
    strided: bool = True
    """Fragments take every P-th layer, or else consecutive ones."""
    even_gaps: bool = True
    """Fragments follow one another by round(H / P) steps, so that a cycle lasts P times that, or else fragment p by
    floor(p H / P) with a cycle of H."""
    layerwise: bool = True
    """A layer is sent when its gradient is there and awaited by its own forward pass, or else (False) a fragment is
    sent when its step has ended and awaited before a step begins."""
    fragments: int | None = None
    """P, where it and not `fragment_layers` is given: parts of the model that are as equal as can be."""

    def __post_init__(self) -> None:
        for name, least in (("sync_every", 1), ("fragment_layers", 1), ("fragments", 1), ("overlap_steps", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise BadInput(f"{name} is {value}: give {least} or more")
        if self.fragments is not None and self.fragment_layers is not None:
            raise BadInput(
                f"fragments is {self.fragments} and fragment_layers {self.fragment_layers}: give one of them"
            )
        if not 0 < self.bits_per_param <= 64:
            raise BadInput(f"bits_per_param is {self.bits_per_param:g}: give more than 0 and at most 64, as 16")


@dataclass(frozen=True)
class Wire:
    """The link between replicas as one of them sees it."""

    gbit_per_s: float
    latency_s: float = 0.0
    """Added to each reduction; the next one need not wait for it."""
    factor: float = 1.0
    """Bits on the link for each bit of payload: 2 (M - 1) / M for an all-reduce among M, which is 1 between two."""

    def __post_init__(self) -> None:
        if not self.gbit_per_s > 0 or not self.factor >= 0 or not self.latency_s >= 0:
            raise BadInput(f"link has {self.gbit_per_s:g} Gbit/s and {self.latency_s:g} s: give a rate above 0")

    def reduction_s(self, params: float, bits_per_param: float) -> float:
        """Seconds for which the link is busy with so many parameters."""
        return params * bits_per_param * self.factor / (1e9 * self.gbit_per_s)


def fragments(layers: int, method: Method) -> tuple[tuple[int, ...], ...]:
    """The layers, from 1, of each fragment. Raises BadInput for more fragments than layers."""
    size = method.fragment_layers or layers
    count = method.fragments or math.ceil(layers / size)
    if count > layers:
        raise BadInput(f"fragments is {count} for {layers} layers: give {layers} or fewer")
    if method.strided:
        return tuple(tuple(range(first, layers + 1, count)) for first in range(1, count + 1))
    if method.fragments:
        return tuple(tuple(range(p * layers // count + 1, (p + 1) * layers // count + 1)) for p in range(count))
    return tuple(tuple(range(lo, min(lo + size, layers + 1))) for lo in range(1, layers + 1, size))


def sends(layers: int, method: Method) -> tuple[int, tuple[int, ...]]:
    """Steps of a cycle, and the step of it at which each fragment is sent."""
    count = len(fragments(layers, method))
    if count == 1:
        return method.sync_every, (0,)
    if method.even_gaps and count <= method.sync_every:
        gap = round(method.sync_every / count)
        return gap * count, tuple(gap * p for p in range(count))
    return method.sync_every, tuple(p * method.sync_every // count for p in range(count))


def parameter_ready_s(work: Workload, method: Method) -> list[float]:
    """When in a step without waiting layer 1, 2, ... L may be sent."""
    if not method.layerwise:
        return [work.step_s] * work.layers
    node_s, layers = work.node_s, work.layers
    return [work.step_s, *((3 * layers - 2 * layer + 2) * node_s for layer in range(2, layers + 1))]
