"""The options of a question as people write them, and how they become a `Question`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from diloco.errors import BadInput
from diloco.plan.assumed import hardware_sentences, model_sentence
from diloco.plan.catalogue import Catalogue, catalogue
from diloco.plan.codecs import codec_cost
from diloco.plan.failures import Failures
from diloco.plan.fitting import refuse_what_does_not_fit
from diloco.plan.hardware import ASSUMED_MFU, TCP_FRAMING, Chip, Cluster, Link, Site, Speed, assumed_speed, with_price
from diloco.plan.loss import PAPER, LossLaw, open_law
from diloco.plan.measured import measured_speed
from diloco.plan.model import ModelShape, get_model
from diloco.plan.nearest import accepted_instead
from diloco.plan.question import STREAMING_CODEC, Question
from diloco.plan.run import Island
from diloco.plan.schedule import schedule
from diloco.units import format_count, format_number, format_tokens, parse_count, parse_duration, parse_share, parse_usd

T = TypeVar("T")

SITES_MOST, CHIPS_MOST = 1000, 10**8
_SITES = re.compile(r"(?:(\d+)\s*x\s*)?(\d+)\s*x\s*([a-z][\w.-]*)", re.IGNORECASE)


@dataclass(frozen=True)
class Asked:
    """What a question may say; what is left out is filled in, and the answer says with what."""

    params: str = ""
    """The model: parameters as in 7b or 350m, or a known model such as llama3-405b."""
    tokens: str = ""
    """Training tokens over all replicas together, as in 140b; 20 for each parameter where left out, or
    what the runs of --law had."""
    sites: str = ""
    """Sites x chips x kind of chip, as in 2x64xh100; unlike ones joined by +, as in 64xh100+32xa100."""
    between: str = ""
    """Link between sites, in one direction, with its one-way latency: 10gbit,20ms; or by name, as wan-10g."""

    deadline: str = ""
    """Longest run, as in 30d or 12h."""
    budget_usd: str = ""
    """Most US dollars, as in 50k."""
    target_loss: float | None = None
    """Nats per token, to be reached for the least money."""

    replicas: int | None = None
    """M: replicas, over all sites; one a site where left out."""
    sync_every: int | None = None
    """H: inner steps between two outer steps; what the law's runs had where left out, or more if the link is slow."""
    codec: str = ""
    """How streaming writes outer gradients: fp32, bf16, fp16, int8, int4, e3m0 (where left out), topk:0.01."""
    overlap: int | None = None
    """tau: inner steps between sending a fragment and using its result; 5 where left out."""
    fragments: int | None = None
    """P: parts of the model that sync one after another; three layers each where left out."""
    batch_tokens: str = ""
    """Tokens of one inner step over all replicas, as in 512k; what the law recommends where left out."""

    seq_len: int | None = None
    """Tokens of one sequence; 2048 where left out, or what a known model was trained with."""
    tensor: int | None = None
    """Chips that share each layer; the fastest that fits where left out, 1 beside --pipeline."""
    pipeline: int | None = None
    """Pipeline stages; the fastest that fits where left out, 1 beside --tensor."""
    microbatches: int | None = None
    """Of each pipeline in a step; as many as the batch has sequences where left out, or four parts a stage."""
    inside: str = ""
    """Link of one chip between the servers of a site: 400gbit,5us, or a name; infiniband-ndr where left out."""

    mfu: str = ""
    """Share of a chip's peak FLOP/s that training reaches, as 40% or 0.4; 40% is assumed where left out."""
    measured: str = ""
    """Measured speed in place of --mfu: a file that `diloco bench device` wrote, or the folder of a run."""
    price: str = ""
    """US dollars for one chip (of every kind) and hour, as in $2.5; typical prices where left out."""
    hardware: str = ""
    """A TOML file of chips and links of your own, which go before the shipped ones."""
    law: str = PAPER
    """Where the loss comes from: paper (where left out), article, or a file that `diloco fit --out` wrote."""

    mtbi: str = ""
    """Mean time between interruptions of one chip, as in 1y or 20d; 2111 days, as Llama 3's, where left out."""
    away: str = ""
    """Until a failed server is whole again, as in 2h; 30min where left out."""
    restart: str = ""
    """Until a failure is noticed and the run goes on from its last checkpoint, as in 10min; 5min where left out."""
    checkpoint_every: str = ""
    """Work between two checkpoints of a data-parallel run, as in 30min; the best for a stop of 10 s where left out."""
    spares: int | None = None
    """Idle servers at each site that take a failed one's place, paid for; one for 64 servers where left out."""


_FLAGS = {field.name: "--" + field.name.replace("_", "-") for field in fields(Asked)}
_NAMED = re.compile(rf"(^| and )({'|'.join(_FLAGS)}) is ")


