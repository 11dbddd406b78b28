"""What a training run is: one frozen dataclass, the same names as command-line flags, as TOML keys and in Python."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from diloco.errors import BadInput
from diloco.outer import optimizers, rates
from diloco.train.checkpoint_options import CheckpointOptions
from diloco.train.data.config import DataConfig
from diloco.train.inner import InnerConfig
from diloco.train.parallel_options import ParallelOptions
from diloco.train.sizes import get_size
from diloco.train.wire_options import WireOptions

Method = Literal["diloco", "dp", "local-sgd"]
OuterName = Literal["nesterov", "heavyball", "sgd", "adam", "average"]
TOKENS_PER_PARAMETER = 20
"""The budget where none is given: D = 20 N (arXiv 2503.09799, section 2)."""


@dataclass(frozen=True)
class OuterConfig:
    """The outer optimizer. The defaults were found at 100k parameters; docs/tuning.md has the range they hold in."""

    optimizer: OuterName = "nesterov"
    """nesterov, heavyball (lr 1 is the article's `mean + momentum`), sgd, adam or average."""
    lr: float = 0.8
    """Outer learning rate; 1 takes the whole step to the replicas' mean. Fixed at 1 for average."""
    momentum: float = 0.6
    """Outer momentum of nesterov and heavyball."""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """How the outer lr changes over the run's rounds."""
    floor: float = 0.05
    """Where a cosine or linear schedule ends, as a fraction of lr."""
    clip: float | None = None
    """Largest norm of an outer update; longer ones are scaled down to it. None: no bound."""

    def __post_init__(self) -> None:
        _require(
            self.optimizer in get_args(OuterName),
            "outer.optimizer",
            self.optimizer,
            f"one of {', '.join(get_args(OuterName))}",
        )
        _require(
            self.schedule in ("constant", "cosine", "linear"),
            "outer.schedule",
            self.schedule,
            "constant, cosine or linear",
        )
        _require(math.isfinite(self.lr) and self.lr >= 0, "outer.lr", self.lr, "a finite number of 0 or more")
        _require(0 <= self.momentum < 1, "outer.momentum", self.momentum, "from 0 up to, but not including, 1")
        _require(0 <= self.floor <= 1, "outer.floor", self.floor, "from 0 to 1")
        _require(
            self.clip is None or (math.isfinite(self.clip) and self.clip > 0),
            "outer.clip",
            self.clip,
            "a positive number or left out",
        )

    def build(self, rounds: int) -> optimizers.OuterOptimizer:
        """The outer optimizer for a run of so many rounds."""
        lr: float | rates.Rate = self.lr
        if self.schedule != "constant":
            lr = {"cosine": rates.Cosine, "linear": rates.Linear}[self.schedule](self.lr, rounds, self.floor)
        match self.optimizer:
            case "nesterov":
                return optimizers.Nesterov(lr, self.momentum, self.clip)
            case "heavyball":
                return optimizers.HeavyBall(lr, self.momentum, self.clip)
            case "sgd":
                return optimizers.SGD(lr, self.clip)
            case "adam":
                return optimizers.Adam(lr, clip=self.clip)
            case "average":
                return optimizers.Average()


@dataclass(frozen=True)
class TrainConfig(ParallelOptions, CheckpointOptions, WireOptions):
    """One run of `diloco train`."""

    method: Method = "diloco"
    """diloco; dp: synchronous data parallel, the baseline; local-sgd: parameters averaged every sync_every steps, no
    outer optimizer."""
    size: str = "100k"
    """Model size by name: 30k 100k 300k 1m 3m for a CPU, 35m to 10b as in the scaling-law paper, 125m to 100b as in the
    article."""
    hf: str = ""
    """A Hugging Face causal language model instead of a size: a local folder or a hub name (extra [hf])."""
    batch_tokens: int = 512
    """B: tokens per inner step over all replicas together."""
    tokens: int = 0
    """D: training tokens over all replicas; 0 takes 20 per parameter. Rounded down to whole steps."""
    steps: int = 0
    """Inner steps; 0 takes tokens / batch_tokens."""
    seed: int = 0
    """Seed of weights and data order."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16 runs the forward pass under autocast; weights, anchor and optimizer stay fp32."""
    z_loss: float = 1e-4
    """Weight of the squared log-partition, which keeps logits from drifting (arXiv 2501.18512)."""
    eval_every: int = 0
    """Inner steps between two held-out evaluations; 0 takes a twentieth of the run, -1 only the end."""
    eval_sequences: int = 256
    """Held-out sequences per evaluation, always the same ones."""
    stop_at: int = 0
    """Stop after this inner step, save, and leave the run to be resumed; 0 runs to the end."""
    device: str = "auto"
    """auto takes CUDA where there is one, else the CPU."""
    anchor_device: str = ""
    """Where anchor and outer momentum live; `cpu` frees accelerator memory. Empty: with the model."""
    threads: int = 1
    """CPU threads of torch in each process. With 1, sums have one order, so one process and many give the same bits; 0
    leaves torch's own choice, divided among the ranks of this machine."""
    runs: str = "runs"
    """Folder that run folders are made in."""
    name: str = ""
    """Name of the run folder inside `runs`; empty makes one from method, size, replicas, sync_every and seed."""
    resume: bool = False
    """Go on from the run folder's last whole checkpoint."""
    inner: InnerConfig = field(default_factory=InnerConfig)
    """Inner optimizer."""
    outer: OuterConfig = field(default_factory=OuterConfig)
    """Outer optimizer."""
    data: DataConfig = field(default_factory=lambda: DataConfig(seq_len=64))
    """What to train on."""

    def __post_init__(self) -> None:
        _require(self.method in get_args(Method), "method", self.method, f"one of {', '.join(get_args(Method))}")
        _require(self.precision in ("fp32", "bf16"), "precision", self.precision, "fp32 or bf16")
        for name, least in _LEAST.items():
            _require(getattr(self, name) >= least, name, getattr(self, name), f"{least} or more")
        _require(math.isfinite(self.z_loss) and self.z_loss >= 0, "z_loss", self.z_loss, "a finite number of 0 or more")
        _require(self.seed < 2**63, "seed", self.seed, "less than 2**63")
        _require(bool(self.runs), "runs", repr(self.runs), "a folder, . for this one")
        self.check_wire()
        self.check_checkpoints()
        self.check_parallel(self.replicas)
        plain = self.name == Path(self.name).name and self.name.isprintable() and len(self.name.encode()) <= 200
        _require(plain and self.name not in (".", ".."), "name", repr(self.name), "one folder's name, without a slash")
        if not self.hf:
            get_size(self.size)
        if self.sequences == 0 or self.batch_tokens % (self.data.seq_len * self.replicas):
            unit = self.data.seq_len * self.replicas
            nearest = max(round(self.batch_tokens / unit), 1) * unit
            raise BadInput(
                f"batch_tokens is {self.batch_tokens}, which {self.replicas} replicas cannot share in sequences of "
                f"{self.data.seq_len} tokens: the nearest that works is {nearest}"
            )

    @property
    def sequences(self) -> int:
        """Sequences per inner step over all replicas."""
        return self.batch_tokens // self.data.seq_len

    @property
    def run_name(self) -> str:
        if self.name:
            return self.name
        model = self.hf.rstrip("/").rpartition("/")[2] if self.hf else self.size.lower()
        sync = "" if self.method == "dp" else f"-h{self.sync_every}"
        return f"{self.method}-{model}-m{self.replicas}{sync}-seed{self.seed}"

    def total_steps(self, params: int) -> int:
        """Inner steps of the whole run. Raises BadInput where the budget is less than one step."""
        steps = self.steps or (self.tokens or TOKENS_PER_PARAMETER * params) // self.batch_tokens
        if steps < 1:
            raise BadInput(
                f"tokens is {self.tokens}, less than one step of batch_tokens={self.batch_tokens}: give more tokens or "
                "a smaller batch"
            )
        return steps

    def ignored(self) -> list[str]:
        """Settings that were changed from their default but have no effect in this run, each as a sentence."""
        found, outer, default = [], self.outer, OuterConfig()
        if self.method != "diloco" and outer != default:
            found.append(f"outer.* has no effect with method {self.method}")
        if self.method == "diloco":
            found += [
                f"outer.{name} has no effect with outer.optimizer {outer.optimizer}"
                for name in _WITHOUT_EFFECT.get(outer.optimizer, ())
                if getattr(outer, name) != getattr(default, name)
            ]
            if outer.schedule == "constant" and outer.floor != default.floor:
                found.append("outer.floor has no effect with outer.schedule constant")
        found += self.ignored_by_checkpoints() + self.ignored_on_the_wire(self.method) + self.ignored_in_parallel()
        if self.method == "dp" and self.anchor_device:
            found.append("anchor_device has no effect with method dp")
        if self.hf and self.size != TrainConfig().size:
            found.append("size has no effect with hf")
        if self.steps and self.tokens:
            found.append("tokens has no effect where steps is given")
        return found


_WITHOUT_EFFECT = {
    "sgd": ("momentum",),
    "adam": ("momentum",),
    "average": ("lr", "momentum", "schedule", "clip"),
}

_LEAST = {
    "replicas": 1, "sync_every": 1, "sites": 1, "site_every": 0, "batch_tokens": 1,
    "tokens": 0, "steps": 0, "seed": 0, "eval_every": -1,
    "eval_sequences": 1, "stop_at": 0, "threads": 0,
}  # fmt: skip


def _require(holds: bool, option: str, value: object, wanted: str) -> None:
    if not holds:
        raise BadInput(f"{option} is {value}: give {wanted}")


# -- to and from plain data


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """Nested plain data, as JSON and TOML can hold it."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def from_dict(values: dict[str, Any], base: TrainConfig | None = None) -> TrainConfig:
    """`base` (the defaults, if None) with the given values put in. Raises BadInput for an unknown key or a value of the
    wrong type."""
    return _replace(base if base is not None else TrainConfig(), values, "")


def config_hash(config: TrainConfig) -> str:
    """Short hash of the resolved configuration: equal exactly when all settings are."""
    return hashlib.sha256(json.dumps(to_dict(config), sort_keys=True).encode()).hexdigest()[:16]


def _replace(base: Any, values: dict[str, Any], prefix: str) -> Any:
    hints = typing.get_type_hints(type(base))
    changes = {}
    for key, value in values.items():
        if key not in hints:
            close = difflib.get_close_matches(key, hints, n=1)
            raise BadInput(
                f"unknown setting {prefix}{key}: "
                + (f"did you mean {prefix}{close[0]}?" if close else f"known are {', '.join(hints)}")
            )
        current = getattr(base, key)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, dict):
                raise BadInput(f"{prefix}{key} is {value!r}: it is a table of settings")
            changes[key] = _replace(current, value, f"{prefix}{key}.")
        else:
            changes[key] = _coerce(value, hints[key], f"{prefix}{key}")
    return dataclasses.replace(base, **changes)


def _coerce(value: Any, hint: Any, name: str) -> Any:
    """The value as the field's type: whole numbers serve as floats, lists as tuples, nothing else is converted."""
    origin, arguments = typing.get_origin(hint), get_args(hint)
    if origin is Literal:
        return value
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _coerce(value, arguments[0], name)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_coerce(v, arguments[0], name) for v in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if origin is None and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise BadInput(f"{name} is {value!r}: give a value of type {getattr(hint, '__name__', hint)}")
