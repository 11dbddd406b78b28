"""The options of a question as people write them, and how they become a `Question`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from diloco.errors import BadInput
from diloco.plan.catalogue import Catalogue, catalogue
from diloco.plan.codecs import codec_cost
from diloco.plan.failures import Failures
from diloco.plan.hardware import ASSUMED_MFU, TCP_FRAMING, Chip, Cluster, Link, Site, Speed, assumed_speed, with_price
from diloco.plan.loss import PAPER, LossLaw, open_law
from diloco.plan.measured import measured_speed
from diloco.plan.model import ModelShape, get_model
from diloco.plan.question import (
    BEARABLE_WAIT,
    FRAGMENT_LAYERS,
    STREAMING_CODEC,
    STREAMING_OVERLAP,
    Question,
    diloco,
    pick_sync_every,
    settle,
    streaming,
)
from diloco.plan.run import Island
from diloco.plan.units import (
    format_bandwidth,
    format_count,
    format_usd,
    parse_count,
    parse_duration,
    parse_share,
    parse_usd,
)

TOKENS_PER_PARAM = 20
SITES_MOST, CHIPS_MOST = 1000, 10**8
_SITES = re.compile(r"(?:(\d+)\s*x\s*)?(\d+)\s*x\s*([a-z][\w.-]*)", re.IGNORECASE)


@dataclass(frozen=True)
class Asked:
    """What a question may say; what is left out is filled in, and the answer says with what."""

    params: str = ""
    """The model: parameters as in 7b or 350m, or a known model such as llama3-405b."""
    tokens: str = ""
    """Training tokens over all replicas together, as in 140b; 20 per parameter where left out."""
    sites: str = ""
    """Sites x chips x kind of chip, as in 2x64xh100; unlike ones joined by +, as in 64xh100+32xa100."""
    between: str = ""
    """Link between sites, in one direction, with its one-way latency: 10gbit,20ms; or by name, as wan-10g."""
    inside: str = ""
    """Link of one chip between the servers of a site: 400gbit,5us, or a name; infiniband-ndr where left out."""
    replicas: int | None = None
    """M: replicas, over all sites; one a site where left out."""
    sync_every: int | None = None
    """H: inner steps between two outer steps; where left out, what the law's runs had, or more if the link is slow."""
    codec: str = ""
    """How outer gradients are written on the wire: fp32, bf16, fp16, int8, int4, e3m0 (where left out), topk:0.01."""
    overlap: int | None = None
    """tau: inner steps between sending a fragment and using its result; 5 where left out."""
    fragments: int | None = None
    """P: parts of the model that sync one after another; three layers each where left out."""
    batch_tokens: str = ""
    """Tokens of one inner step over all replicas, as in 512k; what the law recommends where left out."""
    seq_len: int | None = None
    """Tokens of one sequence; 2048 where left out."""
    tensor: int | None = None
    """Chips that share each layer of a replica; the fastest that fits where left out, 1 beside --pipeline."""
    pipeline: int | None = None
    """Pipeline stages of a replica; the fastest that fits where left out, 1 beside --tensor."""
    microbatches: int | None = None
    """Of each pipeline in a step; where left out, as many as the batch has sequences, or four parts a stage."""
    mfu: str = ""
    """Share of a chip's peak FLOP/s that training reaches, as 40% or 0.4; 40% is assumed where left out."""
    measured: str = ""
    """Measured speed in place of --mfu: a file that `diloco bench device` wrote, or the folder of a run."""
    law: str = PAPER
    """Where the loss comes from: paper, article, or a file that `diloco fit --out` wrote."""
    price: str = ""
    """US dollars for one chip and hour, as in $2.5; the catalogue's typical price where left out."""
    deadline: str = ""
    """Longest run, as in 30d or 12h: the best loss by then is searched for."""
    budget_usd: str = ""
    """Most US dollars, as in 50k: the best loss for them is searched for."""
    target_loss: float | None = None
    """Nats per token: the cheapest way there is searched for."""
    mtbi: str = ""
    """Mean time between interruptions of one chip, as in 1y or 2000d; 2111 days, as Llama 3's, where left out."""
    away: str = ""
    """Until a failed server is whole again, as in 30min, which is assumed where left out."""
    restart: str = ""
    """Until a failure is noticed and the run goes on from its last checkpoint, as in 5min, if left out too."""
    checkpoint_every: str = ""
    """Work between two checkpoints of a data-parallel run, as in 30min; where left out, the best for a stop of 10 s."""
    spares: int | None = None
    """Idle servers at each site that take a failed one's place, paid for; one for 64 servers where left out."""
    hardware: str = ""
    """A TOML file of chips and links of your own, which go before the shipped ones."""


