"""`diloco advise`: one question, answered by the article, the paper and a fitted law side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from diloco.cli.law_input import open_hyperparameters, open_law
from diloco.cli.law_question import Question, ask
from diloco.cli.show import print_json, table, wide_console
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
class AdviseOptions(Question):
    """Sets side by side what the article, the paper and your own fitted law recommend for one run, says why they
    disagree, and checks the article's advice on the ratio of learning rates."""

    law: str = ""
    """A file that `diloco fit --out` wrote: adds a third opinion."""
    hyperparameters: str = ""
    """A file that `diloco fit --hyperparameters` wrote: where the fitted law's learning rates and batch come from."""

    def __post_init__(self) -> None:
        if self.params is None:
            raise BadInput("--params is missing: give the model's parameters, as in --params 10e9")
        if self.hyperparameters and not self.law:
            raise BadInput(f"--hyperparameters is {self.hyperparameters} without a law: give --law too")
        if self.at and not self.law:
            raise BadInput(f"--at is {self.at[0]} without a law: give --law too")


def run(arguments: list[str]) -> int:
    options = ask(AdviseOptions, arguments, "advise")
    from diloco.laws import advise
    from diloco.laws.arguments import speaking_flags

    with speaking_flags():
        law = open_law(options.law) if options.law else None
        advice = advise(
            options.params,
            options.replicas,
            options.tokens,
            law=law,
            hyperparameters=open_hyperparameters(options.hyperparameters),
            **options.further(),
        ).as_dict()
    if law is not None:
        said = advice["rules"]["fitted"]["warnings"]
        said.extend(sentence for sentence in options.unused(law) if sentence not in said)
    question = {"params": options.params, "replicas": options.replicas, "tokens": options.tokens}
    print_json(question | advice) if options.json else say(advice)
    return 0


def say(advice: dict[str, Any]) -> None:
    """A column per rule, then what they disagree on and what each holds back."""
    rules = advice["rules"]
    lines = [(label, *(_cell(said, key) for said in rules.values())) for key, label in _SHOWN.items()]
    wide_console().print(table(("", *rules), lines))
    said = {"they disagree": advice["disagreements"], "ratio of learning rates": advice["lr_ratio"]}
    for title, sentences in said.items():
        if sentences:
            print(f"\n{title}:")
            print("\n".join(f"- {sentence}" for sentence in sentences))
    print("\nwhere from, and reservations:")
    for rule, answer in advice["rules"].items():
        source = f"law {answer['law']}" if rule == "fitted" else answer["law"].removeprefix(f"{rule}: ")
        for sentence in (source, *answer["warnings"]):
            print(f"- {rule}: {sentence}")


def _cell(said: dict[str, Any], key: str) -> str:
    from diloco.units import format_count

    if key == "interval":
        return "-" if said["loss_low"] is None else f"{said['loss_low']:.4g} to {said['loss_high']:.4g}"
    value = said[key]
    if value is None:
        return "-"
    return format_count(round(value)) if key in _COUNTS else f"{value:.4g}"
