"""What to keep in mind about an answer, a sentence each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diloco.plan.clock import inner_step, site_steps
from diloco.plan.model import SEQ_LEN
from diloco.plan.question import LABELS, Question
from diloco.plan.run import Run
from diloco.units import format_duration, format_number, format_share, format_things

if TYPE_CHECKING:
    from diloco.plan.answer import Line

WORTH_IDLE = 0.01
"""Of the time, from which on a faster site's waiting for a slower one is pointed to."""

MUCH_ATTENTION = 0.2
"""Of a token's operations without it."""

GOOD_GOODPUT = 0.8
"""Less, and failures are pointed to."""


def notes(question: Question, lines: dict[str, Line]) -> list[str]:
    """Failures, memory, speed, and the law."""
    last = list(lines.values())[-1]
    run = last.run
    found = [run.failures.sentence(run.cluster, run.cluster.chips, with_replicas=run.replicas > 1)]
    if last.goodput < GOOD_GOODPUT:
        found.append(_dominated(last))
    found += [f"{LABELS[line.name]} {line.settled.fit.sentence}" for line in lines.values() if not line.settled.fits]
    offloaded = [LABELS[line.name] for line in lines.values() if line.settled.fit.options.offload_outer]
    if offloaded:
        found.append(f"{' and '.join(offloaded)}: anchor and outer momentum must lie in the hosts' memory")
    split = {line.settled.fit.options.micro_batch_tokens or 0.0 for line in lines.values()} - {0.0}
    if split:
        found.append(
            f"a whole sequence's activations do not fit into a chip: sequences are split over chips, in parts of "
            f"{format_number(min(split), 3)} token{'s' * (min(split) != 1)}"
        )
    found += _unlike_sites(run)
    found += _speed(question, run)
    if run.replicas > 1:
        found.append(question.law.silence())
    return found + question.law.reservations(question.model.params, run.replicas, question.tokens)


def without_effect(question: Question) -> tuple[str, ...]:
    """Options that were given and change nothing, a sentence for each reason."""
    sites, given = question.cluster.sites, question.given
    why: dict[str, tuple[str, ...]] = {}
    if len(sites) == 1:
        why["with one site"] = ("between",)
    if all(site.nodes == 1 for site in sites):
        why["where a site is one server"] = ("inside",)
    if question.replicas == 1:
        why["with one replica (M = 1), which syncs with nobody"] = ("sync_every", "codec", "overlap", "fragments")
    links = {link.name for site in sites for link in (site.node_link, site.inside)} | {question.cluster.between.name}
    named = {f"chip.{site.chip.name}" for site in sites} | {f"link.{name}" for name in links}
    if not named & question.own_hardware:
        why["as it names no chip and no link of this question"] = ("hardware",)
    found = ((reason, [name for name in names if name in given]) for reason, names in why.items())
    have = ("has", "have")
    return tuple(f"{_flags(names)} {have[len(names) > 1]} no effect {reason}" for reason, names in found if names)


def doubtful(question: Question) -> tuple[str, ...]:
    """Options that hardly anybody means, a sentence each."""
    spares = question.failures.spare_servers or 0
    most = max(site.nodes for site in question.cluster.sites)
    if spares <= most:
        return ()
    return (
        f"--spares is {spares:,}, more than the {format_things(most, 'server')} of a site: they idle, and each is paid "
        "for",
    )


def _flags(names: list[str]) -> str:
    flags = [f"--{name.replace('_', '-')}" for name in names]
    return " and ".join([", ".join(flags[:-1]), flags[-1]] if len(flags) > 1 else flags)


def _dominated(line: Line) -> str:
    run = line.run
    chips = run.cluster.chips if run.data_parallel else run.cluster.chips / run.replicas
    return (
        f"failures dominate: they leave {format_share(line.goodput)} of the time, as something stops "
        f"{format_things(round(chips), 'chip')} every {format_duration(run.failures.mtbi_s / chips)}"
    )


def _unlike_sites(run: Run) -> list[str]:
    """Equal shares of the batch make the faster of unlike sites wait."""
    steps = [step.total_s for step in site_steps(run)]
    fastest, slowest = (pick(range(len(steps)), key=steps.__getitem__) for pick in (min, max))
    idle = 1 - steps[fastest] / steps[slowest]
    if idle < WORTH_IDLE:
        return []
    fast, slow = (f"{site.chips:,} {site.chip.name}" for site in (run.cluster.kinds[i] for i in (fastest, slowest)))
    return [
        f"every replica has an equal share of the batch, so a site of {fast} is done after "
        f"{format_duration(steps[fastest])} of a step and waits for the {format_duration(steps[slowest])} of a site of "
        f"{slow}: it idles for {format_share(idle)} of the time, which the utilisation counts"
    ]


def _speed(question: Question, run: Run) -> list[str]:
    """Where the assumed speed is not to be had."""
    found, model, split = [], question.model, run.island
    if split.pipeline > 1:
        found.append(
            f"each replica is split in tensor {split.tensor} x pipeline {split.pipeline}, with "
            f"{format_things(run.micro_batches, 'micro-batch', 'micro-batches')} of "
            f"{format_things(round(run.shard_tokens / run.micro_batches), 'token')} (--microbatches): stages idle for "
            f"{format_share((split.pipeline - 1) / run.micro_batches)} of the time that they work"
        )
    more = model.flops_per_token / model.weight_flops_per_token - 1
    if more >= MUCH_ATTENTION:
        found.append(
            f"attention over {model.seq_len:,} tokens adds {more:.0%} to the 6 N operations of a token: 6 L d for each "
            f"token beyond {SEQ_LEN:,}, as masked parts are skipped; it is in the time"
        )
    if run.shard_tokens < model.seq_len:
        found.append(
            f"a step has {format_things(round(run.shard_tokens), 'token')} for each data shard, less than a sequence "
            f"of {model.seq_len:,}: a real run will reach less of the peak, or needs a larger batch"
        )
    step = inner_step(run)
    if step.inside_s + step.bubble_s > 0.1 * step.compute_s:
        share = (step.inside_s + step.bubble_s) / step.total_s
        found.append(
            f"links inside the sites, or pipeline stages, hold the chips up for {format_share(share)} of a step"
        )
    if model.active_params is not None:
        found.append(
            f"a mixture of experts: {format_share(model.active_params / model.params)} of the weights compute for a "
            "token, and all of them are gathered and synced; expert parallelism, which sends tokens, is left out"
        )
    return found
