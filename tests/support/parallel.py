"""Tiny models over islands of gloo ranks, many cases to one set of processes, and the plain loop they have to equal."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from support.processes import run_ranks
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from diloco.outer.tensors import clean_name
from diloco.train.hf import HFModel
from diloco.train.inner import InnerConfig, build_inner
from diloco.train.model import build_model
from diloco.train.parallel.build import build_engine
from diloco.train.parallel.layers import Options
from diloco.train.parallel.mesh import build_mesh, parse_mesh
from diloco.train.parallel.place import Place
from diloco.train.sizes import Size
from diloco.wire.collective import Collective

CPU = torch.device("cpu")
VOCAB, SEQ_LEN, SEQUENCES, STEPS = 257, 12, 12, 10
SIZE = Size("uneven", layers=3, heads=2, dim=20, ffn=52)
LR, DECAY, Z_LOSS, CLIP = 3e-3, 0.1, 1e-4, 0.5
INNER = InnerConfig(lr=LR, weight_decay=DECAY, warmup_steps=0, min_lr_ratio=1.0)


class Outcome(NamedTuple):
    losses: list[float]
    norms: list[float]
    weights: dict[str, np.ndarray]
    """Whole, by name: all of them, or those of this rank's pipeline stage."""
    heldout: list[float]
    bits: dict[str, str]
    """A hash of each parameter that lies whole on this rank."""


@dataclass(frozen=True)
class Case:
    mesh: str
    model: Callable[[], nn.Module]
    options: Options = Options()
    microbatches: int = 3
    schedule: str = "1f1b"


def ours(tied: bool = True) -> nn.Module:
    return build_model(SIZE, VOCAB, SEQ_LEN, seed=0, tied=tied)


def untied() -> nn.Module:
    return ours(tied=False)


def llama(**changes: object) -> nn.Module:
    return _hf("LlamaConfig", **changes)


def qwen3() -> nn.Module:
    return _hf("Qwen3Config", head_dim=8)


def phi3() -> nn.Module:
    return _hf("Phi3Config", pad_token_id=0)


def _hf(kind: str, **changes: object) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, kind)(
        **{
            "vocab_size": 257, "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32, "bos_token_id": 0,
            "eos_token_id": 0, "initializer_range": 0.2, **changes,
        }
    )  # fmt: skip
    torch.manual_seed(0)
    return HFModel(transformers.AutoModelForCausalLM.from_config(config)).train()


def batches(count: int, sequences: int = SEQUENCES, seed: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCAB, (sequences, SEQ_LEN + 1), generator=generator) for _ in range(count)]


def heldout() -> list[Tensor]:
    """Batches of 7 and 2, which no number of data ranks divides."""
    return [*batches(1, 7, seed=2), *batches(1, 2, seed=3)]


def plain(model: nn.Module) -> Outcome:
    """Ten steps as anybody would write them."""
    decays = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decays}, {"params": others, "weight_decay": 0.0}], lr=LR, betas=(0.9, 0.99), weight_decay=DECAY
    )
    losses, norms = [], []
    for tokens_BT in batches(STEPS):
        logits_BTV = model(tokens_BT[:, :-1])
        nll = F.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten())
        (nll + Z_LOSS * logits_BTV.logsumexp(-1).square().mean()).backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        losses.append(nll.item())
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        found = [
            F.cross_entropy(model(row[None, :-1])[0], row[1:]).item() for tokens_BT in heldout() for row in tokens_BT
        ]
    return Outcome(losses, norms, {n: p.detach().numpy() for n, p in model.named_parameters()}, found, {})


def run_cases(world: int, cases: dict[str, Case]) -> dict[str, list[Outcome | str]]:
    """Each case's outcome on every rank, or the sentence that refused it."""
    ranks = run_ranks(world, _all, world, cases)
    for found in ranks:
        assert isinstance(found, dict), found
    return {name: [found[name] for found in ranks] for name in cases}


def _no_pickle(*_: object, **__: object) -> None:
    raise AssertionError("something is sent as a pickle")


def _all(rank: int, world: int, cases: dict[str, Case]) -> dict[str, Any]:
    for name in ("send_object_list", "recv_object_list", "broadcast_object_list", "all_gather_object", "gather_object"):
        setattr(dist, name, _no_pickle)
    return {name: _one(world, case) for name, case in cases.items()}


def _one(world: int, case: Case) -> Outcome | str:
    shape = parse_mesh(case.mesh, world)
    mesh = build_mesh(shape, CPU)
    place = Place(shape, mesh, CPU, Collective(mesh).island)
    pipeline = {"microbatches": case.microbatches, "schedule": case.schedule}
    try:
        engine = build_engine(case.model(), place, CPU, case.options, z_loss=Z_LOSS, **pipeline)
        optimizers = build_inner(engine.model, INNER, STEPS)
    except ValueError as error:
        return str(error)
    anchor = {clean_name(n): (p + 1).detach() for n, p in engine.model.named_parameters()}
    list(engine.sequence_losses(anchor, heldout()))  # with other weights before the first step: no trace of it is left
    losses, norms = [], []
    for tokens_BT in batches(STEPS):
        losses.append(engine.forward_backward(tokens_BT).item())
        norms.append(engine.clip(CLIP).item())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    named = {clean_name(n): p.detach() for n, p in engine.model.named_parameters()}
    found = [loss for batch in engine.sequence_losses(named, heldout()) for loss in batch]
    bits = {n: hashlib.sha256(p.numpy()).hexdigest() for n, p in named.items() if not isinstance(p, DTensor)}
    return Outcome(losses, norms, {n: _whole(p).numpy() for n, p in named.items()}, found, bits)


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
