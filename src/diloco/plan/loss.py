"""What a law from `diloco.laws` says about the loss of a planned run, for one run or for thousands at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from diloco.errors import BadInput

if TYPE_CHECKING:
    from diloco.laws import Law

PAPER, ARTICLE = "paper", "article"
RULE_SYNC_EVERY = {PAPER: 30, ARTICLE: 100}
"""H that a rule's runs had: the paper's law was measured at 30, the article starts at 100."""

DATA_PARALLEL_LAW, ONE_REPLICA_LAW = "paper:table7:loss:dp", "paper:table7:loss:replicas=1"
LEVEL = 0.95

MEASURED = (
    "measured at 1M parameters and H = 50 (studies/wire): e3m0 +0.3% loss, overlap 5 with mixing 0 and e3m0 +0.4%, "
    "both within 1% of plain DiLoCo; the same with mixing 0.5 +1.7%, top-k at 1% +25%"
)


@dataclass(frozen=True)
class Loss:
    """At the end of a run, with the interval of a new run; NaN where the law has none."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class LossLaw:
    """A rule by name, or a fitted law."""

    name: str
    law: Law | None = None

    @property
    def axes(self) -> frozenset[str]:
        """What the loss depends on besides size."""
        if self.law is None:
            return frozenset({"replicas"})
        found = set(self.law.form.axes) - {"params"}
        return frozenset({"tokens"} | found - {"tokens_per_param"} if "tokens_per_param" in found else found)

    @property
    def follows_tokens(self) -> bool:
        return "tokens" in self.axes

    @property
    def sync_every(self) -> int:
        """Where to start: that of the rule's own runs."""
        return RULE_SYNC_EVERY.get(self.name, RULE_SYNC_EVERY[PAPER])

    def tokens(self, params: float, replicas: int) -> tuple[float, str]:
        """Of a run where nobody gives them, and a sentence on where they are from: the law's runs, if they say."""
        from diloco.laws.budget import tokens_of
        from diloco.laws.published import PAPER_TOKEN_RATIO

        if self.law is not None:
            found, (said,) = tokens_of(params, None, self.law.runs.tokens_per_param, replicas=replicas)
        elif self.name == PAPER:
            found, (said,) = tokens_of(params, None, PAPER_TOKEN_RATIO, "the paper's runs")
        else:
            found, (said,) = tokens_of(params, None, None, f"the {self.name}'s rules")
        return found, said

    def at(self, params: float, tokens: float, replicas: int, sync_every: int, data_parallel: bool = False) -> Loss:
        """Of one run. Data parallelism is one replica that syncs every step.

        Raises:
            BadInput: the law has an axis that a plan does not know.
        """
        if not data_parallel:
            return Loss(*map(float, self.curve(params, tokens, replicas, sync_every)))
        factor = self.data_parallel_factor(params)
        return Loss(*(factor * float(part) for part in self.curve(params, tokens, 1, 1)))

    def data_parallel_factor(self, params: float) -> float:
        """Loss of data parallelism over that of DiLoCo with one replica: Table 7's two laws, under the paper's law; 1
        under others, which do not tell them apart."""
        if self.name != PAPER:
            return 1.0
        from diloco.laws import published_law

        own, one_replica = (published_law(name).predict(params, 1.0) for name in (DATA_PARALLEL_LAW, ONE_REPLICA_LAW))
        return own / one_replica

    def curve(
        self, params: float, tokens: ArrayLike, replicas: ArrayLike, sync_every: ArrayLike
    ) -> tuple[NDArray, NDArray, NDArray]:
        """Loss and its interval, each (n,), over broadcast columns."""
        if self.law is None:
            return self._by_rule(params, np.asarray(replicas, dtype=float))
        columns = {"params": params, "tokens": tokens, "replicas": replicas, "sync_every": sync_every}
        shape = np.broadcast_shapes(*(np.shape(column) for column in columns.values()))
        if missing := set(self.law.form.axes) - {*columns, "tokens_per_param"}:
            raise BadInput(
                f"--law is {self.name}, which needs {', '.join(sorted(missing))}: a plan knows params, tokens, "
                "replicas and sync_every; give a law of these"
            )
        curve = self.law.curve(columns)
        return tuple(np.broadcast_to(part, shape) for part in (curve.value, curve.new_low, curve.new_high))

    def batch_tokens(self, params: float, replicas: int) -> float:
        """The best batch over all replicas; the paper's where the law says nothing about it."""
        from diloco.laws import recommend

        rule = self.name if self.law is None else PAPER
        return recommend(rule, params, replicas).batch_tokens

    def reservations(self, params: float, replicas: int, tokens: float) -> list[str]:
        """Where the law is asked beyond its runs, a sentence each."""
        from diloco.laws import recommend

        return list(recommend(self.law or self.name, params, replicas, tokens, **self._start()).warnings)

    def silence(self) -> str:
        """What the law does not know; empty for a law of H (codecs no law has)."""
        unknown = "H, codec and overlap" if "sync_every" not in self.axes else "codec and overlap"
        return f"law {self.name} has no {unknown}: the loss is taken not to depend on them ({MEASURED})"

    def _start(self) -> dict[str, float]:
        return {"sync_every": float(self.sync_every)} if "sync_every" in self.axes else {}

    def _by_rule(self, params: float, replicas: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        from diloco.laws import recommend

        counts, index = np.unique(replicas, return_inverse=True)
        said = [recommend(self.name, params, float(count)) for count in counts]
        parts = np.array([(one.loss, one.loss_low, one.loss_high) for one in said])[index.ravel()]
        return tuple(part.reshape(replicas.shape) for part in parts.T)


def open_law(name: str) -> LossLaw:
    """paper, article, or a file that `diloco fit --out` wrote. Raises BadInput for anything else."""
    if name in (PAPER, ARTICLE):
        return LossLaw(name)
    if not Path(name).is_file():
        raise BadInput(
            f"--law is {name}, which is no file: give one that `diloco fit --out` wrote, or {PAPER}, or {ARTICLE}"
        )
    from diloco.laws import load_law

    law = load_law(name)
    if law.target != "loss":
        raise BadInput(f"--law is {name}, a law of {law.target}: give one of loss")
    if "params" not in law.form.axes:
        raise BadInput(f"--law is {name}, {law.form.expression}, which does not know the size: give one of params")
    return LossLaw(name, law)
