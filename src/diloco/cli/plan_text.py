"""The planner's answers as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from diloco.plan.answer import Answer, Line
from diloco.plan.question import LABELS
from diloco.units import format_bandwidth, format_count, format_duration, format_things, format_tokens
from diloco.watch.plan_rows import CHOICE_HEAD, choice_options, choice_row, choice_words, common_rows, figures

if TYPE_CHECKING:
    from diloco.plan.article import Article
    from diloco.plan.question import Question
    from diloco.plan.search import Found

WIDTH = 110


def answer_text(answer: Answer) -> str:
    """The question, the verdict, a column per method, and what it all rests on."""
    first = [line for text in (answer.verdict, answer.advice) for line in _wrap(text)]
    parts = [
        question_line(answer.question), "", *first, "", _table(answer),
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
    size = f"{format_count(question.model.params)} parameters, {format_tokens(question.tokens)}"
    return f"{size}; {sites}{between}"


def method_words(line: Line) -> str:
    """What tells a method's run from the others."""
    run = line.run
    if run.data_parallel:
        return format_things(run.cluster.chips, "chip")
    words = [f"M={run.replicas}", f"H={run.sync_every}", run.codec]
    words += [f"tau={run.overlap_steps}"] if run.overlap_steps else []
    return " ".join([*words, *([f"P={run.fragments}"] if run.fragments > 1 else [])])


def search_text(found: Found, question: Question) -> str:
    """The best configuration, and those that none beats."""
    length = f"; {found.length}" if found.length else ""
    lines = ["", *_wrap(f"searched {found.tried:,} configurations, failures included{length}")]
    if found.best:
        lines += _wrap(f"{found.goal}: {choice_words(found.best.as_dict())}")
        if not found.best.data_parallel and found.best.sites == len(question.cluster.sites):
            lines += _wrap(f"side by side with the others by {choice_options(found.best.as_dict())}")
    head = tuple(f"loss ({question.law.name})" if name == "loss" else name for name in CHOICE_HEAD)
    lines += [
        "none beats these in days, dollars and loss at once:",
        columns(head, [choice_row(choice.as_dict()) for choice in found.front]),
    ]
    return "\n".join(lines)


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
    verdict = [line for sentence in article.verdict for line in _wrap(sentence)]
    return "\n".join([*verdict, "", columns(head, rows), *_bullets("assumptions", article.assumptions)])


def columns(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A plain table: the first `left` columns to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = []
    for row in (head, *rows):
        cells = zip(row, widths, strict=True)
        placed = [cell.ljust(width) if i < left else cell.rjust(width) for i, (cell, width) in enumerate(cells)]
        lines.append("  ".join(placed).rstrip())
    return "\n".join(lines)


def _table(answer: Answer) -> str:
    lines = list(answer.lines.values())
    body = [("", *(method_words(line) for line in lines))]
    body += common_rows([figures(line.as_dict(), answer.question.law.name) for line in lines])
    return columns(("", *(LABELS[line.name] for line in lines)), body)


def _bullets(title: str, sentences: Iterable[str]) -> list[str]:
    lines = ["", f"{title}:"]
    for sentence in sentences:
        lines += _wrap(f"- {sentence}", "  ")
    return lines


def _wrap(text: str, indent: str = "") -> list[str]:
    """Lines that keep options such as --batch-tokens whole."""
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
