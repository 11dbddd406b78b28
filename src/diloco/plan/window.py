"""One window of H steps of a planned run, message by message, for a picture."""

from __future__ import annotations

from dataclasses import dataclass

from diloco.plan.clock import inner_step, outer_round
from diloco.plan.run import Run

WARM_WINDOWS = 3
"""Played before the one that is kept, so that messages under way from before are in it."""


@dataclass(frozen=True)
class Message:
    """One fragment's outer gradient. Seconds from the window's start."""

    fragment: int
    """From 1."""
    sent_s: float
    """When it is ready."""
    start_s: float
    """When the link is free for it."""
    landed_s: float
    needed_s: float
    """When the inner steps would use it, if they had waited for nothing."""


@dataclass(frozen=True)
class Window:
    """Spans in which the chips compute and wait, as (start, end) in seconds, and the messages."""

    computing: tuple[tuple[float, float], ...]
    waiting: tuple[tuple[float, float], ...]
    messages: tuple[Message, ...]
    step_s: float
    steps: int


def window(run: Run) -> Window | None:
    """A window that is like the one before it; None for data parallelism, which has none.

    Fragment p of P is sent after floor(p H / P) steps and used `overlap_steps` later; messages go one after another.
    """
    if run.data_parallel or run.replicas == 1:
        return None
    step_s, one = inner_step(run).total_s, outer_round(run)
    sends = {p * run.sync_every // run.fragments: p for p in range(run.fragments)}
    now_s = link_free_s = 0.0
    under_way: dict[int, Message] = {}
    waits: list[tuple[float, float]] = []
    landed: list[Message] = []
    begin_s = 0.0
    for step in range((WARM_WINDOWS + 1) * run.sync_every):
        if step == WARM_WINDOWS * run.sync_every:
            begin_s, waits, landed = now_s, [], []
        if step % run.sync_every in sends:
            start_s = max(now_s, link_free_s)
            link_free_s, landed_s = start_s + one.link_s, start_s + one.total_s
            due = Message(
                sends[step % run.sync_every] + 1, now_s, start_s, landed_s, now_s + run.overlap_steps * step_s
            )
            under_way[step + run.overlap_steps] = due
            landed.append(due)
        if (message := under_way.pop(step, None)) is not None and message.landed_s > now_s:
            waits.append((now_s, message.landed_s))
            now_s = message.landed_s
        now_s += step_s
    return _from(begin_s, now_s, waits, landed, step_s, run.sync_every)


def _from(
    begin_s: float, end_s: float, waits: list[tuple[float, float]], sent: list[Message], step_s: float, steps: int
) -> Window:
    edges = [begin_s, *(edge for wait in waits for edge in wait), end_s]
    computing = [(a - begin_s, b - begin_s) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]
    moved = [
        Message(m.fragment, *(moment - begin_s for moment in (m.sent_s, m.start_s, m.landed_s, m.needed_s)))
        for m in sent
    ]
    waiting = tuple((a - begin_s, b - begin_s) for a, b in waits)
    return Window(tuple(computing), waiting, tuple(moved), step_s, steps)