def read_question(asked: Asked) -> Question:
    """Raises BadInput, with the nearest value that is sensible, for a question that has no answer."""
    known = catalogue(asked.hardware or None)
    model = _model(asked)
    sites = tuple(_sites(asked, known))
    between = _between(asked, known, sites)
    said: list[str] = []
    tokens = _tokens(asked, model, said)
    law = open_law(asked.law)
    replicas = _replicas(asked, sites, said)
    question = Question(
        model=model,
        cluster=Cluster(sites, between),
        speeds=_speeds(asked, sites),
        tokens=tokens,
        batch_tokens=_batch(asked, law, model, replicas, tokens, said),
        replicas=replicas,
        sync_every=asked.sync_every or law.sync_every,
        law=law,
        codec=codec_cost(asked.codec or STREAMING_CODEC).name,
        island=_island(asked),
        failures=_failures(asked),
        deadline_s=parse_duration(asked.deadline, "--deadline", "30d") if asked.deadline else None,
        budget_usd=parse_usd(asked.budget_usd, "--budget-usd", "50k") if asked.budget_usd else None,
        target_loss=_target(asked.target_loss),
        given=frozenset(name for name, value in vars(asked).items() if value != getattr(Asked, name)),
    )
    question = _schedule(asked, question, said)
    _refuse_too_large(asked, question)
    return replace(question, assumed=(*_hardware_sentences(question), *said))


def _model(asked: Asked) -> ModelShape:
    if not asked.params:
        raise BadInput("--params is missing: give the model's parameters, as in --params 7b")
    if asked.seq_len is not None and asked.seq_len < 1:
        raise BadInput(f"--seq-len is {asked.seq_len}: give 1 token or more, as 2048")
    return get_model(asked.params, asked.seq_len)


def _tokens(asked: Asked, model: ModelShape, said: list[str]) -> float:
    if asked.tokens:
        return parse_count(asked.tokens, "--tokens", "140b")
    said.append(f"tokens: {TOKENS_PER_PARAM} for each parameter, {format_count(TOKENS_PER_PARAM * model.params)}")
    return TOKENS_PER_PARAM * model.params


def _sites(asked: Asked, known: Catalogue) -> list[Site]:
    if not asked.sites:
        raise BadInput("--sites is missing: give sites x chips x kind of chip, as in --sites 2x64xh100")
    inside = known.parse_link(asked.inside, "--inside") if asked.inside else None
    found: list[Site] = []
    for part in asked.sites.split("+"):
        match = _SITES.fullmatch(part.strip())
        if match is None:
            raise BadInput(f"--sites is {asked.sites!r}: give sites x chips x kind of chip, as 2x64xh100")
        count, chips = int(match[1] or 1), int(match[2])
        near = f"{min(max(count, 1), SITES_MOST)}x{min(max(chips, 1), CHIPS_MOST)}x{match[3]}"
        if not (1 <= count <= SITES_MOST and 1 <= chips <= CHIPS_MOST):
            raise BadInput(f"--sites is {asked.sites!r}, which has {count} sites of {chips} chips: give {near}")
        chip = _priced(known.chip(match[3]), asked.price)
        found += [replace(known.site(match[3], chips, inside), chip=chip)] * count
    return found


def _priced(chip: Chip, price: str) -> Chip:
    return with_price(chip, parse_usd(price, "--price", "$2.5")) if price else chip


def _between(asked: Asked, known: Catalogue, sites: tuple[Site, ...]) -> Link:
    if asked.between:
        return replace(known.parse_link(asked.between, "--between"), framing=TCP_FRAMING)
    if len(sites) > 1:
        raise BadInput(f"--between is missing: {len(sites)} sites have a link, as in --between 10gbit,20ms")
    return sites[0].inside


def _replicas(asked: Asked, sites: tuple[Site, ...], said: list[str]) -> int:
    if asked.replicas is None:
        said.append(f"replicas: one a site, M = {len(sites)}")
        return len(sites)
    if asked.replicas < 1:
        raise BadInput(f"--replicas is {asked.replicas}: give {len(sites)}, one a site, or a multiple of it")
    return asked.replicas


def _speeds(asked: Asked, sites: tuple[Site, ...]) -> dict[str, Speed]:
    chips = {site.chip.name: site.chip for site in sites}
    if asked.measured:
        if asked.mfu:
            raise BadInput(f"--mfu is {asked.mfu} and --measured is {asked.measured}: give one of them")
        return {name: measured_speed(asked.measured, chip) for name, chip in chips.items()}
    mfu = parse_share(asked.mfu, "--mfu") if asked.mfu else ASSUMED_MFU
    return {name: assumed_speed(chip, mfu=mfu) for name, chip in chips.items()}


def _batch(asked: Asked, law: LossLaw, model: ModelShape, replicas: int, tokens: float, said: list[str]) -> float:
    if asked.batch_tokens:
        batch = parse_count(asked.batch_tokens, "--batch-tokens", "512k")
        if batch < replicas:
            near = replicas * model.seq_len
            raise BadInput(f"--batch-tokens is {batch:g}, less than one for each replica: give {near}, a sequence each")
        if batch > tokens:
            raise BadInput(f"--batch-tokens is {batch:g}, more than the run's {tokens:g} tokens: give at most that")
        return batch
    batch = min(whole_sequences(law.batch_tokens(model.params, replicas), model, replicas), tokens)
    source = law.name if law.law is None else PAPER
    said.append(f"batch: {format_count(batch)} tokens a step, by the {source}'s rule for M = {replicas}")
    return batch


