"""The planner's answers as text for a terminal."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from diloco.plan.answer import TARGETS, Answer, Line
from diloco.plan.question import LABELS
from diloco.plan.units import (
    format_bandwidth,
    format_bytes,
    format_count,
    format_days,
    format_duration,
    format_loss,
    format_needed,
    format_share,
    format_things,
    format_usd,
)

if TYPE_CHECKING:
    from diloco.plan.article import Article
    from diloco.plan.question import Question
    from diloco.plan.search import Choice, Found

WIDTH = 110
_NONE = "-"


def answer_text(answer: Answer) -> str:
    """The question, the verdict, a column per method, and what it all rests on."""
    parts = [
        question_line(answer.question), "", *textwrap.wrap(answer.verdict, WIDTH), "", _table(answer),
        *_bullets("assumptions", answer.question.assumed), *_bullets("notes", answer.notes),
    ]  # fmt: skip
    return "\n".join(parts)


def question_line(question: Question) -> str:
    """ "7B parameters, 140B tokens; 2 sites of 64 h100, 1 Gbit/s and 20 ms between them"."""
    kinds: dict[str, int] = {}
    for site in question.cluster.sites:
        kind = f"{site.chips:,} {site.chip.name}"
        kinds[kind] = kinds.get(kind, 0) + 1
    sites = " and ".join(f"{n} site{'s' * (n > 1)} of {kind}" for kind, n in kinds.items())
    between = ""
    if len(question.cluster.sites) > 1:
        link = question.cluster.between
        delay = f" and {format_duration(link.latency_s)}" if link.latency_s else ""
        between = f", {format_bandwidth(link.gbit_per_s)}{delay} between them"
    size = f"{format_count(question.model.params)} parameters, {format_count(question.tokens)} tokens"
    return f"{size}; {sites}{between}"


def method_words(line: Line) -> str:
    """What tells a method's run from the others."""
    run = line.run
    if run.data_parallel:
        return format_things(run.cluster.chips, "chip")
    words = [f"M={run.replicas}", f"H={run.sync_every}", run.codec]
    words += [f"tau={run.overlap_steps}"] if run.overlap_steps else []
    return " ".join([*words, *([f"P={run.fragments}"] if run.fragments > 1 else [])])


def rows_of(line: Line, law: str) -> dict[str, str]:
    """Every figure of a method by its label."""
    clock, split = line.clock, line.run.island
    need = line.needed_gbit_per_s
    return {
        "time": format_days(line.days),
        "cost": _usd(line.cost_usd),
        f"loss ({law})": _loss(line),
        "compute utilisation": format_share(clock.utilization),
        "a step": format_duration(clock.step_s),
        "  computing": format_duration(clock.compute_s / clock.steps),
        "  waiting for the link": _seconds(clock.between_s / clock.steps),
        "  waiting inside a site": _seconds((clock.inside_s + clock.codec_s) / clock.steps),
        "  pipeline bubble": _seconds(clock.bubble_s / clock.steps),
        "tokens a second": format_count(line.tokens_per_s),
        **{f"link for {target:.0%} at this H": format_needed(need[target]) for target in TARGETS},
        "sent over the link a day": format_bytes(line.bytes_per_day) if line.bytes_per_day else _NONE,
        "tensor x pipeline": f"{split.tensor} x {split.pipeline}" if split.tensor * split.pipeline > 1 else _NONE,
        "memory of a chip": format_bytes(line.memory_bytes),
        "  that can be used": format_bytes(line.chip_bytes),
        "goodput under failures": format_share(line.goodput),
    }


def search_text(found: Found, question: Question) -> str:
    """The best configuration, and those that none beats."""
    lines = [f"\nsearched {found.tried:,} configurations, failures included"]
    if found.best:
        lines += textwrap.wrap(f"{found.goal}: {choice_words(found.best)}", WIDTH)
    head = ("days", "cost", f"loss ({question.law.name})", "sites", "M", "H", "codec", "tau", "P", "batch", "tokens")
    lines += [
        "none beats these in days, dollars and loss at once:",
        columns(head, [_choice_row(c) for c in found.front]),
    ]
    return "\n".join(lines)


def choice_words(choice: Choice) -> str:
    """A configuration in words, with what it comes to."""
    cost = f", {format_usd(choice.cost_usd)}" if choice.cost_usd is not None else ""
    loss = f"loss {format_loss(choice.loss)} after {format_count(choice.tokens)} tokens"
    end = f"{format_days(choice.days)}{cost}, {loss}"
    sites = format_things(choice.sites, "site")
    batch = f"batch {format_count(choice.batch_tokens)} tokens"
    if choice.data_parallel:
        return f"data parallel on {sites}, {batch}: {end}"
    return (
        f"{format_things(choice.replicas, 'replica')} on {sites}, H = {choice.sync_every}, {choice.codec}, overlap "
        f"{choice.overlap}, {format_things(choice.fragments, 'fragment')}, {batch}: {end}"
    )


def article_text(article: Article) -> str:
    """The article's table beside ours, what it rests on, and the verdict."""
    head = ("size", "data parallel", "printed", "DiLoCo", "printed", "largest error", "the print alone asks for")
    rows = [
        (
            line.printed.size,
            format_duration(line.data_parallel_s), format_duration(line.printed.data_parallel_s),
            format_duration(line.diloco_s), format_duration(line.printed.diloco_s),
            f"{100 * line.error:+.1f}%", format_bandwidth(line.printed_gbit_per_s),
        )
        for line in article.lines
    ]  # fmt: skip
    verdict = [line for sentence in article.verdict for line in textwrap.wrap(sentence, WIDTH)]
    return "\n".join([*verdict, "", columns(head, rows), *_bullets("assumptions", article.assumptions)])


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain table: the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = []
    for row in (head, *rows):
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def _table(answer: Answer) -> str:
    lines = list(answer.lines.values())
    rows = [rows_of(line, answer.question.law.name) for line in lines]
    body = [("", *(method_words(line) for line in lines))]
    body += [(label, *cells) for label in rows[0] if {*(cells := [row[label] for row in rows])} != {_NONE}]
    return columns(("", *(LABELS[line.name] for line in lines)), body)


def _loss(line: Line) -> str:
    loss = line.loss
    if math.isnan(loss.low):
        return format_loss(loss.value)
    return f"{format_loss(loss.value)} ({loss.low:.2f}-{loss.high:.2f})"


def _usd(usd: float | None) -> str:
    return _NONE if usd is None or not math.isfinite(usd) else format_usd(usd)


def _seconds(seconds: float) -> str:
    return format_duration(seconds) if seconds else _NONE


def _choice_row(choice: Choice) -> tuple[str, ...]:
    cost = _usd(choice.cost_usd)
    plain = choice.data_parallel
    own = ("dp", *[_NONE] * 4) if plain else (
        str(choice.replicas), str(choice.sync_every), choice.codec, str(choice.overlap), str(choice.fragments)
    )  # fmt: skip
    sizes = (format_count(choice.batch_tokens), format_count(choice.tokens))
    return (format_days(choice.days), cost, format_loss(choice.loss), str(choice.sites), *own, *sizes)


def _bullets(title: str, sentences: Iterable[str]) -> list[str]:
    lines = ["", f"{title}:"]
    for sentence in sentences:
        lines += textwrap.wrap(f"- {sentence}", WIDTH, subsequent_indent="  ")
    return lines
