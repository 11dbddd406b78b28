"""The inner loop that all methods share, and the clock around it.

Shapes: B sequences, T positions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from diloco.train.inner import InnerConfig, build_inner
from diloco.train.loss import lm_loss
from diloco.train.model import build_model
from diloco.train.sizes import get_size
from slow_link.cells import SEQ_LEN, SEQUENCES, VOCAB

TOTAL_STEPS = 1000


class Loop:
    """A model of the project's own that trains on random tokens."""

    def __init__(self, model: str, seed: int = 0) -> None:
        self.model = build_model(get_size(model), VOCAB, SEQ_LEN, seed=0)
        self.optimizers = build_inner(self.model, InnerConfig(), TOTAL_STEPS)
        generator = torch.Generator().manual_seed(seed)
        self.batch_BT = torch.randint(0, VOCAB, (SEQUENCES[model], SEQ_LEN + 1), generator=generator)

    def gradients(self) -> None:
        loss, _ = lm_loss(self.model(self.batch_BT[:, :-1]), self.batch_BT[:, 1:], 1e-4)
        loss.backward()

    def update(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def seconds(self, steps: int) -> list[float]:
        """What each of some steps without a sync takes."""
        times = []
        for _ in range(steps):
            start = time.perf_counter()
            self.gradients()
            self.update()
            times.append(time.perf_counter() - start)
        return times


def nothing() -> None:
    """What a method does at a point where it has nothing to do."""


@dataclass
class Method:
    """What is done to a `Loop` to keep replicas together."""

    begin: Callable[[], None] = nothing
    """Just before the first timed step."""
    reduce: Callable[[], None] = nothing
    """Between backward pass and update."""
    sync: Callable[[], None] = nothing
    """After the update."""
    close: Callable[[], None] = nothing
    """When the timed steps are over: from here on the replica trains alone."""
    metered_bytes: Callable[[], int] | None = None
    """Payload sent so far by this replica, if the method counts it."""
    rounds: Callable[[], int] = lambda: 0


@dataclass
class Times:
    """Of each timed step."""

    inner_s: list[float] = field(default_factory=list)
    """Forward, backward and update."""
    sync_s: list[float] = field(default_factory=list)
    """All the rest."""
    step_sent_bytes: list[int] = field(default_factory=list)
    """That left this replica while it was in its forward, backward or update."""

    def step(self, loop: Loop, method: Method, counter: Callable[[], int]) -> None:
        sent = counter()
        start = time.perf_counter()
        loop.gradients()
        backward = time.perf_counter()
        method.reduce()
        reduced = time.perf_counter()
        loop.update()
        updated = time.perf_counter()
        self.step_sent_bytes.append(counter() - sent)
        method.sync()
        self.inner_s.append(backward - start + updated - reduced)
        self.sync_s.append(time.perf_counter() - start - self.inner_s[-1])