def whole_sequences(batch_tokens: float, model: ModelShape, replicas: int) -> float:
    """The nearest number of tokens that is the same whole number of sequences for every replica."""
    one_each = model.seq_len * replicas
    return float(max(1, round(batch_tokens / one_each)) * one_each)


def _island(asked: Asked) -> Island | None:
    if asked.microbatches is not None and asked.microbatches < 1:
        raise BadInput(f"--microbatches is {asked.microbatches}: give 1 or more, or leave it out")
    if asked.microbatches is not None and (asked.pipeline or 1) == 1:
        raise BadInput(f"--microbatches is {asked.microbatches} without --pipeline: give both, or leave it out")
    if asked.tensor is None and asked.pipeline is None:
        return None
    tensor, pipeline = (1 if parts is None else parts for parts in (asked.tensor, asked.pipeline))
    return Island(tensor, pipeline, asked.microbatches)


def _failures(asked: Asked) -> Failures:
    options = {"mtbi": "1y", "away": "30min", "restart": "5min", "checkpoint_every": "30min"}
    given = {
        f"{name}_s": parse_duration(getattr(asked, name), f"--{name.replace('_', '-')}", example, name != "mtbi")
        for name, example in options.items()
        if getattr(asked, name)
    }
    if given.get("checkpoint_every_s") == 0:
        raise BadInput(f"--checkpoint-every is {asked.checkpoint_every!r}: it must be above 0, as 30min")
    return Failures(**given, spare_servers=asked.spares)


def _target(loss: float | None) -> float | None:
    if loss is not None and not 0 < loss < math.inf:
        raise BadInput(f"--target-loss is {loss:g}: give nats per token above 0, as 2.1")
    return loss


def _schedule(asked: Asked, question: Question, said: list[str]) -> Question:
    """Fragments, overlap and H, which depend on each other."""
    for name, least in (("sync_every", 1), ("overlap", 0), ("fragments", 1)):
        value = getattr(asked, name)
        if value is not None and value < least:
            raise BadInput(f"--{name.replace('_', '-')} is {value}: give {least} or more")
    fixed = asked.sync_every or math.inf
    if (asked.fragments or 1) > fixed:
        raise BadInput(f"--fragments is {asked.fragments} and --sync-every {fixed}: give at most {fixed} fragments")
    if (asked.overlap or 0) > fixed:
        raise BadInput(f"--overlap is {asked.overlap} and --sync-every {fixed}: give at most {fixed} steps")
    usual = asked.sync_every or question.law.sync_every
    fragments = asked.fragments or min(math.ceil(question.model.layers / FRAGMENT_LAYERS), usual)
    overlap = min(STREAMING_OVERLAP, usual) if asked.overlap is None else asked.overlap
    start = asked.sync_every or max(usual, fragments, overlap)
    question = replace(question, fragments=int(fragments), overlap_steps=int(overlap), sync_every=int(start))
    if asked.sync_every or question.replicas == 1:
        return question
    picked = pick_sync_every(streaming(question), question.sync_every)
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


def _refuse_too_large(asked: Asked, question: Question) -> None:
    settled = settle(streaming(question), question.island)
    size = format_count(question.model.params)
    if not settled.fits and asked.seq_len is not None and (shorter := _shorter(asked, question)) is not None:
        raise BadInput(
            f"--seq-len is {asked.seq_len:,}, with which {size} parameters do not fit into these chips: give {shorter}"
        )
    if not settled.fits:
        raise BadInput(f"--params is {size}, which {settled.fit.sentence}")
    run = settled.run
    if run.micro_batches > run.shard_tokens:
        raise BadInput(
            f"--microbatches is {asked.microbatches}, more than a pipeline has tokens in a step: give at most "
            f"{max(1, int(run.shard_tokens))}"
        )


def _shorter(asked: Asked, question: Question) -> int | None:
    """The longest sequence that fits, of the asked one halved again and again."""
    seq_len = asked.seq_len or 1
    while (seq_len := seq_len // 2) >= 1:
        run = replace(streaming(question), model=replace(question.model, seq_len=seq_len))
        if settle(run, question.island).fits:
            return seq_len
    return None


def _hardware_sentences(question: Question) -> list[str]:
    """Speeds and prices."""
    speeds = dict.fromkeys(speed.how for speed in question.speeds.values())
    prices = {}
    for chip in (site.chip for site in question.cluster.sites):
        known = f"{format_usd(chip.usd_per_h)} an hour ({chip.price_date})" if chip.usd_per_h else None
        prices[chip.name] = f"{chip.label}: {known or 'no price: give --price'}"
    return [*speeds, *prices.values()]
