"""What to keep in mind about an answer, a sentence each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diloco.plan.clock import inner_step
from diloco.plan.question import LABELS, ONE_SITE, Question
from diloco.plan.run import Run
from diloco.plan.units import format_number, format_share, format_things

if TYPE_CHECKING:
    from diloco.plan.answer import Line

SEARCH_BELOW = 0.9
"""Of the utilisation of one site, under which other settings are pointed to."""

GOOD_GOODPUT = 0.8
"""Less, and failures are pointed to."""


def notes(question: Question, lines: dict[str, Line]) -> list[str]:
    """Plainest first: what was ignored, failures, memory, speed, and the law."""
    last = list(lines.values())[-1]
    run = last.run
    found = [*ignored(question), run.failures.sentence(run.cluster, run.cluster.chips)]
    if last.goodput < GOOD_GOODPUT:
        found.append(_dominated(last))
    offloaded = [LABELS[line.name] for line in lines.values() if line.settled.fit.options.offload_outer]
    if offloaded:
        found.append(f"{' and '.join(offloaded)}: anchor and outer momentum must lie in the hosts' memory")
    split = {line.settled.fit.options.micro_batch_tokens or 0.0 for line in lines.values()} - {0.0}
    if split:
        found.append(
            f"a whole sequence's activations do not fit into a chip: sequences are split over chips, in parts of "
            f"{format_number(min(split), 3)} tokens"
        )
    if last.name != ONE_SITE and last.clock.utilization < SEARCH_BELOW * lines[ONE_SITE].clock.utilization:
        found.append("a larger batch, H or overlap waits less: --search tries them")
    if len({(site.chip.name, site.chips) for site in run.cluster.sites}) > 1:
        found.append("every replica has an equal share of the batch, so the faster site waits for the slower one")
    found += _speed(question, run)
    found.append(question.law.silence())
    return found + question.law.reservations(question.model.params, run.replicas, question.tokens)


def ignored(question: Question) -> list[str]:
    """Options that were given and change nothing."""
    why: dict[str, tuple[str, ...]] = {}
    if len(question.cluster.sites) == 1:
        why["there is one site"] = ("between",)
    if all(site.nodes == 1 for site in question.cluster.sites):
        why["a site is one server"] = ("inside",)
    if question.replicas == 1:
        why["there is one replica (M = 1), which syncs with nobody"] = ("sync_every", "codec", "overlap", "fragments")
    return [
        f"ignored: {_flags(given)}, as {reason}"
        for reason, names in why.items()
        if (given := [name for name in names if name in question.given])
    ]


def _flags(names: list[str]) -> str:
    flags = [f"--{name.replace('_', '-')}" for name in names]
    return " and ".join([", ".join(flags[:-1]), flags[-1]] if len(flags) > 1 else flags)


def _dominated(line: Line) -> str:
    """Which of the settings costs most."""
    run, failures = line.run, line.run.failures
    chips = run.cluster.chips if run.data_parallel else run.cluster.chips / run.replicas
    between_s = failures.mtbi_s / chips
    stop_s = failures.stop_s(run.cluster)
    interval_s = failures.interval_s(chips) if run.data_parallel else run.sync_every * inner_step(run).total_s
    lost = {
        "--restart": failures.restart_s,
        "--spares, or --away": stop_s - failures.restart_s,
        "--checkpoint-every" if run.data_parallel else "--sync-every, or more --replicas": interval_s / 2,
    }
    flag = max(lost, key=lambda name: lost[name])
    return (
        f"failures dominate: they leave {format_share(line.goodput)} of the time, as something stops "
        f"{format_things(round(chips), 'chip')} every {between_s / 60:.3g} min; what helps most is {flag}, then --mtbi"
    )


def _speed(question: Question, run: Run) -> list[str]:
    """Where the assumed speed is not to be had."""
    found, model, split = [], question.model, run.island
    if split.pipeline > 1:
        found.append(
            f"each replica is split in tensor {split.tensor} x pipeline {split.pipeline}, with "
            f"{format_things(run.micro_batches, 'micro-batch', 'micro-batches')} of "
            f"{run.shard_tokens / run.micro_batches:,.0f} tokens (--microbatches): stages idle for "
            f"{format_share((split.pipeline - 1) / run.micro_batches)} of the time that they work"
        )
    if run.shard_tokens < model.seq_len:
        found.append(
            f"a step has {run.shard_tokens:,.0f} tokens for each data shard, less than a sequence of "
            f"{model.seq_len}: a real run will reach less of the peak, or needs a larger batch"
        )
    step = inner_step(run)
    if step.inside_s + step.bubble_s > 0.1 * step.compute_s:
        found.append(
            "links inside the sites, or pipeline stages, hold the chips up too: a larger batch or a faster --inside "
            "would help"
        )
    if model.active_params is not None:
        found.append(
            f"a mixture of experts: {format_share(model.active_params / model.params)} of the weights compute for a "
            "token, and all of them are gathered and synced; expert parallelism, which sends tokens, is left out"
        )
    return found
