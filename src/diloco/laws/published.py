"""Published laws and numbers, each with its table; and the article's rules.

Sources: arXiv:2503.09799v1 Tables 4, 5, 7 to 13 and Figure 7, copied into `data/`. `params` there are counted from the
paper's Table 3 as 12 d^2 layers + 32000 d with tied embeddings, which returns every coefficient of Table 7.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from diloco.errors import BadInput
from diloco.laws.arguments import positive
from diloco.laws.budget import TokenRatio
from diloco.laws.fit import fit_law
from diloco.laws.law import Law
from diloco.laws.rows import Rows, read_rows

SEQUENCE_TOKENS = 2048
"""Tables 9 and 10 count the batch in sequences of this many tokens; here it is always in tokens."""

PAPER_TOKEN_RATIO = TokenRatio(20.0, 20.0, 20.0)
PAPER_SETTLED_PARAMS = 335e6
"""The best outer lr no longer moves from this size on."""

ARTICLE_INNER_LR = 3e-4
ARTICLE_OUTER_LR, ARTICLE_OUTER_LR_EXPONENT = 0.0015, -0.6
ARTICLE_BATCH_TOKENS_PER_REPLICA, ARTICLE_BATCH_TOKENS_MOST = 8192, 131072
ARTICLE_LOSS = {"beta": 0.085, "gamma": 0.032, "L_inf": 1.8}
"""The article's exponents and floor; it prints no alpha."""


@dataclass(frozen=True)
class Coefficients:
    """quantity = A * params^params_exponent * replicas^replicas_exponent."""

    table: int
    quantity: str
    """loss in nats, inner_lr, or batch_tokens in tokens."""
    method: str
    replicas: int | None
    """None for data parallel and for the joint laws of Table 10."""
    A: float
    params_exponent: float
    replicas_exponent: float
    source: str

    @property
    def name(self) -> str:
        which = "joint" if self.table == 10 else "dp" if self.replicas is None else f"replicas={self.replicas}"
        return f"paper:table{self.table}:{self.quantity}:{which}"

    def predict(self, params: float, replicas: float = 1.0) -> float:
        """The quantity at a size. Raises BadInput for a number that is not above 0."""
        params, replicas = positive("params", params), positive("replicas", replicas)
        unit = SEQUENCE_TOKENS if self.quantity == "batch_tokens" else 1
        return unit * self.A * params**self.params_exponent * replicas**self.replicas_exponent


def table(name: str) -> list[dict[str, str]]:
    """The records of one of the package's tables: losses, coefficients, outer_lr, checks."""
    text = resources.files("diloco.laws").joinpath("data", f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@cache
def coefficients() -> dict[str, Coefficients]:
    """Every published coefficient by name, such as "paper:table7:loss:replicas=4"."""
    found = [
        Coefficients(
            table=int(record["table"]),
            quantity=record["quantity"],
            method=record["method"],
            replicas=int(record["replicas"]) if record["replicas"] else None,
            A=float(record["A"]),
            params_exponent=float(record["params_exponent"]),
            replicas_exponent=float(record["replicas_exponent"] or 0),
            source=record["source"],
        )
        for record in table("coefficients")
    ]
    return {item.name: item for item in found}


def published_law(name: str) -> Coefficients:
    """Published coefficients by name. Raises BadInput, listing the names, for any other."""
    if name not in coefficients():
        raise BadInput(f"published law '{name}' is not known: use one of {', '.join(coefficients())}")
    return coefficients()[name]


def paper_rows(extrapolation: bool = False, method: str = "diloco") -> Rows:
    """The paper's measured losses: Table 4 (35M to 2.4B), or Table 5 (4B and 10B)."""
    number = "Table 5" if extrapolation else "Table 4"
    chosen = [record for record in table("losses") if record["method"] == method and record["source"].endswith(number)]
    return read_rows([{key: value for key, value in record.items() if value} for record in chosen])


@cache
def paper_law(form: str = "power") -> Law:
    """`form` fitted by least squares on logs to Table 4; "power" is Table 10's loss row, with an interval."""
    law = fit_law(paper_rows(), form, loss="mse")
    return replace(law, runs=replace(law.runs, tokens_per_param=PAPER_TOKEN_RATIO))


@cache
def article_law() -> Law:
    """The article's loss law. It prints no alpha, so alpha alone is fitted here, to the paper's Table 4."""
    return fit_law(paper_rows(), "article", loss="mse", fixed=ARTICLE_LOSS, holdout=False)


def paper_outer_lr(replicas: float) -> float:
    """Figure 7's constant for the nearest replica count (in logs), the most frequent best value from 335M on."""
    best: dict[float, list[float]] = {}
    for record in table("outer_lr"):
        if float(record["params"]) >= 0.9 * PAPER_SETTLED_PARAMS:
            best.setdefault(float(record["replicas"]), []).append(float(record["outer_lr"]))
    nearest = min(best, key=lambda count: abs(math.log(count / replicas)))
    return max(best[nearest], key=best[nearest].count)


def article_outer_lr(replicas: float) -> float:
    """0.0015 N^-0.6, where the article's N is the number of replicas."""
    return ARTICLE_OUTER_LR * replicas**ARTICLE_OUTER_LR_EXPONENT


def article_batch_tokens(replicas: float) -> float:
    """min(8192 N, 131072), N replicas."""
    return min(ARTICLE_BATCH_TOKENS_PER_REPLICA * replicas, ARTICLE_BATCH_TOKENS_MOST)
