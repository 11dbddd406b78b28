"""H, overlap and fragments of a question, which depend on each other and on the link."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from diloco.errors import BadInput
from diloco.plan.question import (
    BEARABLE_WAIT,
    FRAGMENT_LAYERS,
    STREAMING_OVERLAP,
    Question,
    diloco,
    pick_sync_every,
    streaming,
)
from diloco.units import format_bandwidth

if TYPE_CHECKING:
    from diloco.plan.asked import Asked


def schedule(asked: Asked, question: Question, said: list[str]) -> Question:
    """Fragments, overlap and H, which depend on each other."""
    for name, least in (("sync_every", 1), ("overlap", 0), ("fragments", 1)):
        value = getattr(asked, name)
        if value is not None and value < least:
            raise BadInput(f"--{name.replace('_', '-')} is {value}: give {least} or more")
    fixed = asked.sync_every or math.inf
    if (asked.fragments or 1) > fixed:
        most = min(fixed, question.model.layers)
        raise BadInput(f"--fragments is {asked.fragments} and --sync-every {fixed}: give at most {most} fragments")
    if (asked.overlap or 0) > fixed:
        raise BadInput(f"--overlap is {asked.overlap} and --sync-every {fixed}: give at most {fixed} steps")
    usual = asked.sync_every or question.law.sync_every
    fragments = asked.fragments or min(math.ceil(question.model.layers / FRAGMENT_LAYERS), usual)
    overlap = min(STREAMING_OVERLAP, usual) if asked.overlap is None else asked.overlap
    start = asked.sync_every or max(usual, fragments, overlap)
    question = replace(question, fragments=int(fragments), overlap_steps=int(overlap), sync_every=int(start))
    if asked.sync_every or question.replicas == 1:
        return question
    picked = pick_sync_every(streaming(question), question.sync_every, question.island)
    link, own = format_bandwidth(question.cluster.between.gbit_per_s), question.law.sync_every
    why = f"as over {link} a smaller one waits for over {BEARABLE_WAIT:.0%} of the time; the law's own runs had {own}"
    if picked == start:
        why = "as in the law's own runs" if start == own else "the least for so many fragments and steps of overlap"
    question = replace(question, sync_every=picked)
    plain = diloco(question).sync_every
    said.append(f"H = {picked}, {why}")
    if plain != picked:
        said[-1] += f"; plain DiLoCo, which hides nothing, has an H of its own by the same rule, {plain}"
    return question
