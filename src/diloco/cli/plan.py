"""`diloco plan`: how long a run takes on a given cluster, what it costs, and whether a further site is worth it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diloco.cli.options import Common, parse
from diloco.cli.show import print_json, warn
from diloco.errors import BadInput
from diloco.plan.asked import Asked

if TYPE_CHECKING:
    from diloco.plan.answer import Answer
    from diloco.plan.search import Found


ARTICLE = "article"


@dataclass(frozen=True)
class PlanOptions(Asked, Common):
    """Sets one site alone, data parallel, DiLoCo and streaming DiLoCo side by side for one run: time, bandwidth, money,
    memory, failures and loss. With a deadline, a budget or a target loss it also searches for the best settings.

    diloco plan --params 7b --tokens 140b --sites 2x64xh100 --between 1gbit,20ms
    """

    search: bool = False
    """Without a goal: the configurations that none beats in loss, days and dollars."""
    report: str = ""
    """Write an HTML page with pictures to this file; it opens offline."""
    like: str = ""
    """article: the founding article's step times and its 650B claim, with what would have to hold for each. Or a CSV
    file: a table of the bandwidths that utilisations need, printed and recomputed, with columns model, step_time_s,
    method, target_cu_pct and gbit_per_s, and layers and params where the model does not say; --sync-every is the H of
    methods that name none."""


def run(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        from diloco.cli.plan_help import print_help

        print_help(PlanOptions)
    _refuse_empty(arguments)
    options = parse(PlanOptions, arguments, "plan")
    if options.like:
        return _like_article(options) if options.like == ARTICLE else _like_table(options)
    from diloco.cli.outputs import check_outputs
    from diloco.cli.plan_text import answer_text, search_text
    from diloco.laws.arguments import speaking_flags

    check_outputs({"report": options.report}, [Path(path) for path in _read(options)])
    new = bool(options.report) and not Path(options.report).parent.exists()
    with speaking_flags():
        answer, found = plan(options)
    for sentence in answer.warnings:
        warn(sentence)
    written = _write_report(options.report, answer, found) if options.report else None
    if options.json:
        print_json(as_record(answer, found) | ({"report": str(written)} if written else {}))
        return 0
    print(answer_text(answer))
    if found is not None:
        print(search_text(found, answer.question))
    if written is not None:
        print(f"\npage: {written}{', in a new folder' if new else ''}")
    return 0


def _refuse_empty(arguments: list[str]) -> None:
    """An option with nothing after it, as of a shell's unset variable, is not one that was left out."""
    for word, following in zip(arguments, [*arguments[1:], None], strict=True):
        flag, equals, value = word.partition("=")
        if flag.startswith("--") and not value and (equals or following == ""):
            raise BadInput(f"{flag} is empty: give it a value, or leave it out")


def plan(options: PlanOptions) -> tuple[Answer, Found | None]:
    """Raises BadInput for a question that has no answer."""
    from diloco.plan.answer import answer
    from diloco.plan.asked import read_question

    asked = Asked(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Asked)})
    question = read_question(asked)
    goals = (question.deadline_s, question.budget_usd, question.target_loss)
    found = None
    if options.search or options.report or any(goal is not None for goal in goals):
        from diloco.plan.search import search

        found = search(question)
    return answer(question), found


def as_record(answer: Answer, found: Found | None) -> dict[str, Any]:
    """The answer as one JSON-ready object."""
    return answer.as_dict() | ({"search": found.as_dict()} if found is not None else {})


def _read(options: PlanOptions) -> list[str]:
    """Files that the question names."""
    return [path for path in (options.law, options.measured, options.hardware) if Path(path).is_file()]


def _write_report(path: str, answer: Answer, found: Found | None) -> Any:
    from diloco.plan.pictures import pictures
    from diloco.watch.plan_page import write_plan_page

    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return write_plan_page(Path(path), as_record(answer, found), pictures(answer))
    except OSError as error:
        raise BadInput(f"--report {path} cannot be written ({error.strerror}): give another") from error


def _like_article(options: PlanOptions) -> int:
    _refuse_others(options, f"{ARTICLE}, which asks its own question")
    from diloco.cli.plan_text import article_text
    from diloco.plan.article import like_article

    article = like_article()
    if options.json:
        print_json(dataclasses.asdict(article))
    else:
        print(article_text(article))
    return 0


def _like_table(options: PlanOptions) -> int:
    if not Path(options.like).is_file():
        raise BadInput(f"--like is {options.like}, which is no file: give {ARTICLE}, or a CSV of needed bandwidths")
    _refuse_others(options, "a table, of which only --sync-every is asked", "sync_every")
    from diloco.cli.plan_table import table_record, table_text
    from diloco.plan.method_names import PAPER_SYNC_EVERY
    from diloco.plan.table_rows import read_table
    from diloco.plan.utilization import recompute_table

    sync_every = PAPER_SYNC_EVERY if options.sync_every is None else options.sync_every
    if sync_every < 1:
        raise BadInput(f"--sync-every is {sync_every}: give 1 or more, as {PAPER_SYNC_EVERY}")
    try:
        table = read_table(options.like)
        cells = recompute_table(table, sync_every)
    except BadInput as error:
        raise BadInput(f"--like {options.like}: {error}") from error
    if options.json:
        print_json(table_record(cells, table.unread, sync_every))
    else:
        print(table_text(cells, table.unread, sync_every))
    return 0


def _refuse_others(options: PlanOptions, like: str, but: str = "") -> None:
    """Raises BadInput for an option that asks a question of its own beside --like."""
    given = [
        f"--{f.name.replace('_', '-')}"
        for f in dataclasses.fields(Asked)
        if f.name != but and getattr(options, f.name) != f.default
    ]
    given += [f"--{name}" for name in ("search", "report") if getattr(options, name)]
    if given:
        raise BadInput(f"--like is {like}: leave {given[0]} out")
