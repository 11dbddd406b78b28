"""The inner optimizer of one replica, its learning-rate schedule and gradient clipping."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diloco.errors import BadInput

Method = Literal["adamw", "muon"]

PAPER_WARMUP_STEPS = 1000
MAX_WARMUP_FRACTION = 0.05
MUON_MOMENTUM = 0.95
HEAD_NAMES = frozenset({"head", "lm_head", "output", "output_projection", "embed_out"})
_FUSED_DEVICES = frozenset({"cpu", "cuda", "mps", "xpu"})


@dataclass(frozen=True)
class InnerConfig:
    """Inner optimizer and schedule: the scaling-law paper's (arXiv:2503.09799) unless a field says otherwise."""

    optimizer: Method = "adamw"
    """adamw for all tensors, or muon for the body's matrices with adamw for the rest."""
    lr: float = 6e-3
    """Peak learning rate. The default was found at 100k parameters; 1M wants half of it, larger models less still."""
    beta1: float = 0.9
    """AdamW's decay of the first moment, a step."""
    beta2: float = 0.99
    """AdamW's decay of the second moment, a step."""
    eps: float = 1e-8
    """AdamW's term against division by zero."""
    weight_decay: float | None = None
    """Decoupled decay, times lr a step, of tensors with two or more dimensions. Default: 1 / total steps."""
    warmup_steps: int | None = None
    """Steps of linear warmup. Default: the paper's 1000, but at most 5% of the run: the paper's runs are long, and a
    short one would spend itself warming up."""
    min_lr_ratio: float = 0.05
    """Learning rate of the last step, as a share of the peak."""
    clip: float = 1.0
    """Largest global L2 norm of a replica's gradient; 0 turns clipping off."""

    def __post_init__(self) -> None:
        if self.optimizer not in get_args(Method):
            raise BadInput(f"inner.optimizer is {self.optimizer!r}: choose one of {', '.join(get_args(Method))}")
        # Comparisons are written so that NaN fails them.
        _require(0 < self.lr < math.inf, "inner.lr", self.lr, "a finite number above 0")
        _require(0 <= self.beta1 < 1, "inner.beta1", self.beta1, "at least 0 and below 1")
        _require(0 <= self.beta2 < 1, "inner.beta2", self.beta2, "at least 0 and below 1")
        _require(0 < self.eps < math.inf, "inner.eps", self.eps, "a finite number above 0")
        _require(
            0 <= (self.weight_decay or 0) < math.inf, "inner.weight_decay", self.weight_decay, "finite and 0 or more"
        )
        _require((self.warmup_steps or 0) >= 0, "inner.warmup_steps", self.warmup_steps, "0 or more")
        _require(0 <= self.min_lr_ratio <= 1, "inner.min_lr_ratio", self.min_lr_ratio, "from 0 to 1")
        _require(0 <= self.clip < math.inf, "inner.clip", self.clip, "a finite number from 0 (off) up")


def _require(holds: bool, option: str, value: object, wanted: str) -> None:
    if not holds:
        raise BadInput(f"{option} is {value}: it must be {wanted}")


def warmup_steps(cfg: InnerConfig, total_steps: int) -> int:
    """Warmup steps of a run of `total_steps`.

    Raises:
        BadInput: `total_steps` is below 1, or the configured warmup is longer than the run.
    """
    _require(total_steps >= 1, "steps", total_steps, "at least 1")
    if cfg.warmup_steps is None:
        return min(PAPER_WARMUP_STEPS, int(MAX_WARMUP_FRACTION * total_steps))
    if cfg.warmup_steps > total_steps:
        raise BadInput(
            f"inner.warmup_steps is {cfg.warmup_steps}, more than the run's {total_steps} steps: lower it or drop it"
        )
    return cfg.warmup_steps


def weight_decay(cfg: InnerConfig, total_steps: int) -> float:
    """Weight decay of a run of `total_steps`: 1 / T unless configured."""
    return 1 / total_steps if cfg.weight_decay is None else cfg.weight_decay


def lr_at(step: int, total_steps: int, cfg: InnerConfig) -> float:
    """Learning rate of inner step `step`, counted from 0. It has no state, so replicas that resume or join late agree.

    Rises linearly (never 0) to `lr` at step `warmup_steps`, then falls as a cosine to `min_lr_ratio * lr` at the last
    step, and stays there beyond it.

    Raises:
        BadInput: as `warmup_steps`.
    """
    if step < 0:
        raise ValueError(f"step is {step}: steps count from 0")
    warmup = warmup_steps(cfg, total_steps)
    if step < warmup:
        return cfg.lr * (step + 1) / (warmup + 1)
    progress = min(1.0, (step - warmup) / max(1, total_steps - 1 - warmup))
    return cfg.lr * (cfg.min_lr_ratio + (1 - cfg.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * progress)))


