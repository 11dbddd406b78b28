"""Codecs by name: what a user writes, and the codec that it stands for.

`NAME[:OPTIONS][+ef|-ef]`, for example `int8`, `e3m0-ef`, `topk:0.01:4`; `+ef` and `-ef` switch error feedback.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from diloco.errors import BadInput
from diloco.outer.codecs.base import PAGE, Codec, Key
from diloco.outer.codecs.e3m0 import E3M0
from diloco.outer.codecs.floats import FP16
from diloco.outer.codecs.ints import Ints
from diloco.outer.codecs.raw import Raw
from diloco.outer.codecs.sparse import RandomK, TopK

__all__ = ["CODECS", "Codec", "Key", "get_codec"]

LEAST_BITS, MOST_BITS = 2, 8
"""Of a value that a sparse codec sends; left out, it is the most."""


@dataclass(frozen=True)
class _Family:
    make: Callable[..., Codec]
    feedback: bool
    """Error feedback unless the spec says otherwise."""
    sparse: bool = False


_FAMILIES = {
    "fp32": _Family(lambda name, feedback: Raw(name, feedback, torch.float32), feedback=False),
    "bf16": _Family(lambda name, feedback: Raw(name, feedback, torch.bfloat16), feedback=False),
    "fp16": _Family(FP16, feedback=False),
    "int8": _Family(lambda name, feedback: Ints(name, feedback, bits=8, block=256), feedback=False),
    "int4": _Family(lambda name, feedback: Ints(name, feedback, bits=4, block=128), feedback=True),
    "e3m0": _Family(E3M0, feedback=True),
    "topk": _Family(TopK, feedback=True, sparse=True),
    "randk": _Family(RandomK, feedback=True, sparse=True),
}
CODECS = ("fp32", "bf16", "fp16", "int8", "int4", "e3m0", "topk:DENSITY[:BITS]", "randk:DENSITY[:BITS]")
"""For help texts."""


def get_codec(spec: str) -> Codec:
    """The codec that a spec stands for, with its own scratch: one for each thread that codes.

    Raises BadInput, with the nearest valid spec, for an unknown name and for options that the codec cannot have.
    """
    if not isinstance(spec, str):
        raise BadInput(f"codec is {spec!r}: give the name of one, {', '.join(CODECS)}")
    base, suffix = (spec[:-3], spec[-3:]) if spec.endswith(("+ef", "-ef")) else (spec, "")
    name, *options = base.split(":")
    if name not in _FAMILIES:
        near = next(iter(difflib.get_close_matches(name.lower(), _FAMILIES, n=1, cutoff=0.6)), "fp32")
        near += ":0.01" if _FAMILIES[near].sparse else ""
        raise BadInput(f"codec is {spec!r}: give {near!r}, or another of {', '.join(CODECS)}")
    family = _FAMILIES[name]
    feedback = suffix == "+ef" if suffix else family.feedback
    if name == "fp32" and feedback:
        raise BadInput(f"codec is {spec!r}: fp32 leaves nothing unsent to feed back, give 'fp32'")
    if options and not family.sparse:
        raise BadInput(f"codec is {spec!r}: {name} takes no options, give {name + suffix!r}")
    settings = _sparse_settings(spec, name, options, suffix) if family.sparse else {}
    canonical = ":".join([name, *(str(value) for value in settings.values())])
    canonical += suffix if feedback != family.feedback else ""
    return family.make(canonical, feedback, **settings)


def _sparse_settings(spec: str, name: str, options: list[str], suffix: str) -> dict[str, float | int]:
    if len(options) not in (1, 2):
        raise BadInput(f"codec is {spec!r}: give a density and, if you like, bits a value, as {f'{name}:0.01:8'!r}")
    density, bits = (_number(spec, option) for option in (*options, str(MOST_BITS))[:2])
    near_density = min(max(density, 1 / PAGE), 1.0)
    near_bits = min(max(round(bits), LEAST_BITS), MOST_BITS)
    if (density, bits) != (near_density, near_bits):
        raise BadInput(
            f"codec is {spec!r}: density lies between 1/{PAGE} and 1 and bits are a whole number in {LEAST_BITS} to "
            f"{MOST_BITS}, give {f'{name}:{near_density}:{near_bits}{suffix}'!r}"
        )
    return {"density": near_density, "bits": near_bits}


def _number(spec: str, option: str) -> float:
    try:
        number = float(option)
    except ValueError:
        number = float("nan")
    if not abs(number) < float("inf"):
        raise BadInput(f"codec is {spec!r}: {option!r} is not a number, give one such as 'topk:0.01:8'")
    return number
