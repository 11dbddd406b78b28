"""`diloco advise`: one question, answered by the article, the paper and a fitted law side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from diloco.cli.law_input import (
    COUNTS,
    checked_point,
    further_axes,
    gather_pairs,
    open_hyperparameters,
    open_law,
    plain_numbers,
)
from diloco.cli.options import Common, parse
from diloco.cli.show import print_json
from diloco.errors import BadInput

_SHOWN = {
    "loss": "loss",
    "interval": "95% of new runs",
    "inner_lr": "inner lr",
    "outer_lr": "outer lr",
    "batch_tokens": "batch, tokens",
    "tokens": "training tokens",
}
_COUNTS = ("batch_tokens", "tokens")


@dataclass(frozen=True)
class AdviseOptions(Common):
    """Sets side by side what the article, the paper and your own fitted law recommend for one run, says why they
    disagree, and checks the article's advice on the ratio of learning rates."""

    params: float | None = None
    """Parameters of the model, all of them."""
    replicas: float = 1.0
    """M: replicas."""
    tokens: float | None = None
    """Training tokens over all replicas together; 20 per parameter where left out."""
    law: str = ""
    """A file that `diloco fit --out` wrote: adds a third opinion."""
    hyperparameters: str = ""
    """A file that `diloco fit --hyperparameters` wrote: where the fitted law's learning rates and batch come from."""
    at: tuple[str, ...] = ()
    """Other axes of the fitted law, as in sync_every=100."""

    def __post_init__(self) -> None:
        if self.params is None:
            raise BadInput("--params is missing: give the model's parameters, as in --params 10e9")
        if self.hyperparameters and not self.law:
            raise BadInput(f"--hyperparameters is {self.hyperparameters} without a law: give --law too")
        if self.at and not self.law:
            raise BadInput(f"--at is {self.at[0]} without a law: give --law too")


def run(arguments: list[str]) -> int:
    options = parse(AdviseOptions, plain_numbers(gather_pairs(arguments, ("--at",)), COUNTS), "advise")
    from diloco.laws import advise
    from diloco.laws.arguments import speaking_flags

    with speaking_flags():
        checked_point(options.params, options.replicas, options.tokens)
        advice = advise(
            options.params,
            options.replicas,
            options.tokens,
            law=open_law(options.law) if options.law else None,
            hyperparameters=open_hyperparameters(options.hyperparameters),
            **further_axes(options.at),
        ).as_dict()
    question = {"params": options.params, "replicas": options.replicas, "tokens": options.tokens}
    print_json(question | advice) if options.json else say(advice)
    return 0


def say(advice: dict[str, Any]) -> None:
    """A column per rule, then what they disagree on and what each holds back."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    console = console if console.is_terminal else Console(width=200, highlight=False, markup=False)
    console.print(_table(advice["rules"]))
    said = {"they disagree": advice["disagreements"], "ratio of learning rates": advice["lr_ratio"]}
    for title, sentences in said.items():
        if sentences:
            print(f"\n{title}:")
            print("\n".join(f"- {sentence}" for sentence in sentences))
    print("\nwhere from, and reservations:")
    for rule, answer in advice["rules"].items():
        for sentence in (answer["law"].removeprefix(f"{rule}: "), *answer["warnings"]):
            print(f"- {rule}: {sentence}")


def _table(rules: dict[str, dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for rule in rules:
        table.add_column(rule, justify="right")
    for key, label in _SHOWN.items():
        table.add_row(label, *(_cell(said, key) for said in rules.values()))
    return table


def _cell(said: dict[str, Any], key: str) -> str:
    from diloco.watch.units import count

    if key == "interval":
        return "-" if said["loss_low"] is None else f"{said['loss_low']:.4g} to {said['loss_high']:.4g}"
    value = said[key]
    if value is None:
        return "-"
    return count(round(value)) if key in _COUNTS else f"{value:.4g}"
