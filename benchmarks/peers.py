"""Other systems' outer steps behind one interface: a function that runs one, after the weights have drifted."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

OUTER = {"lr": 0.7, "momentum": 0.9, "nesterov": True}


def accelerate_local_sgd(model: nn.Module) -> Callable[[], None]:
    """accelerate's LocalSGD: parameters averaged, no outer optimizer."""
    from accelerate import Accelerator
    from accelerate.local_sgd import LocalSGD

    accelerator = Accelerator(cpu=True)
    wrapped = accelerator.prepare(model)
    local = LocalSGD(accelerator=accelerator, model=wrapped, local_sgd_steps=1, enabled=True)
    local.__enter__()
    return local.step


class TorchFT:
    """torchft's DiLoCo with one fragment and sync_every 1; a lighthouse on loopback is started by rank 0.

    Its outer step rides on the inner optimizer's hook, so one call is one inner SGD step of size 0 and one outer step.
    """

    def __init__(self, model: nn.Module) -> None:
        from torchft import Manager, ProcessGroupGloo
        from torchft.local_sgd import DiLoCo

        self.lighthouse = _lighthouse()
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.model = model
        self.inner = torch.optim.SGD(model.parameters(), lr=0.0)
        self.manager = Manager(
            pg=ProcessGroupGloo(timeout=timedelta(seconds=60)),
            use_async_quorum=False,
            min_replica_size=2,
            load_state_dict=lambda state: None,
            state_dict=lambda: {},
            replica_id=f"replica_{dist.get_rank()}",
            timeout=timedelta(seconds=60),
            store_addr="127.0.0.1",
            store_port=self.store.port,
            rank=0,
            world_size=1,
            hostname="127.0.0.1",
            init_sync=False,
            lighthouse_addr=self.lighthouse[1],
        )
        outer = torch.optim.SGD(model.parameters(), **OUTER)
        self.wrapper = DiLoCo(self.manager, [model], self.inner, outer, sync_every=1)
        self.wrapper.__enter__()
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def __call__(self) -> None:
        self.inner.step()

    def close(self) -> None:
        self.manager.shutdown(wait=False)
        if self.lighthouse[0] is not None:
            self.lighthouse[0].kill()


def _lighthouse(port: int = 29785) -> tuple[subprocess.Popen | None, str]:
    address = f"http://127.0.0.1:{port}"
    process = None
    if dist.get_rank() == 0:
        command = ["torchft_lighthouse", "--min_replicas", "2", "--join_timeout_ms", "1000"]
        command += ["--bind", f"127.0.0.1:{port}"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
        time.sleep(2)  # it has no ready signal
    dist.barrier()
    return process, address
