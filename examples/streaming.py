"""Streaming DiLoCo over a slow link, four replicas simulated in this process: a laptop tells what the link would cost.

python examples/streaming.py

The whole model at once in fp32 makes training wait for the line; in two fragments of 4 bits, each under way during five
inner steps, it hardly does. Over real links the same options go to `diloco.DiLoCo` with `exchange=diloco.Collective()`.
"""

from __future__ import annotations

import torch
from torch import nn

import diloco

REPLICAS, STEPS = 4, 100
LINK = "2mbit,1ms"


def train(**options: object) -> dict:
    """One run; its receipt, with the final loss and the seconds it would have taken over the link."""
    torch.manual_seed(0)
    exchange = diloco.Local(REPLICAS, link=diloco.Link.parse(LINK))
    models = [nn.Sequential(nn.Linear(16, 256), nn.Tanh(), nn.Linear(256, 1)) for _ in range(REPLICAS)]
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in models]
    syncs = [
        diloco.DiLoCo(m, o, sync_every=20, exchange=exchange, outer=diloco.Nesterov(0.7, 0.6), **options)
        for m, o in zip(models, optimizers, strict=True)
    ]
    target = torch.randn(16)
    for _ in range(STEPS):
        for model, optimizer in zip(models, optimizers, strict=True):
            exchange.step_begins()
            x = torch.randn(32, 16)
            loss = (model(x).squeeze(-1) - x @ target).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    for sync in syncs:
        sync.finish()
    x = torch.randn(1024, 16)
    loss = (models[0](x).squeeze(-1) - x @ target).square().mean().item()
    return {**syncs[0].receipt(), "loss": loss, "virtual_s": exchange.clock.elapsed_s}


def main() -> dict[str, dict]:
    runs = {
        "fp32, all at once": train(),
        "streaming, e3m0": train(fragments="balanced:2", overlap=5, codec="e3m0"),
    }
    for name, receipt in runs.items():
        print(
            f"{name}: loss {receipt['loss']:.3f}, {receipt['bytes_sent']} bytes sent per replica, "
            f"{receipt['virtual_s']:.2f} s over {LINK}, of which training stood still for {receipt['stall_s']:.2f} s"
        )
    return runs


if __name__ == "__main__":
    main()
