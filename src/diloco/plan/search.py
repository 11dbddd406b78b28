"""Which configuration to take: the best loss by a deadline or for a budget, the cheapest way to a loss, and the front
of those that nothing beats in loss, days and dollars at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diloco.errors import BadInput
from diloco.plan.candidates import candidates
from diloco.plan.cost import usd_per_h
from diloco.plan.question import Question
from diloco.plan.run import Run
from diloco.units import DAY_S, HOUR_S, format_days, format_number, format_tokens, format_usd

ALIKE = 0.01
"""Relative difference in days or dollars under which the plainer of two choices is taken."""

SAME_LOSS = 5e-4
MOST_TOKENS_PER_PARAM = 1e4

CLOUD_EACH = 25
"""Configurations shown of each number of sites and replicas."""


@dataclass(frozen=True)
class Choice:
    """One configuration and what it comes to."""

    sites: int
    chips: int
    replicas: int
    sync_every: int
    codec: str
    overlap: int
    fragments: int
    batch_tokens: float
    tensor: int
    pipeline: int
    data_parallel: bool
    tokens: float
    step_s: float
    """Between failures."""
    goodput: float
    days: float
    """With what failures cost."""
    cost_usd: float | None
    loss: float

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Found:
    """The best choice, or None where no goal was given, and the front by days."""

    goal: str
    best: Choice | None
    front: tuple[Choice, ...]
    tried: int
    cloud: tuple[Choice, ...] = ()
    """Some of what was tried, for a picture."""
    length: str = ""
    """How many tokens the runs have, and why."""

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "goal": self.goal,
            "best": self.best.as_dict() if self.best else None,
            "front": [choice.as_dict() for choice in self.front],
            "tried": self.tried,
            "length": self.length,
            "cloud": [
                {"days": c.days, "loss": c.loss, "cost_usd": c.cost_usd, "sites": c.sites, "replicas": c.replicas}
                for c in self.cloud
            ],
        }


@dataclass(frozen=True)
class Table:
    """Every configuration tried, plainest first among equals: columns (n,)."""

    runs: list[Run]
    step_s: NDArray
    """Between failures."""
    goodput: NDArray
    tokens: NDArray
    days: NDArray
    cost_usd: NDArray
    """NaN where a chip has no price."""
    loss: NDArray

    def choice(self, index: int) -> Choice:
        run, cost = self.runs[index], float(self.cost_usd[index])
        return Choice(
            len(run.cluster.sites), run.cluster.chips, run.replicas, run.sync_every, run.codec, run.overlap_steps,
            run.fragments, run.batch_tokens, run.island.tensor, run.island.pipeline, run.data_parallel,
            float(self.tokens[index]), float(self.step_s[index]), float(self.goodput[index]), float(self.days[index]),
            cost if math.isfinite(cost) else None, float(self.loss[index]),
        )  # fmt: skip


def search(question: Question) -> Found:
    """What the question fixed stays; the rest is varied.

    Under a law of tokens, and with no --tokens given, a run trains for as long as deadline and budget let it, or until
    the loss is reached; else for the question's tokens.

    Raises:
        BadInput: nothing that was tried keeps the deadline, the budget or the loss, with the nearest that would.
    """
    table = tabulate(question)
    allowed = _allowed(question, table)
    goal, order = _goal(question, table)
    best = table.choice(_first(allowed, order)) if goal else None
    front = tuple(table.choice(i) for i in front_of(table))
    cloud = tuple(table.choice(i) for i in cloud_of(table))
    return Found(goal, best, front, len(table.runs), cloud, _length(question) if goal else "")


def tabulate(question: Question) -> Table:
    """The clock of every configuration, and its loss."""
    timed = list(candidates(question))
    runs = [run for run, _, _ in timed]
    step_s, goodput = (np.array([row[column] for row in timed]) for column in (1, 2))
    batch = np.array([run.batch_tokens for run in runs])
    usd_per_s = np.array([_usd_per_h(run) for run in runs]) / HOUR_S
    tokens = _tokens(question, runs, batch / step_s * goodput, usd_per_s)
    seconds = tokens / batch * step_s / goodput
    return Table(runs, step_s, goodput, tokens, seconds / DAY_S, seconds * usd_per_s, _losses(question, runs, tokens))


def front_of(table: Table) -> list[int]:
    """Rows that none beats in loss, days and dollars at once, by days; of those alike, the plainest."""
    columns = np.round(table.loss / SAME_LOSS), _steps_of(table.days), _steps_of(_money(table))
    return sorted(pareto(*columns, alike=1.0), key=lambda i: (table.days[i], i))


def pareto(*columns: NDArray, alike: float = 0.0) -> list[int]:
    """Indices of the rows to which no row kept before is better, or worse by at most `alike`, in every column; rows are
    taken by the columns in turn, and of equal ones the first."""
    rows = np.stack(columns, axis=1)
    kept: list[int] = []
    for index in np.lexsort([np.arange(len(rows)), *rows.T[::-1]]):
        if not np.any(np.all(rows[kept] <= rows[index] + alike, axis=1)):
            kept.append(int(index))
    return kept


def cloud_of(table: Table) -> list[int]:
    """Rows that stand for all: of each number of sites and replicas some, evenly by days."""
    groups: dict[tuple[int, int, bool], list[int]] = {}
    for index, run in enumerate(table.runs):
        groups.setdefault((len(run.cluster.sites), run.replicas, run.data_parallel), []).append(index)
    shown = []
    for group in groups.values():
        ordered = sorted(group, key=lambda i: table.days[i])
        places = np.unique(np.round(np.linspace(0, len(ordered) - 1, CLOUD_EACH)).astype(int))
        shown += [ordered[place] for place in places]
    return shown


def _usd_per_h(run: Run) -> float:
    price = usd_per_h(run)
    return math.nan if price is None else price


def _free_tokens(question: Question) -> bool:
    limited = question.deadline_s or question.budget_usd or question.target_loss
    return bool(limited) and question.law.follows_tokens and "tokens" not in question.given


def _length(question: Question) -> str:
    if _free_tokens(question):
        until = "the loss takes" if question.target_loss else "the limits let it"
        return f"no --tokens was given, so each trains for as long as {until}"
    why = "as given" if "tokens" in question.given else f"as law {question.law.name} does not know their effect"
    return f"each trains on {format_tokens(question.tokens)}, {why}"


def _tokens(question: Question, runs: list[Run], tokens_per_s: NDArray, usd_per_s: NDArray) -> NDArray:
    if not _free_tokens(question):
        return np.full(len(runs), question.tokens)
    if question.target_loss is not None:
        return _tokens_to(question, runs)
    longest = np.full(len(runs), question.deadline_s or math.inf)
    if question.budget_usd:
        longest = np.fmin(longest, question.budget_usd / usd_per_s)
    return np.minimum(tokens_per_s * longest, MOST_TOKENS_PER_PARAM * question.model.params)


def _tokens_to(question: Question, runs: list[Run]) -> NDArray:
    """Tokens with which each run reaches the target, by halving in the logarithm; infinity where none does."""
    low = np.full(len(runs), float(question.model.params) / MOST_TOKENS_PER_PARAM)
    high = np.full(len(runs), float(question.model.params) * MOST_TOKENS_PER_PARAM)
    reached = _losses(question, runs, high) <= question.target_loss
    for _ in range(50):
        middle = np.sqrt(low * high)
        enough = _losses(question, runs, middle) <= question.target_loss
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(reached, high, np.inf)


def _losses(question: Question, runs: list[Run], tokens: NDArray) -> NDArray:
    plain = np.array([run.data_parallel for run in runs])
    replicas = np.where(plain, 1, [run.replicas for run in runs])
    sync_every = np.where(plain, 1, [run.sync_every for run in runs])
    finite = np.where(np.isfinite(tokens), tokens, question.tokens)
    loss = question.law.curve(question.model.params, finite, replicas, sync_every)[0]
    return np.where(plain, question.law.data_parallel_factor(question.model.params), 1.0) * loss


def _goal(question: Question, table: Table) -> tuple[str, tuple[NDArray, ...]]:
    """What is looked for, in words, and the columns to sort by, rounded so that what is alike ties."""
    loss, days = np.round(table.loss / SAME_LOSS), _steps_of(table.days)
    cost = _steps_of(_money(table))
    limits = [f"in {format_days(question.deadline_s / DAY_S)}"] if question.deadline_s else []
    limits += [f"for {format_usd(question.budget_usd)}"] if question.budget_usd else []
    if question.target_loss is not None:
        return " ".join([f"the cheapest way to a loss of {question.target_loss:g}", *limits]), (cost, days, loss)
    return (f"the best loss {' and '.join(limits)}" if limits else ""), (loss, cost, days)


def _allowed(question: Question, table: Table) -> NDArray:
    days = (question.deadline_s or math.inf) / DAY_S
    usd, loss = question.budget_usd or math.inf, question.target_loss or math.inf
    if question.budget_usd and not np.any(np.isfinite(table.cost_usd)):
        raise BadInput(f"--budget-usd is {format_number(usd)} and the chips have no price: give --price, as $2.5")
    slack = 1 + 1e-9
    cheap = np.nan_to_num(table.cost_usd, nan=0.0) <= usd * slack
    quick, good = table.days <= days * slack, (table.loss <= loss * slack) & np.isfinite(table.tokens)
    if np.any(cheap & quick & good):
        return cheap & quick & good
    tried = f"none of the {len(table.runs):,} configurations tried"
    if not np.any(good):
        raise BadInput(
            f"--target-loss is {loss:g}, which {tried} reaches: give {_up(table.loss.min(), 5):g}, or a larger model"
        )
    if not np.any(good & quick):
        fastest = float(table.days[good].min())
        near = format_number(_up(fastest)).replace(",", "")
        raise BadInput(f"--deadline is {format_days(days)}, which {tried} keeps: give {near}d, or more chips")
    affordable = float(table.cost_usd[good & quick].min())
    other = "a later --deadline" if question.deadline_s else "fewer --tokens"
    near = format_number(_up(affordable))
    raise BadInput(f"--budget-usd is {format_number(usd)}, which {tried} keeps: give {near}, or {other}")


def _first(allowed: NDArray, order: tuple[NDArray, ...]) -> int:
    """The best by the columns in turn; of those alike the plainest, which comes first."""
    candidates = np.flatnonzero(allowed)
    keys = [column[candidates] for column in order]
    return int(candidates[np.lexsort([candidates, *keys[::-1]])[0]])


def _money(table: Table) -> NDArray:
    """Dollars, or days where a chip has no price."""
    return np.where(np.isnan(table.cost_usd), table.days, table.cost_usd)


def _steps_of(values: NDArray) -> NDArray:
    with np.errstate(divide="ignore"):
        return np.round(np.log(values) / ALIKE)


def _up(value: float, figures: int = 3) -> float:
    """Rounded up."""
    digits = figures - 1 - math.floor(math.log10(value))
    return math.ceil(value * 10**digits) / 10**digits
