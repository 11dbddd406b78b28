"""`diloco plan --help`: its options in groups, each with what it takes."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from dataclasses import dataclass, field
from typing import Annotated, Any, get_type_hints

from diloco.cli.options import Common
from diloco.plan.asked import Asked


@dataclass(frozen=True)
class Group:
    """Options under one heading."""

    name: str
    about: str
    takes: dict[str, str]
    """What an option takes, by its name; "" for a switch."""


GROUPS = (
    Group(
        "question", "What is planned. --params and --sites must be given, and --between where there are two sites.",
        {"params": "SIZE", "tokens": "COUNT", "sites": "SITES", "between": "RATE,TIME"},
    ),
    Group(
        "search", "Any of them searches some 10,000 settings; what the other options give stays as given.",
        {"deadline": "TIME", "budget_usd": "USD", "target_loss": "LOSS", "search": ""},
    ),
    Group(
        "method", "How replicas sync.",
        {"replicas": "M", "sync_every": "H", "codec": "NAME", "overlap": "TAU", "fragments": "P",
         "batch_tokens": "COUNT"},
    ),
    Group(
        "replica", "How the chips of one replica share it.",
        {"seq_len": "TOKENS", "tensor": "CHIPS", "pipeline": "STAGES", "microbatches": "COUNT", "inside": "RATE,TIME"},
    ),
    Group(
        "assumptions", "Speed, price, links and loss that the answer reckons with.",
        {"mfu": "SHARE", "measured": "PATH", "price": "USD", "hardware": "FILE", "law": "LAW"},
    ),
    Group(
        "failures", "What stops the chips, and for how long.",
        {"mtbi": "TIME", "away": "TIME", "restart": "TIME", "checkpoint_every": "TIME", "spares": "SERVERS"},
    ),
    Group(
        "output", "What is printed and written; on its own, --like asks no question.",
        {"json": "", "report": "FILE", "like": "article|FILE.csv"},
    ),
)  # fmt: skip


def print_help(options: type) -> None:
    """Prints the options of `options` and exits with 0."""
    import tyro

    parts = [_part(group, options) for group in GROUPS]
    grouped = dataclasses.make_dataclass(
        "Plan",
        [(part.__name__, Annotated[part, tyro.conf.OmitArgPrefixes], field(default_factory=part)) for part in parts],
        frozen=True,
    )
    grouped.__doc__ = inspect.getdoc(options)
    tyro.cli(grouped, args=["--help"], prog="diloco plan", config=(tyro.conf.FlagCreatePairsOff,))


def _part(group: Group, options: type) -> type:
    import tyro

    hints, said = get_type_hints(options), _docs(options)
    defaults = {f.name: f.default for f in dataclasses.fields(options)}
    members: list[Any] = []
    for name, takes in group.takes.items():
        shown = tyro.conf.arg(help=said[name], metavar=takes or None, help_behavior_hint="")
        members.append((name, Annotated[hints[name], shown], field(default=defaults[name])))
    part = dataclasses.make_dataclass(group.name, members, frozen=True)
    part.__doc__ = group.about
    return part


def _docs(options: type) -> dict[str, str]:
    """The text under each field, by its name."""
    found = {}
    for kind in (Common, Asked, options):
        body = ast.parse(inspect.getsource(kind)).body[0].body  # type: ignore[attr-defined]
        for node, below in zip(body, body[1:], strict=False):
            if isinstance(node, ast.AnnAssign) and isinstance(below, ast.Expr):
                found[node.target.id] = " ".join(below.value.value.split())  # type: ignore[attr-defined, union-attr]
    return found