def read_question(asked: Asked) -> Question:
    """Raises BadInput, naming the option and the nearest value that is accepted, for a question that has no answer."""
    try:
        return _speaking(asked)
    except BadInput as error:

        def sites() -> list[Site]:
            return _sites(asked, catalogue(asked.hardware or None))

        raise BadInput(accepted_instead(asked, str(error), sites, _speaking)) from error


def _speaking(asked: Asked) -> Question:
    """The question; refusals name options as they are written."""
    try:
        return _read(asked)
    except BadInput as error:
        raise BadInput(_NAMED.sub(lambda found: f"{found[1]}{_FLAGS[found[2]]} is ", str(error))) from error


def _read(asked: Asked) -> Question:
    known = _about("--hardware", asked.hardware, lambda: catalogue(asked.hardware or None))
    model = _model(asked)
    sites = tuple(_sites(asked, known))
    between = _between(asked, known, sites)
    said = [model_sentence(model)]
    law = _about("--law", asked.law, lambda: open_law(asked.law))
    replicas = _replicas(asked, sites, said)
    tokens = _tokens(asked, law, model, replicas, said)
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
        own_hardware=known.own,
    )
    question = schedule(asked, question, said)
    refuse_what_does_not_fit(asked, question)
    return replace(question, assumed=(*hardware_sentences(question), *said))


def _about(option: str, value: str, read: Callable[[], T]) -> T:
    """`read()`; where it refuses without naming the option, with the option and its value before the reason."""
    try:
        return read()
    except BadInput as error:
        if str(error).startswith(option):
            raise
        raise BadInput(f"{option} is {value!r}: {error}") from error


def _model(asked: Asked) -> ModelShape:
    if not asked.params:
        raise BadInput("--params is missing: give the model's parameters, as in --params 7b")
    if asked.seq_len is not None and asked.seq_len < 1:
        raise BadInput(f"--seq-len is {asked.seq_len}: give 1 token or more, as 2048")
    return get_model(asked.params, asked.seq_len)


def _tokens(asked: Asked, law: LossLaw, model: ModelShape, replicas: int, said: list[str]) -> float:
    if asked.tokens:
        return parse_count(asked.tokens, "--tokens", "140b")
    tokens, why = law.tokens(model.params, replicas)
    said.append(f"{why}: {format_count(tokens)}")
    return tokens


def _sites(asked: Asked, known: Catalogue) -> list[Site]:
    if not asked.sites:
        raise BadInput("--sites is missing: give sites x chips x kind of chip, as in --sites 2x64xh100")
    inside = _about(
        "--inside", asked.inside, lambda: known.parse_link(asked.inside, "--inside") if asked.inside else None
    )
    found: list[Site] = []
    for part in asked.sites.split("+"):
        match = _SITES.fullmatch(part.strip())
        if match is None:
            raise BadInput(f"--sites is {asked.sites!r}: give sites x chips x kind of chip, as 2x64xh100")
        count, chips = int(match[1] or 1), int(match[2])
        near = f"{min(max(count, 1), SITES_MOST)}x{min(max(chips, 1), CHIPS_MOST)}x{match[3]}"
        if not (1 <= count <= SITES_MOST and 1 <= chips <= CHIPS_MOST):
            raise BadInput(f"--sites is {asked.sites!r}, which has {count} x {chips} chips: give {near}")
        site = _about("--sites", asked.sites, lambda: known.site(match[3], chips, inside))  # noqa: B023
        found += [replace(site, chip=_priced(site.chip, asked.price))] * count
    return found


def _priced(chip: Chip, price: str) -> Chip:
    return with_price(chip, parse_usd(price, "--price", "$2.5")) if price else chip


def _between(asked: Asked, known: Catalogue, sites: tuple[Site, ...]) -> Link:
    if asked.between:
        link = _about("--between", asked.between, lambda: known.parse_link(asked.between, "--between"))
        return replace(link, framing=TCP_FRAMING)
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
    return {
        name: _about("--hardware", asked.hardware, lambda: assumed_speed(chip, mfu=mfu))  # noqa: B023
        for name, chip in chips.items()
    }


def _batch(asked: Asked, law: LossLaw, model: ModelShape, replicas: int, tokens: float, said: list[str]) -> float:
    if asked.batch_tokens:
        batch = parse_count(asked.batch_tokens, "--batch-tokens", "512k")
        if batch < replicas:
            near = format_number(min(replicas * model.seq_len, tokens)).replace(",", "")
            many = format_number(batch)
            raise BadInput(f"--batch-tokens is {many}, less than one for each replica: give {near}, a sequence each")
        if batch > tokens:
            run = format_tokens(tokens)
            raise BadInput(f"--batch-tokens is {format_number(batch)}, more than the run's {run}: give at most that")
        return batch
    batch = min(whole_sequences(law.batch_tokens(model.params, replicas), model, replicas), tokens)
    source = law.name if law.law is None else PAPER
    said.append(f"batch: {format_tokens(batch)} a step, by the {source}'s rule for M = {replicas}")
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
