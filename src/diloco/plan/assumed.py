"""What a question took for granted about its model and its hardware, a sentence each."""

from __future__ import annotations

from diloco.plan.hardware import Site
from diloco.plan.model import ModelShape
from diloco.plan.question import Question
from diloco.units import format_bandwidth, format_count, format_things, format_usd


def model_sentence(model: ModelShape) -> str:
    """The shape that a size stands for."""
    size = format_count(model.params)
    name = "" if model.name == size else f" ({model.name})"
    return (
        f"model: {size} parameters{name} in {format_things(model.layers, 'layer')} of width {model.width:,}, sequences "
        f"of {format_things(model.seq_len, 'token')}; {model.source}"
    )


def hardware_sentences(question: Question) -> list[str]:
    """Speeds, prices and links."""
    sites, between = question.cluster.sites, question.cluster.between
    speeds = [speed.how for speed in question.speeds.values()]
    prices = []
    for chip in (site.chip for site in sites):
        known = f"{format_usd(chip.usd_per_h)} an hour ({chip.price_date})" if chip.usd_per_h else None
        prices.append(f"{chip.label}: {known or 'no price: give --price'}")
    links = [_inside(site) for site in sites if site.nodes > 1]
    if len(sites) > 1 and not between.latency_s:
        links.append("the link between sites has no latency, as --between gives none")
    return list(dict.fromkeys([*speeds, *prices, *links]))


def _inside(site: Site) -> str:
    return (
        f"inside a site of {format_things(site.nodes, 'server')}: {site.inside.label or site.inside.name}, "
        f"{format_bandwidth(site.inside.gbit_per_s)} for each chip (--inside)"
    )
