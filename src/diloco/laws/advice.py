"""The same question answered by article, paper and a fitted law side by side, with what they disagree on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from types import NoneType
from typing import Any

from diloco.laws import published as pub
from diloco.laws.arguments import counted, of_type, positive
from diloco.laws.axes import TOKENS_PER_PARAM
from diloco.laws.budget import ONE_RATIO
from diloco.laws.hyperparameters import HyperparameterLaws, load_hyperparameters
from diloco.laws.law import Law
from diloco.laws.lawfile import load
from diloco.laws.report import finite
from diloco.laws.rules import RULES, Recommendation, recommend

_DISAGREE = {"loss": 1.01, "inner_lr": 1.25, "outer_lr": 1.25, "batch_tokens": 1.5}
"""Factor between two rules from which on it is worth a sentence: about what a tuning grid can resolve."""

_WHY = {
    "loss, article, paper": "the article's exponents come without data and let replicas lower the loss, the paper's 28 "
    "runs show replicas raising it and size counting for more",
    "loss, article, fitted": "the article's exponents come without data, the fitted law from the rows given",
    "loss, paper, fitted": "the paper's law has no floor and is of its own data and tokenizer; the fitted one is of "
    "the rows given",
    "inner_lr, article, paper": "the article keeps it constant, the paper's sweeps have it fall with size and rise "
    "with replicas",
    "outer_lr, article, paper": f"the article has it fall with replicas from {pub.ARTICLE_OUTER_LR:g}, where the "
    "anchor hardly moves; the paper's sweeps put the optimum at 0.4 to 0.8, rising with replicas",
    "batch_tokens, article, paper": "the article counts replicas only and stops at "
    f"{pub.ARTICLE_BATCH_TOKENS_MOST}, the paper has it grow with size too",
}
_WHY_ELSE = "the fitted value comes from the sweep given, on its own sizes and data"


@dataclass(frozen=True)
class Advice:
    """A recommendation per rule, a sentence per disagreement, and what the article's rule on lr ratios comes to."""

    recommendations: tuple[Recommendation, ...]
    disagreements: tuple[str, ...]
    lr_ratio: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return finite(
            {
                "rules": {item.rule: item.as_dict() for item in self.recommendations},
                "disagreements": list(self.disagreements),
                "lr_ratio": list(self.lr_ratio),
            }
        )


def advise(
    params: float,
    replicas: float = 1.0,
    tokens: float | None = None,
    *,
    law: Law | str | Path | None = None,
    hyperparameters: HyperparameterLaws | str | Path | None = None,
    **further: float,
) -> Advice:
    """Ask every rule about one run; `law` and `hyperparameters`, or the files that hold them, add the fitted one.

    Raises:
        BadInput: as `recommend`, `load_law` and `load_hyperparameters`.
    """
    params, replicas = positive("params", params), positive("replicas", replicas)
    law = load(law) if isinstance(law, (str, Path)) else law
    of_type("law", law, (Law, NoneType), "a law, or the file that holds it")
    if isinstance(hyperparameters, (str, Path)):
        hyperparameters = load_hyperparameters(hyperparameters)
    of_type("hyperparameters", hyperparameters, (HyperparameterLaws, NoneType), "what fit_hyperparameters returned")
    # Axes of the fitted law are no question to the rules; without one, they say so.
    shared = {name: value for name, value in further.items() if law is None or name == TOKENS_PER_PARAM}
    asked = [*((rule, shared) for rule in RULES), *([(law, further)] if law is not None else [])]
    found = tuple(recommend(rule, params, replicas, tokens, hyperparameters, **also) for rule, also in asked)
    pairs = [(quantity, a, b) for quantity in _DISAGREE for a, b in combinations(found, 2)]
    sentences = [sentence for quantity, a, b in pairs if (sentence := _disagreement(quantity, a, b))]
    return Advice(found, tuple(sentences), tuple(_lr_ratio(found, replicas)))


def _disagreement(quantity: str, a: Recommendation, b: Recommendation) -> str:
    first, second = getattr(a, quantity), getattr(b, quantity)
    if not (math.isfinite(first) and math.isfinite(second)):
        return ""
    factor = max(first / second, second / first)
    if factor < _DISAGREE[quantity]:
        return ""
    apart = f"{100 * (factor - 1):.1f}% apart" if factor < 2 else f"{factor:.3g} times apart"
    why = _WHY.get(f"{quantity}, {a.rule}, {b.rule}", _WHY_ELSE)
    return f"{quantity}: {a.rule} {first:.4g}, {b.rule} {second:.4g} ({apart}): {why}{_unlike(a, b)}"


def _unlike(a: Recommendation, b: Recommendation) -> str:
    """Each rule is asked at the tokens that its own runs had, as only there does it hold: which part of a difference is
    theirs, no rule can say."""
    if abs(math.log(a.tokens / b.tokens)) <= ONE_RATIO:
        return ""
    each = " and ".join(f"{item.rule} at {item.tokens:.4g}" for item in (a, b))
    return f"; {each} tokens, which is part of the difference"


def _lr_ratio(found: tuple[Recommendation, ...], replicas: float) -> list[str]:
    """The article says to check inner lr over outer lr when a run diverges, and to lower the outer lr by 20%."""
    ratios = {
        item.rule: item.inner_lr / item.outer_lr for item in found if math.isfinite(item.inner_lr / item.outer_lr)
    }
    one, sixteen = (pub.ARTICLE_INNER_LR / pub.article_outer_lr(count) for count in (1, 16))
    listed = ", ".join(f"{rule} {ratio:.3g}" for rule, ratio in ratios.items())
    sentences = [
        f"inner lr over outer lr at {counted(replicas, 'replica')}: {listed}",
        f"the article's own rules let that ratio grow from {one:.2g} at 1 replica to {sixteen:.2g} at 16, so no one "
        f"ratio can be the sign of a healthy run that its advice on divergence takes it for",
    ]
    if "paper" in ratios:
        sentences.append(
            f"lowering the outer lr by 20% moves the article's ratio to {ratios['article'] / 0.8:.3g}, away from the "
            f"paper's {ratios['paper']:.2g}, at which the paper's runs were stable"
        )
    return sentences
