"""The answer to a question: what each method takes, what it costs, and whether the further sites are worth it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from diloco.plan.clock import clock as clock_of
from diloco.plan.clock import needed_gbit_per_s, outer_round
from diloco.plan.cost import cost_usd, days_of, goodput
from diloco.plan.ideal import Breakdown
from diloco.plan.levers import advice
from diloco.plan.loss import Loss
from diloco.plan.memory import memory
from diloco.plan.notes import doubtful, notes, without_effect
from diloco.plan.question import LABELS, Question, Settled, methods
from diloco.plan.run import Run
from diloco.plan.verdict import verdict
from diloco.units import DAY_S

TARGETS = (0.9, 0.95, 0.99)
"""Compute utilisations whose bandwidth is asked for; the middle one goes for `gbit_per_s_needed`."""

FASTEST_GBIT_PER_S = 1e5
"""A link that would have to be faster counts as none."""


@dataclass(frozen=True)
class Line:
    """What one method takes."""

    name: str
    settled: Settled
    clock: Breakdown
    cost_usd: float | None
    needed_gbit_per_s: dict[float, float]
    """By utilisation; infinity where no link between sites is enough, 0 where nothing crosses it."""
    bytes_per_day: float
    """That one site sends over the link, on average."""
    memory_bytes: float
    chip_bytes: float
    goodput: float
    loss: Loss

    @property
    def run(self) -> Run:
        return self.settled.run

    @property
    def days(self) -> float:
        """With what failures cost."""
        return days_of(self.clock.total_s, self.goodput)

    @property
    def tokens_per_s(self) -> float:
        """Between failures."""
        return self.run.tokens / self.clock.total_s

    @property
    def energy_mwh(self) -> float:
        """At the chips' rated power, without cooling and servers."""
        return self.run.cluster.power_w * self.days * 24 / 1e6

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; the keys carry their units."""
        run, clock = self.run, self.clock
        return {
            "label": LABELS[self.name],
            "step_s": clock.step_s,
            "compute_s": clock.compute_s / clock.steps,
            "communication_s": clock.communication_s / clock.steps,
            "inside_s": clock.inside_s / clock.steps,
            "between_s": clock.between_s / clock.steps,
            "codec_s": clock.codec_s / clock.steps,
            "bubble_s": clock.bubble_s / clock.steps,
            "compute_utilization": clock.utilization,
            "days": self.days,
            "days_without_failures": self.clock.total_s / DAY_S,
            "goodput": self.goodput,
            "tokens_per_s": self.tokens_per_s,
            "steps": clock.steps,
            "gbit_per_s_needed": self.needed_gbit_per_s[TARGETS[1]],
            "gbit_per_s_needed_at": {f"{target:g}": rate for target, rate in self.needed_gbit_per_s.items()},
            "bytes_per_day": self.bytes_per_day,
            "cost_usd": self.cost_usd,
            "energy_mwh": self.energy_mwh,
            "memory_bytes": self.memory_bytes,
            "chip_bytes": self.chip_bytes,
            "fits": self.settled.fits,
            "memory": self.settled.fit.sentence,
            **{
                f"loss{end}": value
                for end, value in zip(("", "_low", "_high"), asdict(self.loss).values(), strict=True)
            },
            "sites": len(run.cluster.sites),
            "chips": run.cluster.chips,
            "replicas": run.replicas,
            "data_parallel": run.data_parallel,
            "sync_every": run.sync_every,
            "codec": run.codec,
            "overlap": run.overlap_steps,
            "fragments": run.fragments,
            "batch_tokens": run.batch_tokens,
            "tensor": run.island.tensor,
            "pipeline": run.island.pipeline,
            "micro_batches": run.micro_batches,
            "spare_chips": run.failures.spare_chips(run.cluster),
        }


@dataclass(frozen=True)
class Answer:
    """Lines by method, plainest first; `chosen` is the last of them, whose numbers stand for the answer."""

    question: Question
    lines: dict[str, Line]
    verdict: str
    advice: str = ""
    """The option that would help most."""
    warnings: tuple[str, ...] = ()
    """Options that have no effect, or that hardly anybody means."""
    notes: tuple[str, ...] = ()

    @property
    def chosen(self) -> Line:
        return list(self.lines.values())[-1]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        question = self.question
        return {
            **self.chosen.as_dict(),
            "method": self.chosen.name,
            "verdict": self.verdict,
            "advice": self.advice,
            "params": question.model.params,
            "tokens": question.tokens,
            "between_gbit_per_s": question.cluster.between.gbit_per_s,
            "between_latency_s": question.cluster.between.latency_s,
            "flop_per_s": self.chosen.run.speed.flop_per_s,
            "law": question.law.name,
            "methods": {name: line.as_dict() for name, line in self.lines.items()},
            "assumptions": list(question.assumed),
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }


def answer(question: Question) -> Answer:
    """Every method's line, the verdict, and what to keep in mind."""
    lines = {name: _line(question, name, settled) for name, settled in methods(question).items()}
    last = list(lines.values())[-1]
    return Answer(
        question, lines, verdict(question, lines), advice(question, last.run),
        without_effect(question) + doubtful(question), tuple(notes(question, lines)),
    )  # fmt: skip


def _line(question: Question, name: str, settled: Settled) -> Line:
    run = settled.run
    spent, room, useful = clock_of(run), memory(run, settled.fit.options), goodput(run)
    one = outer_round(run)
    sent_bits = one.link_bits * run.fragments / run.sync_every / spent.step_s if len(run.cluster.sites) > 1 else 0.0
    needed = {target: _needed(run, target) if sent_bits else 0.0 for target in TARGETS}
    return Line(
        name=name,
        settled=settled,
        clock=spent,
        cost_usd=cost_usd(run, days_of(spent.total_s, useful)),
        needed_gbit_per_s=needed,
        bytes_per_day=sent_bits / 8 * DAY_S,
        memory_bytes=room.total_bytes,
        chip_bytes=room.chip_bytes,
        goodput=useful,
        loss=question.law.at(question.model.params, question.tokens, run.replicas, run.sync_every, run.data_parallel),
    )


def _needed(run: Run, target: float) -> float:
    rate = needed_gbit_per_s(run, target)
    return rate if rate <= FASTEST_GBIT_PER_S else math.inf
