"""The run that a law is asked about: the options that `predict`, `advise` and `next-runs` share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from diloco.cli.law_input import gather_pairs, numbers, plain_numbers
from diloco.cli.options import Common, parse
from diloco.errors import BadInput

if TYPE_CHECKING:
    from diloco.laws import Law

Q = TypeVar("Q", bound="Question")

_COUNTS = ("--params", "--replicas", "--tokens", "--budget")
"""Options that take numbers as tables write them, such as 35M."""

_OWN_OPTION = ("params", "replicas", "tokens")
_NO_AXIS = ("rule", "law", "hyperparameters")


@dataclass(frozen=True)
class Question(Common):
    """The run asked about."""

    params: float | None = None
    """Parameters of the model, all of them."""
    replicas: float = 1.0
    """M: replicas."""
    tokens: float | None = None
    """Training tokens over all replicas together. Left out: as many per parameter as the law's runs had, else 20."""
    at: tuple[str, ...] = ()
    """Other axes of the law, as in sync_every=100."""

    def further(self) -> dict[str, float]:
        """The numbers of `--at`, by the names that laws use: H=100 is sync_every. Raises BadInput for what is none."""
        from diloco.laws.arguments import MOST
        from diloco.laws.axes import TOKENS_PER_PARAM, canonical

        found = {canonical(name): value for name, value in numbers(self.at, "at", "sync_every=100").items()}
        for name, value in found.items():
            if name in _OWN_OPTION:
                raise BadInput(f"--at is {name}={value:g}, which has its own option: give --{name} {value:g}")
            if name in _NO_AXIS:
                raise BadInput(f"--at is {name}={value:g}, which is no axis of a law: give one such as sync_every=100")
            if name == TOKENS_PER_PARAM and self.tokens is not None:
                raise BadInput(f"--at is {name}={value:g} beside --tokens {self.tokens:g}: give one of them")
            if not 0 < value <= MOST:
                limits = f"above 0 and at most {MOST:g}"
                raise BadInput(f"--at is {name}={value:g}, and an axis of a law is {limits}: give such a number")
        return found

    def unused(self, law: Law) -> list[str]:
        """A sentence for each number that was given and does not change the law's answer."""
        given = self.further()
        given |= {"replicas": self.replicas} if self.replicas != 1 else {}
        return law.unused(given | ({"tokens": self.tokens} if self.tokens is not None else {}))


def ask(kind: type[Q], arguments: Sequence[str], verb: str) -> Q:
    """The question in `arguments`. Raises BadInput for one that no law has an answer to."""
    from diloco.laws.arguments import at_least_one, speaking_flags

    question = parse(kind, plain_numbers(gather_pairs(arguments, ("--at",)), _COUNTS), verb)
    with speaking_flags():
        for name in _OWN_OPTION:
            if getattr(question, name) is not None:
                at_least_one(name, getattr(question, name))
    return question
