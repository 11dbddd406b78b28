"""Refuses a question whose model its chips do not hold, by the option that stands in the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from diloco.errors import BadInput
from diloco.plan.memory import fewer_replicas, splits
from diloco.plan.question import Question, Settled, divides, settle, streaming
from diloco.plan.run import Island, Run
from diloco.units import format_bytes, format_count

if TYPE_CHECKING:
    from diloco.plan.asked import Asked


def refuse_what_does_not_fit(asked: Asked, question: Question) -> None:
    """Raises BadInput, with the nearest value of an option that was given and with which it fits; else with the chips
    that would do."""
    settled = settle(streaming(question), question.island)
    if settled.fits:
        _refuse_empty_micro_batches(settled.run)
        return
    size, memory = format_count(question.model.params), settled.fit.memory
    why = (
        f"with which {size} parameters do not fit: they take {format_bytes(memory.total_bytes)} a chip, of which "
        f"{format_bytes(memory.chip_bytes)} can be used"
    )
    for words, near in _ways_out(asked, question, settled):
        raise BadInput(f"{words}, {why}: give {near}")
    raise BadInput(f"params is {size}, which {settled.fit.sentence}")


def _ways_out(asked: Asked, question: Question, settled: Settled) -> Iterator[tuple[str, str]]:
    """Options that were given, in words, and the nearest value with which the question fits."""
    run, island = settled.run, question.island
    if asked.seq_len is not None and (shorter := _shorter(asked.seq_len, question)) is not None:
        yield f"seq_len is {asked.seq_len:,}", f"{shorter}"
    if island is not None:
        others = [split for split in splits(run) if settle(split, split.island).fits]
        if others:
            near = min(others, key=lambda split: island.distance(split.island.tensor, split.island.pipeline)).island
            changed = {"tensor": near.tensor, "pipeline": near.pipeline}
            flags = " and ".join(f"--{name} {size}" for name, size in changed.items() if size != getattr(island, name))
            yield island.words(), flags
    if asked.replicas is not None:
        for fewer in fewer_replicas(run)[1:]:
            larger = replace(run, replicas=fewer, island=island or Island())
            if divides(run.cluster, fewer, island) and settle(larger, island).fits:
                yield f"replicas is {asked.replicas}", f"{fewer}"


def _refuse_empty_micro_batches(run: Run) -> None:
    if run.micro_batches > run.shard_tokens:
        raise BadInput(
            f"microbatches is {run.micro_batches}, more than a pipeline has tokens in a step: give at most "
            f"{max(1, int(run.shard_tokens))}"
        )


def _shorter(seq_len: int, question: Question) -> int | None:
    """The longest sequence that fits, of the asked one halved again and again."""
    while (seq_len := seq_len // 2) >= 1:
        run = replace(streaming(question), model=replace(question.model, seq_len=seq_len))
        if settle(run, question.island).fits:
            return seq_len
    return None
