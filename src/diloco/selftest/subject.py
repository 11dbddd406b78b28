"""What is tested: a model, how it gets its loss, and its inner optimizer. All three are functions of plain options, so
that another process can make the same."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from diloco.errors import BadInput

SEQUENCES, SEQ_LEN = 2, 32
"""Of a batch of random tokens."""
VOCAB = 256
LR = 1e-3


@dataclass(frozen=True)
class Choice:
    """Which model: exactly one of the three is given."""

    size: str = ""
    """A size's name."""
    model: str = ""
    """FILE.py:FACTORY."""
    hf: str = ""
    """A Hugging Face model's folder or name."""

    def __str__(self) -> str:
        return self.model or self.hf or self.size


@dataclass(frozen=True)
class Subject:
    make: Callable[[], nn.Module]
    """The same initial weights at every call."""
    loss: Callable[[nn.Module, int, int], Tensor]
    """(model, step, replica) -> scalar."""
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]


def open_subject(choice: Choice) -> Subject:
    """Raises BadInput for a model that cannot be found, made, or brought to a finite loss with a gradient."""
    if choice.model:
        subject = _from_file(choice.model)
    elif choice.hf:
        from diloco.train.hf import load_hf

        subject = Subject(lambda: load_hf(choice.hf), _token_loss, _adamw)
    else:
        from diloco.train.model import build_model
        from diloco.train.sizes import get_size

        size = get_size(choice.size)
        subject = Subject(lambda: build_model(size, VOCAB, SEQ_LEN, seed=0), _token_loss, _adamw)
    _try_once(subject, str(choice))
    return subject


def _token_loss(model: nn.Module, step: int, replica: int) -> Tensor:
    from diloco.train.loss import lm_loss

    shape = (SEQUENCES, SEQ_LEN + 1)
    tokens_BT = torch.randint(model.vocab_size, shape, generator=_generator(step, replica))
    return lm_loss(model(tokens_BT[:, :-1]), tokens_BT[:, 1:])[0]


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=LR)


def _generator(step: int, replica: int) -> torch.Generator:
    return torch.Generator().manual_seed(1_000_003 * replica + step)


def _from_file(spec: str) -> Subject:
    path, colon, factory = spec.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise BadInput(f"model is {spec!r}: give FILE.py:FACTORY, as in net.py:make_model")
    module = _load(path)
    for name in (factory, "make_batch"):
        if not callable(getattr(module, name, None)):
            raise BadInput(f"model file {path} has no function {name}: add it (`diloco selftest --help` shows how)")

    def make() -> nn.Module:
        torch.manual_seed(0)
        return getattr(module, factory)()

    def loss(model: nn.Module, step: int, replica: int) -> Tensor:
        return _as_loss(model(*module.make_batch(step, replica)))

    return Subject(make, loss, getattr(module, "make_optimizer", _adamw))


def _load(path: str) -> ModuleType:
    file = Path(path).expanduser()
    if not file.is_file():
        raise BadInput(f"model file {path} does not exist: check the path before the colon")
    spec = importlib.util.spec_from_file_location("diloco_selftest_subject", file)
    module = importlib.util.module_from_spec(spec)
    # The file may import its neighbours, as it can when it is run as a script.
    sys.path.insert(0, str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BadInput(f"model file {path} fails when it is imported ({type(error).__name__}: {error})") from error
    finally:
        sys.path.pop(0)
    return module


def _as_loss(output: object) -> Tensor:
    """A scalar as it is, a model output's `.loss`, else the mean of squares: what is tested is the sync, not the
    loss."""
    output = getattr(output, "loss", output)
    if not isinstance(output, Tensor):
        raise TypeError(f"model(*batch) gives {type(output).__name__}, neither a tensor nor something with a .loss")
    return output if output.dim() == 0 else output.float().square().mean()


def _try_once(subject: Subject, name: str) -> None:
    try:
        model = subject.make()
        torch.manual_seed(0)
        loss = subject.loss(model, 0, 0)
        loss.backward()
        subject.optimizer(model)
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(
            f"model {name} fails in one training step ({type(error).__name__}: {error}): mend it first"
        ) from error
    if not math.isfinite(loss.item()):
        raise BadInput(f"model {name} has the loss {loss.item()} on its first batch: mend it first")
