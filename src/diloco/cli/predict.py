"""`diloco predict`: loss and hyperparameters of a run that nobody has made, by one rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from diloco.cli.law_input import ARTICLE, PAPER, open_hyperparameters, open_law
from diloco.cli.law_question import Question, ask
from diloco.cli.show import print_json
from diloco.errors import BadInput

if TYPE_CHECKING:
    from diloco.laws import Law, Prediction

_PUBLISHED = "paper:"
_SETTINGS = ("inner_lr", "outer_lr", "batch_tokens", "tokens")
_LOSS = ("loss", "loss_low", "loss_high")


@dataclass(frozen=True)
class PredictOptions(Question):
    """Says what a law promises for one run, with its interval and what it extrapolates over."""

    law: str = PAPER
    """A file that `diloco fit --out` wrote; paper, article; or a published coefficient by name, such as
    paper:table7:loss:replicas=4."""
    hyperparameters: str = ""
    """A file that `diloco fit --hyperparameters` wrote: where a fitted law's learning rates and batch come from."""
    level: float | None = None
    """Of a fitted law's intervals, as a share; that of the fit where left out."""


def run(arguments: list[str]) -> int:
    options = ask(PredictOptions, arguments, "predict")
    from diloco.laws.arguments import speaking_flags

    with speaking_flags():
        answer = predict(options)
    print_json(answer) if options.json else print(summary(answer))
    return 0


def predict(options: PredictOptions) -> dict[str, Any]:
    """The answer as one JSON-ready object; None for what the law does not say.

    Raises:
        BadInput: an unknown law, or a number that it needs and was not given.
    """
    if options.law in (PAPER, ARTICLE) or options.law.startswith(_PUBLISHED):
        _refuse_for_published(options)
        return _published(options) if options.law.startswith(_PUBLISHED) else _by_rule(options)
    law = open_law(options.law, (ARTICLE, PAPER))
    return _fitted(law if options.level is None else law.at_level(options.level), options)


def _by_rule(options: PredictOptions) -> dict[str, Any]:
    from diloco.laws import recommend

    said = recommend(options.law, _params(options), options.replicas, options.tokens).as_dict()
    level = None if said["loss_low"] is None else 0.95
    return {"params": options.params, "replicas": options.replicas, **said, "target": "loss", "level": level}


def _fitted(law: Law, options: PredictOptions) -> dict[str, Any]:
    """Of a law from a file: what it says at the point, with learning rates and batch where their laws are given."""
    from diloco.laws import recommend
    from diloco.laws.report import finite

    further = options.further()
    asked = {"params": options.params, "replicas": options.replicas, "tokens": options.tokens} | further
    if options.params is None and "params" not in law.form.axes:
        said: dict[str, Any] = dict.fromkeys((*_LOSS, *_SETTINGS)) | {"tokens": options.tokens}
        said["warnings"] = list(_answer(law, asked).warnings)
    else:
        rates = open_hyperparameters(options.hyperparameters)
        said = recommend(law, _params(options), options.replicas, options.tokens, rates, **further).as_dict()
    said["warnings"] += [sentence for sentence in options.unused(law) if sentence not in said["warnings"]]
    asked["tokens"] = said["tokens"]
    return finite({**asked, **said, **dict.fromkeys(_LOSS), **_value(law, _answer(law, asked)), "rule": "fitted"})


def _answer(law: Law, asked: Mapping[str, float | None]) -> Prediction:
    """At the axes that the law knows, or finds its own from."""
    from diloco.laws.axes import TOKENS_PER_PARAM

    known = {*law.form.axes, *(("params", "tokens") if TOKENS_PER_PARAM in law.form.axes else ())}
    return law.predict(**{axis: value for axis, value in asked.items() if axis in known and value is not None})


def _value(law: Law, answer: Prediction) -> dict[str, Any]:
    """The target's value and intervals under the target's own name, and which law said so."""
    name = law.target
    return {
        "target": name,
        name: answer.value,
        f"{name}_low": answer.low,
        f"{name}_high": answer.high,
        "curve_low": answer.curve_low,
        "curve_high": answer.curve_high,
        "form_low": answer.form_low,
        "form_high": answer.form_high,
        "forms": answer.forms,
        "level": answer.level,
        "law": answer.law,
        "expression": law.form.expression,
        "fixed": law.settings["fixed"],
        "data_hash": law.data_hash,
    }


def _published(options: PredictOptions) -> dict[str, Any]:
    from diloco.laws import published_law
    from diloco.laws.prediction import unused

    known = published_law(options.law)
    if known.replicas is not None and known.replicas != options.replicas:
        raise BadInput(
            f"--replicas is {options.replicas:g} and law {options.law} is of {known.replicas}: give "
            f"--replicas {known.replicas}, or paper"
        )
    return {
        "params": _params(options),
        "replicas": options.replicas,
        **dict.fromkeys((*_LOSS, *_SETTINGS)),
        known.quantity: known.predict(_params(options), options.replicas),
        "target": known.quantity,
        "level": None,
        "rule": "published",
        "law": known.name,
        "source": known.source,
        "warnings": ["published without an interval", *unused(_also_given(options), (), f"law {known.name}")],
    }


def _also_given(options: PredictOptions) -> dict[str, float]:
    return {} if options.tokens is None else {"tokens": options.tokens}


def _refuse_for_published(options: PredictOptions) -> None:
    for name, value in (("at", options.at), ("hyperparameters", options.hyperparameters), ("level", options.level)):
        if value not in ((), "", None):
            shown = " ".join(value) if isinstance(value, tuple) else value
            raise BadInput(f"--{name} is {shown} and law is {options.law}, which has no use for it: leave it out")


def _params(options: PredictOptions) -> float:
    if options.params is None:
        raise BadInput("--params is missing: give the model's parameters, as in --params 10e9")
    return options.params


def summary(answer: dict[str, Any]) -> str:
    """The answer for a person: the value, the settings, where from, and the reservations."""
    target = answer["target"]
    source = f"{'law ' * (answer['rule'] == 'fitted')}{answer['law']}"
    lines = [f"{target} {answer[target]:.4g}{_interval(answer, target)}, by {source}"]
    if answer.get("curve_low") is not None and answer.get("curve_high") is not None:
        lines.append(f"the law itself, which the mean of many runs would show: {_between(answer, 'curve')}")
    said = [setting(key, answer[key]) for key in _SETTINGS if answer[key] is not None and key != target]
    lines += [", ".join(said)] if said else []
    return "\n".join([*lines, *(f"note: {sentence}" for sentence in answer["warnings"])])


def setting(key: str, value: float) -> str:
    """ "inner lr 0.0003", "batch 32.8k tokens"."""
    from diloco.units import format_count

    if key == "tokens":
        return f"{format_count(value)} training tokens"
    return (
        f"batch {format_count(round(value))} tokens"
        if key == "batch_tokens"
        else f"{key.replace('_', ' ')} {value:.3g}"
    )


def _interval(answer: dict[str, Any], name: str) -> str:
    if answer.get(f"{name}_low") is None or answer.get(f"{name}_high") is None:
        return " (no interval)"
    return f" ({answer['level']:.0%} of new runs between {_between(answer, name)})"


def _between(answer: dict[str, Any], name: str) -> str:
    return f"{answer[f'{name}_low']:.4g} and {answer[f'{name}_high']:.4g}"
