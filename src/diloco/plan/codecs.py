"""What an outer gradient weighs on the wire, by codec name.

`diloco.outer` has the codecs themselves; a test holds these sizes against theirs.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass

from diloco.errors import BadInput

PAGE_ELEMENTS = 4096
"""Of which a sparse codec keeps a share."""

_INDEX_BITS, _SPARSE_BITS, _RANGE_BITS = 12, 8, 64


@dataclass(frozen=True)
class CodecCost:
    """A codec as the clock sees it."""

    name: str
    bits_per_param: float
    """Payload, scales and indices included."""
    gathers: bool = False
    """Every replica sends its payload to all others, as sums of sparse ones grow dense."""

    def payload_bits(self, params: float) -> float:
        return params * self.bits_per_param

    def factor(self, members: int) -> float:
        """Payloads that each of `members` sends in a merge (docs/wire.md, Reductions)."""
        return float(members - 1) if self.gathers else 2 * (members - 1) / members


_DENSE_BITS = {  # a parameter, with the scales of blocks of 128 or 256
    "fp32": 32.0,
    "bf16": 16.0,
    "fp16": 16 + 8 / 256,
    "int8": 8 + 32 / 256,
    "int4": 4 + 32 / 128,
    "e3m0": 4 + 8 / 128,
}
_SPARSE = ("topk", "randk")


def codec_cost(spec: str) -> CodecCost:
    """The cost of a codec as `--codec` names it: `bf16`, `int8`, `e3m0-ef`, `topk:0.01:4`.

    Raises BadInput, with the nearest valid name, for anything else.
    """
    base = spec.strip().lower()
    feedback = not base.endswith("-ef")
    base = base.removesuffix("+ef").removesuffix("-ef")
    name, *options = base.split(":")
    if name in _DENSE_BITS and not options:
        return CodecCost(spec, _DENSE_BITS[name])
    if name not in _SPARSE or not 1 <= len(options) <= 2:
        names = [*_DENSE_BITS, *(f"{sparse}:0.01" for sparse in _SPARSE)]
        near = next(iter(difflib.get_close_matches(base, names, n=1, cutoff=0.4)), "e3m0")
        raise BadInput(f"codec is {spec!r}: give {near!r}, or another of {', '.join(names)}")
    density, value_bits = _number(options[0]), _number(options[1]) if len(options) == 2 else _SPARSE_BITS
    if not (1 / PAGE_ELEMENTS <= density <= 1 and value_bits in range(2, _SPARSE_BITS + 1)):
        raise BadInput(f"codec is {spec!r}: density lies in 1/{PAGE_ELEMENTS} to 1, bits in 2 to 8, as {name}:0.01:8")
    kept = max(1, math.ceil(PAGE_ELEMENTS * density - 1e-9))
    element_bits = value_bits + (_INDEX_BITS if name == "topk" else 0)
    bits = (kept * element_bits + _RANGE_BITS) / PAGE_ELEMENTS
    return CodecCost(spec, bits, gathers=name == "topk" or not feedback)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
