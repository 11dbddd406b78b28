"""Time of one outer step over gloo against a bare all-reduce of the same bytes, two ranks on loopback.

    torchrun --nproc-per-node 2 benchmarks/outer_step.py [--params 1e6 25e6 100e6] [--peers] [--out outer_step.json]

All are measured in turn in one run; quote the ratios of medians. One thread per rank. `--peers` adds torchft's DiLoCo
and accelerate's LocalSGD (`pip install torchft==0.2.0 accelerate==1.15.0`), each on its own copy of the model.
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


def measure(parameters: int, peers: bool) -> dict:
    torch.manual_seed(0)
    model = Layers(parameters)
    count = sum(p.numel() for p in model.parameters())
    flat = torch.ones(count)
    dist.all_reduce(flat)  # gloo's own buffers count towards neither
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = peak_bytes()
    sync = diloco.DiLoCo(model, optimizer, sync_every=1, hook=False)
    sync.step()
    held = peak_bytes() - before
    systems: dict[str, tuple[nn.Module, Callable[[], object]]] = {"diloco": (model, sync.step)}
    torchft = None
    if peers:
        from peers import TorchFT, accelerate_local_sgd

        torchft = TorchFT(Layers(parameters))
        systems["torchft"] = (torchft.model, torchft)
        averaged = Layers(parameters)
        systems["accelerate"] = (averaged, accelerate_local_sgd(averaged))
    times = _in_turn(systems, flat, REPEATS.get(parameters, 7))
    if torchft is not None:
        torchft.close()
    bare = statistics.median(times["all_reduce"])
    row = {"params": count, "memory_held_bytes": held, "memory_allowed_bytes": 2 * 4 * count + (64 << 20)}
    for name, values in times.items():
        row |= {f"{name}_s": statistics.median(values), f"{name}_ratio": statistics.median(values) / bare}
    return row


def _in_turn(systems: dict, flat: torch.Tensor, repeats: int) -> dict[str, list[float]]:
    """Seconds of a bare all-reduce and of every system, one after the other, `repeats` times after one warm-up."""
    times: dict[str, list[float]] = {"all_reduce": [], **{name: [] for name in systems}}
    for repeat in range(repeats + 1):
        flat.fill_(1.0)
        times["all_reduce"].append(seconds(lambda: dist.all_reduce(flat)))
        for name, (model, step) in systems.items():
            drift(model, repeat)
            times[name].append(seconds(step))
    return {name: values[1:] for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", type=float, nargs="+", default=list(REPEATS), help="model sizes in parameters")
    parser.add_argument("--peers", action="store_true", help="measure torchft and accelerate as well")
    parser.add_argument("--out", default="", help="JSON file for the table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rows = [measure(int(p), arguments.peers) for p in arguments.params]
    if dist.get_rank() == 0:
        for row in rows:
            show(row)
        if arguments.out:
            with open(arguments.out, "w") as file:
                json.dump({"torch": torch.__version__, "ranks": dist.get_world_size(), "rows": rows}, file, indent=1)
    dist.destroy_process_group()


def show(row: dict) -> None:
    print(f"{row['params']:,} parameters, held {row['memory_held_bytes'] >> 20} MiB", end="")
    print(f" of {row['memory_allowed_bytes'] >> 20} MiB allowed")
    for name in [key.removesuffix("_ratio") for key in row if key.endswith("_ratio")]:
        print(f"  {name:<12} {1e3 * row[f'{name}_s']:9.1f} ms   {row[f'{name}_ratio']:6.2f} x the bare all-reduce")


if __name__ == "__main__":
    main()
