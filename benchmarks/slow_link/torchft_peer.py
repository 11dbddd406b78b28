"""torchft's DiLoCo on the same loop, between two namespaces: `pip install torchft==0.2.0` in an environment of its own.

Imported only where that is asked for.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torchft import Manager, ProcessGroupGloo
from torchft.local_sgd import DiLoCo

from slow_link.cells import SYNC_EVERY
from slow_link.loop import Loop, Method
from slow_link.net import ADDRESSES

LIGHTHOUSE_PORT, TIMEOUT = 29785, timedelta(seconds=120)
OUTER = {"lr": 0.7, "momentum": 0.9, "nesterov": True}


def torchft(loop: Loop) -> Method:
    """One fragment, no delay, H as everybody's. The outer step rides on the inner optimizer's hook, so it counts as
    part of the inner step."""
    rank = dist.get_rank()
    lighthouse = _lighthouse() if rank == 0 else None
    dist.barrier()
    loop.held = store = dist.TCPStore(ADDRESSES[rank], 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT),
        use_async_quorum=False,
        min_replica_size=2,
        load_state_dict=lambda state: None,
        state_dict=lambda: {},
        replica_id=f"replica_{rank}",
        timeout=TIMEOUT,
        store_addr=ADDRESSES[rank],
        store_port=store.port,
        rank=0,
        world_size=1,
        hostname=ADDRESSES[rank],
        init_sync=False,
        lighthouse_addr=f"http://{ADDRESSES[0]}:{LIGHTHOUSE_PORT}",
    )
    (inner,) = loop.optimizers
    wrapper = DiLoCo(manager, [loop.model], inner, torch.optim.SGD(loop.model.parameters(), **OUTER), SYNC_EVERY)
    wrapper.__enter__()

    def close() -> None:
        wrapper.__exit__(None, None, None)
        dist.barrier()  # a manager that goes first takes the other's last answer with it
        manager.shutdown(wait=False)
        if lighthouse is not None:
            lighthouse.kill()

    return Method(close=close, rounds=manager.current_step)


def _lighthouse() -> subprocess.Popen:
    command = [str(Path(sys.executable).parent / "torchft_lighthouse"), "--min_replicas", "2"]
    command += ["--join_timeout_ms", "1000", "--bind", f"{ADDRESSES[0]}:{LIGHTHOUSE_PORT}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
    time.sleep(2)  # it has no ready signal
    return process
