"""`diloco next-runs`: which runs to make next, so that a law's answer narrows most per FLOP."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from diloco.cli.law_input import open_law
from diloco.cli.law_question import Question, ask
from diloco.cli.show import print_json, table, wide_console
from diloco.errors import BadInput

if TYPE_CHECKING:
    from diloco.laws import Law


@dataclass(frozen=True)
class NextRunsOptions(Question):
    """Plans runs that narrow a law at the size you care about, most per FLOP first, until the budget is spent. That
    target is what --params, --replicas, --tokens and --at say."""

    law: str = ""
    """A file that `diloco fit --out` wrote, or paper."""
    budget: float | None = None
    """FLOPs to spend on all of them together."""
    candidates: str = ""
    """A table of runs that can be made, with the law's axes as columns and perhaps flops; left out: the ladder's own
    rungs, the middles between them, and the target."""

    def __post_init__(self) -> None:
        for name, example in (("law", "law.json"), ("budget", "1e21")):
            if getattr(self, name) in ("", None):
                raise BadInput(f"--{name} is missing: give it, as in --{name} {example}")


def run(arguments: list[str]) -> int:
    options = ask(NextRunsOptions, arguments, "next-runs")
    from diloco.laws import next_runs
    from diloco.laws.arguments import speaking_flags

    with speaking_flags():
        law = open_law(options.law)
        target, notes = _target(options, law)
        points = _candidates(options.candidates, law) if options.candidates else None
        chosen = next_runs(law, options.budget, target, candidates=points)
    answer = {
        "law": law.id,
        "target": target,
        "budget_flops": options.budget,
        "flops": sum(item.flops for item in chosen),
        "level": law.level,
        "half_width_before_pct": chosen[0].half_width_before_pct if chosen else None,
        "half_width_after_pct": chosen[-1].half_width_after_pct if chosen else None,
        "runs": [asdict(item) for item in chosen],
        "notes": [*notes, *options.unused(law)],
    }
    print_json(answer) if options.json else _say(answer)
    return 0


def _target(options: NextRunsOptions, law: Law) -> tuple[dict[str, float], list[str]]:
    """The law's axes at the target, and where its tokens are from if nobody gave them."""
    from diloco.laws.axes import TOKENS_PER_PARAM
    from diloco.laws.budget import tokens_of

    known: dict[str, float | None] = {"replicas": options.replicas, "params": options.params, "tokens": options.tokens}
    further, notes = options.further(), []
    if options.params:
        tokens = further[TOKENS_PER_PARAM] * options.params if TOKENS_PER_PARAM in further else options.tokens
        known["tokens"], notes = tokens_of(options.params, tokens, law.runs.tokens_per_param, replicas=options.replicas)
        known[TOKENS_PER_PARAM] = known["tokens"] / options.params
    known |= further
    for axis in law.form.axes:
        if known.get(axis) is None:
            flag, value = (f"--{axis}", " 10e9") if axis in ("params", "tokens") else (f"--at {axis}", "=100")
            raise BadInput(
                f"{flag} is missing: the law is {law.form.expression}; say where it is asked, as in {flag}{value}"
            )
    return {axis: known[axis] for axis in law.form.axes}, notes


def _candidates(path: str, law: Law) -> list[dict[str, float]]:
    """The rows of a table as points of the law. Raises BadInput for a row without one of its axes."""
    from diloco.laws.axes import canonical, number
    from diloco.laws.rows import refuse_two_of_a_kind
    from diloco.laws.tables import read_table

    points = []
    records, places = read_table(path)
    refuse_two_of_a_kind(list(dict.fromkeys(name for record in records for name in record)), "take one out")
    for record, place in zip(records, places, strict=True):
        cells = {canonical(header): cell for header, cell in record.items()}
        point = {name: number(cells.get(name)) for name in (*law.form.axes, "params", "tokens", "flops")}
        for axis, value in point.items():
            given = cells.get(axis) is not None and str(cells[axis]).strip()
            if (given or axis in law.form.axes) and not 0 < (value or 0) < math.inf:
                shown = f"is '{cells[axis]}'" if given else "is missing"
                raise BadInput(f"--candidates {path} {place}: {axis} {shown}: give a number above 0")
        if not (point["params"] or point["flops"]):
            raise BadInput(f"--candidates {path} {place} has neither params nor flops: say what the run costs")
        points.append({name: value for name, value in point.items() if value is not None})
    return points


def _say(answer: Mapping[str, Any]) -> None:
    where = ", ".join(f"{axis} {value:.4g}" for axis, value in answer["target"].items())
    if answer["runs"]:
        print(
            f"at {where} the law is known to ± {answer['half_width_before_pct']:.2f}% ({answer['level']:.0%} interval)"
        )
        heads = ("run", *answer["target"], "FLOPs", "then known to")
        lines = [
            (
                str(index),
                *(f"{item['axes'][axis]:.4g}" for axis in answer["target"]),
                f"{item['flops']:.3g}",
                f"± {item['half_width_after_pct']:.2f}%",
            )
            for index, item in enumerate(answer["runs"], start=1)
        ]
        wide_console().print(table(heads, lines, text_columns=0))
        print(
            f"together {answer['flops']:.3g} of {answer['budget_flops']:.3g} FLOPs; it holds if the form is right and "
            "the noise stays at what it was"
        )
    else:
        print(f"no run within {answer['budget_flops']:.3g} FLOPs narrows the law at {where} by 1% or more")
    for note in answer["notes"]:
        print(f"note: {note}")
