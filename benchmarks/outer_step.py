"""Time of one outer step over gloo against a bare all-reduce of the same bytes, two ranks on loopback.

    torchrun --nproc-per-node 2 benchmarks/outer_step.py [--params 1e6 25e6 100e6] [--out outer_step.json]

The two are measured alternately in one run; quote the ratio of medians. One thread per rank.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

import diloco

REPEATS = {1_000_000: 31, 25_000_000: 11, 100_000_000: 7}


class Layers(nn.Module):
    """Parameters in the shapes of a transformer: matrices of a tenth of the model, and vectors."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        width = int((parameters / 10) ** 0.5)
        self.matrices = nn.ParameterList(nn.Parameter(torch.randn(width, width) * 0.02) for _ in range(10))
        self.vectors = nn.ParameterList(nn.Parameter(torch.randn(width)) for _ in range(10))


def seconds(call: Callable[[], object]) -> float:
    dist.barrier()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def drift(model: nn.Module, seed: int) -> None:
    """What inner steps would do to the weights: replicas move apart."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1e-3 * (dist.get_rank() + 1) * (1 + seed % 3))


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(parameters: int) -> dict:
    torch.manual_seed(0)
    model = Layers(parameters)
    count = sum(p.numel() for p in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    flat = torch.ones(count)
    dist.all_reduce(flat)  # gloo's own buffers count towards neither
    before = peak_bytes()
    sync = diloco.DiLoCo(model, optimizer, sync_every=1, hook=False)
    sync.step()
    held = peak_bytes() - before
    bare, ours = [], []
    for repeat in range(REPEATS.get(parameters, 7)):
        drift(model, repeat)
        bare.append(seconds(lambda: dist.all_reduce(flat)))
        flat.fill_(1.0)
        ours.append(seconds(sync.step))
    allowed = 2 * 4 * count + (64 << 20)
    return {
        "params": count,
        "bare_all_reduce_s": statistics.median(bare),
        "outer_step_s": statistics.median(ours),
        "ratio": statistics.median(ours) / statistics.median(bare),
        "ratio_min": min(ours) / min(bare),
        "memory_held_bytes": held,
        "memory_allowed_bytes": allowed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", type=float, nargs="+", default=list(REPEATS), help="model sizes in parameters")
    parser.add_argument("--out", default="", help="JSON file for the table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rows = [measure(int(p)) for p in arguments.params]
    if dist.get_rank() == 0:
        for row in rows:
            print(
                f"{row['params']:>12,} parameters  all-reduce {1e3 * row['bare_all_reduce_s']:8.1f} ms  outer step "
                f"{1e3 * row['outer_step_s']:8.1f} ms  ratio {row['ratio']:.2f} (of minima {row['ratio_min']:.2f})  held "
                f"{row['memory_held_bytes'] / 2**20:7.0f} MiB of {row['memory_allowed_bytes'] / 2**20:7.0f} MiB allowed"
            )
        if arguments.out:
            with open(arguments.out, "w") as file:
                json.dump({"torch": torch.__version__, "rows": rows}, file, indent=1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
