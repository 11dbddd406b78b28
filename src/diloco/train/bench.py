"""How many FLOP/s a device really does: a matrix product, and training steps of a model.

Shapes: B sequences, T positions, n rows and columns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from diloco.errors import BadInput
from diloco.plan.measured import KIND
from diloco.train.inner import InnerConfig, build_inner
from diloco.train.loss import lm_loss
from diloco.train.model import build_model
from diloco.train.sizes import count, get_size, train_flops

VOCAB = 256
MATRIX_ROWS = {"cpu": 1024, "cuda": 8192}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class DeviceSpeed:
    """What `diloco plan --measured` reads."""

    flop_per_s: float
    """6 N a token over the fastest training step's time."""
    matmul_flop_per_s: float
    tokens_per_s: float
    step_s: float
    size: str
    params: int
    batch_tokens: int
    seq_len: int
    dtype: str
    device: str
    threads: int
    torch: str
    kind: str = KIND

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def bench_device(
    size: str = "1m",
    seq_len: int = 256,
    sequences: int = 4,
    seconds: float = 3.0,
    dtype: str = "",
    device: str = "",
    tick: Callable[[str, float], None] = lambda text, fraction: None,
) -> DeviceSpeed:
    """Runs products, then training steps, for `seconds` each, and keeps the fastest of either.

    Raises:
        BadInput: an unknown size, dtype or device, or a number below 1.
    """
    for name, value in (("seq_len", seq_len), ("sequences", sequences)):
        if value < 1:
            raise BadInput(f"{name} is {value}: give 1 or more")
    if not 0 < seconds < 3600:
        raise BadInput(f"seconds is {seconds:g}: give more than 0 and less than 3600, as 3")
    place = _device(device)
    kind = _dtype(dtype, place)
    tick("matrix product", 0.0)
    rows = MATRIX_ROWS.get(place.type, MATRIX_ROWS["cpu"])
    a_nn = torch.randn(rows, rows, device=place, dtype=DTYPES[kind])
    matmul_s = _fastest(lambda: a_nn @ a_nn, seconds, place)
    tick("training steps", 0.5)
    shape = get_size(size)
    step_s = _fastest(_train_step(size, seq_len, sequences, kind, place), seconds, place)
    params, tokens = count(shape, VOCAB).params, sequences * seq_len
    return DeviceSpeed(
        flop_per_s=train_flops(params, tokens) / step_s,
        matmul_flop_per_s=2 * rows**3 / matmul_s,
        tokens_per_s=tokens / step_s,
        step_s=step_s,
        size=shape.name,
        params=params,
        batch_tokens=tokens,
        seq_len=seq_len,
        dtype=kind,
        device=torch.cuda.get_device_name(place) if place.type == "cuda" else place.type,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
    )


def _train_step(size: str, seq_len: int, sequences: int, dtype: str, device: torch.device) -> Callable[[], None]:
    model = build_model(get_size(size), VOCAB, seq_len, seed=0, device=device)
    optimizers = build_inner(model, InnerConfig(), total_steps=1000)
    generator = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(VOCAB, (sequences, seq_len), generator=generator).to(device)
    targets_BT = tokens_BT.roll(-1, dims=1)

    def step() -> None:
        with torch.autocast(device.type, DTYPES[dtype], enabled=dtype != "fp32"):
            loss, _ = lm_loss(model(tokens_BT), targets_BT)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


def _fastest(work: Callable[[], object], seconds: float, device: torch.device) -> float:
    """Seconds of the fastest call, after one that warms up."""
    work()
    best, begun = float("inf"), time.perf_counter()
    while best == float("inf") or time.perf_counter() - begun < seconds:
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        best = min(best, time.perf_counter() - start)
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _device(name: str) -> torch.device:
    if not name:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.partition(":")[0] not in ("cpu", "cuda") or (name.startswith("cuda") and not torch.cuda.is_available()):
        raise BadInput(f"device is {name}, which is not here: give cpu, or leave it out")
    return torch.device(name)


def _dtype(name: str, device: torch.device) -> str:
    if name and name not in DTYPES:
        raise BadInput(f"dtype is {name}: give one of {', '.join(DTYPES)}")
    return name or ("bf16" if device.type == "cuda" else "fp32")