def build_inner(model: nn.Module, cfg: InnerConfig, total_steps: int) -> list[Optimizer]:
    """Optimizers that hold every trainable parameter of `model` in exactly one group; frozen ones in none.

    Tensors with two or more dimensions decay, the embedding included (tied, it is the head); gains and biases do not.

    Raises:
        BadInput: nothing is trainable, Muon is missing from this torch, or the warmup is longer than the run.
    """
    lr = lr_at(0, total_steps, cfg)
    decay = weight_decay(cfg, total_steps)
    trainable = [p for p in model.parameters() if p.requires_grad]
    if not trainable:
        raise BadInput("the model has no trainable parameter: unfreeze at least one (requires_grad=True)")
    optimizers: list[Optimizer] = []
    muon_ids: set[int] = set()
    if cfg.optimizer == "muon":
        matrices = body_matrices(model)
        if matrices:
            optimizers.append(_muon(matrices, lr, decay))
        muon_ids = {id(p) for p in matrices}
    rest = [p for p in trainable if id(p) not in muon_ids]
    if rest:
        optimizers.append(_adamw(rest, cfg, lr, decay))
    return optimizers


def body_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Trainable 2-D parameters that are neither an embedding nor an output head: those that Muon is meant for."""
    outside = {
        id(module.weight)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) or (isinstance(module, nn.Linear) and name.rpartition(".")[2] in HEAD_NAMES)
    }
    return [p for p in model.parameters() if p.requires_grad and p.dim() == 2 and id(p) not in outside]


def _adamw(params: list[nn.Parameter], cfg: InnerConfig, lr: float, decay: float) -> Optimizer:
    groups = [
        {"params": [p for p in alike if (p.dim() >= 2) is decays], "weight_decay": decay if decays else 0.0}
        for alike in _by_mesh(params)
        for decays in (True, False)
    ]
    fused = all(p.device.type in _FUSED_DEVICES and p.is_floating_point() for p in params)
    return torch.optim.AdamW(
        [g for g in groups if g["params"]], lr=lr, betas=(cfg.beta1, cfg.beta2), eps=cfg.eps, fused=fused or None
    )


def _by_mesh(params: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Whole parameters and those sharded over one mesh each by themselves: one kernel does not take both. Without
    sharding, all."""
    alike: dict[tuple[str, ...] | None, list[nn.Parameter]] = {}
    for p in params:
        alike.setdefault(_mesh_of(p), []).append(p)
    return list(alike.values())


def _mesh_of(parameter: nn.Parameter) -> tuple[str, ...] | None:
    """The dimensions that a parameter is sharded over; None where it is whole."""
    return parameter.device_mesh.mesh_dim_names if hasattr(parameter, "device_mesh") else None


def _muon(params: list[nn.Parameter], lr: float, decay: float) -> Optimizer:
    if not hasattr(torch.optim, "Muon"):
        raise BadInput(f"inner.optimizer is 'muon', which torch {torch.__version__} lacks: use torch>=2.9 or adamw")
    if any(map(_mesh_of, params)):
        raise BadInput(
            "inner.optimizer is 'muon', which needs whole matrices, but the mesh shards them: use adamw, or a mesh of "
            "replica and pp only"
        )
    # match_rms_adamw (arXiv:2502.16982 section 2.2) gives Muon's updates AdamW's scale, so that one lr serves both.
    return torch.optim.Muon(params, lr=lr, weight_decay=decay, momentum=MUON_MOMENTUM, adjust_lr_fn="match_rms_adamw")


def set_lr(optimizers: list[Optimizer], lr: float) -> None:
    """Give every group of every optimizer the learning rate `lr`; Muon rescales it inside to match AdamW."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = lr


def clip_gradients(model: nn.Module, max_norm: float) -> Tensor:
    """Scale all gradients so that their global L2 norm is at most `max_norm`; 0 leaves them as they are.

    Returns the norm before, an fp32 scalar. A non-finite one is returned too: the caller decides what a bad step means.
    """
    params = [p for p in model.parameters() if p.grad is not None]
    norm = nn.utils.get_total_norm([p.grad for p in params])
    if max_norm > 0:
        nn.utils.clip_grads_with_norm_(params, max_norm, norm)
    return norm.float()
