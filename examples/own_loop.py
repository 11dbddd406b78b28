"""DiLoCo in a training loop of one's own: the lines marked `# +` are all it takes.

python examples/own_loop.py                                  # one replica
torchrun --nproc-per-node 2 examples/own_loop.py             # two replicas that talk every 20 steps
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn

import diloco  # +


def main() -> float:
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0
    torch.manual_seed(rank)  # replicas may start apart: DiLoCo copies replica 0's weights to all
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    target = torch.randn(16, generator=torch.Generator().manual_seed(0))

    sync = diloco.DiLoCo(model, optimizer, sync_every=20, outer=diloco.Nesterov(lr=0.7, momentum=0.6))  # +
    for _ in range(210):
        x = torch.randn(32, 16)
        loss = (model(x).squeeze(-1) - x @ target).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    sync.finish()  # + the last 10 steps, half a window, are merged too

    receipt = sync.receipt()  # +
    print(
        f"replica {rank} of {receipt['replicas']}: loss {loss.item():.4f}, {receipt['rounds_committed']} rounds, "
        f"{receipt['bytes_sent']} bytes sent, global weights {receipt['checksum']}"
    )
    if dist.is_initialized():
        dist.destroy_process_group()
    return loss.item()


if __name__ == "__main__":
    main()
