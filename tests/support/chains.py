"""States to save in chains of checkpoints, and what must come back of them."""

from __future__ import annotations

import uuid
from pathlib import Path

import torch

from diloco.checkpoint import Policy, Store, Writer, read_tree

PLACES = ["folder", "memory", "file"]


def place(kind: str, folder: Path) -> str:
    return {"folder": str(folder), "memory": f"memory://{uuid.uuid4().hex}", "file": f"file://{folder}"}[kind]


def trees(step: int) -> dict:
    """Weights that move a little each step, moments that move a lot, an anchor that the weights sit on."""
    generator = torch.Generator().manual_seed(step)
    noise = torch.randn(40, 50, generator=generator)
    weight = torch.randn(40, 50, generator=torch.Generator().manual_seed(99)) + 1e-3 * step * noise
    replica = {
        "model": {
            "w": weight.clone(),
            "bf16": weight.bfloat16(),
            "count": torch.tensor(step),
            "none": torch.empty(0, 3),
        },
        "optimizer": {"w": {"exp_avg": noise, "exp_avg_sq": noise.square(), "step": torch.tensor(float(step))}},
        "counts": {"step": step, "betas": (0.9, 0.95), "best": float("inf")},
    }
    return {"global.0": {"anchor": {"w": weight}}, "replica-0.0": replica}


def write(store: Store, steps: range, **options) -> None:
    writer = Writer(store, keep=Policy(last=0), **options)
    for step in steps:
        writer.settle()
        parts = trees(step)
        writer.save(step, parts, list(parts), {"step": step}, base=writer.next_base())
        for tensor in (parts["global.0"]["anchor"]["w"], *parts["replica-0.0"]["optimizer"]["w"].values()):
            tensor.fill_(-1)  # training goes on while the copy is written
    writer.settle()
    writer.close()


def check(store: Store, step: int, exact: bool) -> None:
    saved = store.open(step)
    assert saved.meta == {"step": step} and saved.units == ["global", "replica-0"]
    for part, meant in trees(step).items():
        found = read_tree(saved.tree(part.removesuffix(".0")))
        compare(found, meant, exact)


def compare(found, meant, exact: bool) -> None:
    assert type(found) is type(meant)
    if isinstance(meant, dict):
        assert list(found) == list(meant)
        for key in meant:
            compare(found[key], meant[key], exact)
    elif isinstance(meant, torch.Tensor):
        assert found.dtype == meant.dtype and found.shape == meant.shape
        if exact or meant.dtype != torch.float32:
            assert torch.equal(found, meant)
        elif meant.numel():
            assert (found - meant).abs().max() <= 0.05 * meant.abs().max()
    else:
        assert found == meant
