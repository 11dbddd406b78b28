"""`codec="auto"`: which codec makes a round shortest on this link and this machine, measured once at the start."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from diloco.outer.codec import Codec, Key, get_codec
from diloco.wire.collective import Collective
from diloco.wire.exchange import Exchange, sum_bytes

AUTO = "auto"

# Those whose loss stays close to fp32's (studies/wire). Sparse ones are a decision about the loss, not about time.
CANDIDATES = ("fp32", "bf16", "int8", "e3m0")

SAMPLE_ELEMENTS = 1 << 20
PROBE_BYTES = (1 << 14, 1 << 24)
PROBE_S = 0.1
"""A probe of the link that takes at least this long is long enough."""


@dataclass(frozen=True)
class Choice:
    """What was chosen, and the seconds of a round by codec that it was chosen by."""

    codec: Codec
    seconds: dict[str, float]
    mbit_per_s: float | None

    def __str__(self) -> str:
        if self.mbit_per_s is None:
            return f"codec {self.codec.name}: nothing crosses a network"
        times = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in self.seconds.items())
        return f"codec {self.codec.name}: at {self.mbit_per_s:,.0f} Mbit/s a round of all parameters takes {times}"


def choose_codec(exchange: Exchange, numel: int) -> Choice:
    """For a model of `numel` parameters. The same on all replicas: they go by the slowest one's figures."""
    if exchange.replicas == 1 or not (isinstance(exchange, Collective) or exchange.clock):
        return Choice(get_codec("fp32"), {}, None)
    if isinstance(exchange, Collective):
        latency_s, bytes_per_s = _probe(exchange)
        own = [latency_s, bytes_per_s, *(_arithmetic_s(name, numel, exchange.replicas) for name in CANDIDATES)]
        figures = exchange.gather(torch.tensor(own, dtype=torch.float64))
        latency_s, bytes_per_s = figures[:, 0].max().item(), figures[:, 1].min().item()
        arithmetic_s = figures[:, 2:].amax(0).tolist()
    else:
        link = exchange.clock.link
        latency_s, bytes_per_s = link.delay_s, 1 / link.line_s(1)
        # Replicas in one process must choose alike, so the first one's measurement stands for all.
        if exchange.arithmetic_s is None:
            exchange.arithmetic_s = [_arithmetic_s(name, numel, exchange.replicas) for name in CANDIDATES]
        arithmetic_s = exchange.arithmetic_s
    seconds = {
        name: busy_s + latency_s + _sent_bytes(get_codec(name), numel, exchange.replicas) / bytes_per_s
        for name, busy_s in zip(CANDIDATES, arithmetic_s, strict=True)
    }
    # The ranks of one replica measure each their own link, and must send alike.
    best = exchange.island.gather_json(min(seconds, key=seconds.__getitem__))[0]
    return Choice(get_codec(best), seconds, 8e-6 * bytes_per_s)


def _sent_bytes(codec: Codec, numel: int, replicas: int) -> int:
    return sum_bytes(codec.nbytes(numel), replicas)


def _arithmetic_s(name: str, numel: int, replicas: int) -> float:
    """Seconds to encode, and to decode from every replica, on this process's own core; none for fp32."""
    codec, sample = get_codec(name), torch.randn(min(numel, SAMPLE_ELEMENTS))
    if codec.exact:
        return 0.0
    payload = torch.empty(codec.nbytes(len(sample)), dtype=torch.uint8)
    codec.encode(sample, payload, Key(0, 0))  # scratch memory is made in the first call
    began = time.perf_counter()
    codec.encode(sample, payload, Key(0, 0))
    for _ in range(replicas):
        codec.decode(payload, sample, Key(0, 0))
    return (time.perf_counter() - began) * numel / len(sample)


def _probe(exchange: Collective) -> tuple[float, float]:
    """Seconds of a small exchange, and bytes a second of a long one."""
    latency_s = min(_sum_s(exchange, exchange.replicas) for _ in range(3))
    size, longest = PROBE_BYTES
    seconds = _sum_s(exchange, size // 4)
    # All replicas must go on or stop together, so the slowest one's clock decides.
    while (slowest := exchange.gather(torch.tensor([seconds])).max().item()) < PROBE_S and size < longest:
        size *= 4
        seconds = _sum_s(exchange, size // 4)
    return latency_s, sum_bytes(size, exchange.replicas) / max(slowest - latency_s, 1e-9)


def _sum_s(exchange: Collective, elements: int) -> float:
    values = torch.zeros(elements)
    began = time.perf_counter()
    exchange.sum(values)
    return time.perf_counter() - began
