"""How each method of the table is set up, with the project's public names."""

from __future__ import annotations

from collections.abc import Callable

import torch

import diloco
from diloco.wire.exchange import sum_bytes
from diloco.wire.link import Link
from slow_link.cells import MIXING, OVERLAP, REPLICAS, SYNC_EVERY, Cell
from slow_link.loop import Loop, Method


def build(cell: Cell, loop: Loop) -> Method:
    """The method of a cell in this process, one replica among others."""
    if cell.method == "compute":
        return Method()
    if cell.method == "torchft":
        from slow_link.torchft_peer import torchft

        return torchft(loop)
    if cell.method == "socket":
        from slow_link.plain_socket import full_line

        return full_line()
    exchange = diloco.Collective(link=Link.parse(cell.link)) if cell.path == "throttle" else diloco.Collective()
    return data_parallel(loop, exchange.sum) if cell.method == "dp" else wrap(cell, loop, exchange)


def wrap(cell: Cell, loop: Loop, exchange: object) -> Method:
    """DiLoCo in one of its forms. Its hook is left off, so that a step and what follows it can be timed apart."""
    sync = diloco.DiLoCo(
        loop.model, loop.optimizers, sync_every=SYNC_EVERY, exchange=exchange, hook=False, **options(cell.method)
    )

    def begin() -> None:
        # Nothing is sent in the first window, so that is passed over: the timed ones are like all that follow.
        for _ in range(SYNC_EVERY - 1):
            sync.step()
        sync.step_begins()

    return Method(
        begin=begin,
        sync=sync.step,
        close=sync.close,
        metered_bytes=lambda: sum(r.bytes_sent for r in sync.rounds),
        rounds=lambda: len(sync.rounds),
    )


def options(method: str) -> dict[str, object]:
    """Arguments of `diloco.DiLoCo` beside H."""
    if method == "diloco":
        return {}
    streaming = {"fragments": diloco.Strided(blocks=1), "overlap": OVERLAP, "mixing": MIXING}
    return streaming if method == "streaming" else {**streaming, "codec": method.removeprefix("streaming-")}


def data_parallel(loop: Loop, sum_over_replicas: Callable[[torch.Tensor], torch.Tensor]) -> Method:
    """The mean gradient over the replicas, each step."""
    parameters = list(loop.model.parameters())
    sent = 0

    def reduce() -> None:
        nonlocal sent
        gradients = [p.grad for p in parameters]
        mean = sum_over_replicas(torch.cat([g.flatten() for g in gradients])) / REPLICAS
        sent += sum_bytes(mean.nbytes, REPLICAS)
        for gradient, part in zip(gradients, mean.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    return Method(reduce=reduce, metered_bytes=lambda: sent)
