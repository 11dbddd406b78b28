"""Methods by the names that tables give them: "Streaming DiLoCo with 1-outer-step overlap, FP4, H=30".

Each attribute is looked for anywhere in a name and taken out of it; a name in which a word is left over is refused, so
that none is misread in silence. docs/plan-model.md lists the words.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, fields
from typing import Any

from diloco.errors import BadInput
from diloco.plan.graph import Method

PAPER_SYNC_EVERY, PAPER_FRAGMENT_LAYERS = 100, 3
PAPER_BITS = 16.0

UNDERSTOOD = (
    "Data-Parallel, DiLoCo or Streaming DiLoCo, with H=30, 1-inner-step or 1-outer-step overlap, tau=5, eager, "
    "delayed, no overlap, FP4 or 4-bit, P=4, 3-layer fragments"
)

_N = r"(?<![\w.])(\d+)"
_END = r"(?![\w]|\.\d)"
_IS = r"\s*[=:]?\s*"
_COMM = r"(?:comm?|comms|communications?)"
_GONE = " ; "
"""Left where an attribute was, so that its neighbours do not become one phrase."""

_SYNC_EVERY = (
    rf"\bh{_IS}(\d+){_END}(?: inner)?(?: steps\b)?",
    rf"\b(?:sync\w* )?every{_IS}{_N}{_END}(?: inner)?(?: steps?\b)?",
    rf"\bsync interval{_IS}{_N}{_END}",
    rf"{_N} local steps?\b",
)
_INNER_STEPS = rf"{_N} inner steps\b"
_MAY_BE_OVERLAP = r"overlap|delay|eager|streaming|\btau|\u03c4|\bouter step"
"""Beside one of these, inner steps may be an overlap; beside none of them they are H."""
_HYPHENED_H = rf"(?<=diloco)-(\d{{2,}}){_END}"
"""DiLoCo-30. A single digit may be the replicas."""
_MEMBERS = r"(?:model )?(?:replicas?|workers?)"
_REPLICAS = (rf"\bm{_IS}(\d+){_END}(?: {_MEMBERS}\b)?", rf"(?:\bk{_IS}|(?<![\w.=:]))(\d+) {_MEMBERS}\b",
             rf"\b(?:replicas|workers){_IS}{_N}{_END}")  # fmt: skip
_MIXING = rf"(?:\balpha|\b\u03b1|\bmixing(?: (?:factor|weight|coefficient))?)(?: of)?{_IS}(\d*\.?\d+){_END}"
_FRAGMENT_LAYERS = (
    rf"{_N} ?layers?(?: per| a| in each)? fragments?\b",
    rf"\bfragments? layers?{_IS}{_N}{_END}",
    rf"\bfragment sizes?(?: of)?{_IS}{_N}{_END}(?: layers?\b)?",
    rf"\bfragments? of {_N} layers?\b(?: each\b)?",
)
_FRAGMENTS = (rf"\bp{_IS}(\d+){_END}", rf"{_N} fragments?\b", rf"\bfragments{_IS}{_N}{_END}")
_BITS = (
    rf"\b(?:mx|nv)?(?:bf|fp|nf|f|u?int|b?float) ?(\d+){_END}",
    r"(?<![\w.])(\d+(?:\.\d+)?) ?bits?\b(?: per param(?:eter)?s?\b)?",
    rf"\bbits?(?: per param(?:eter)?s?)?\s*[=:]\s*(\d+(?:\.\d+)?){_END}",
)
_MINIFLOAT = r"\be(\d)m(\d)(?:fn)?\b"
_NOT_MORE = r"(?![^;]*\b(?:and|or|nor|overlap\w*)\b)"
"""So that no negation reaches further than its word."""
_NO_OVERLAP = (
    rf"\b(?:without|no|non|not|0)(?: any)?(?: {_COMM})? ?overlap\w*(?: {_COMM}\b)?(?! (?:and|or|nor)\b)",
    r"\bunoverlapp\w+",
    rf"\boverlap\w*{_IS}(?:none|off)\b",
    rf"\b(?:without|no|non|not|0)(?: any)? ?delay(?:ed|s)?\b{_NOT_MORE}",
)
_NOT_EAGER = rf"\bnon ?eager(?:ly)?\b|\b(?:without|no|not)(?: any)? eager(?:ly)?\b{_NOT_MORE}"
"""Says nothing of an overlap: a delayed update is not eager either."""
_OVERLAP_COUNTED = (
    rf"\b(?:overlap\w*|delay\w*|eager)(?: of| by| for)?{_IS}{_N}{_END}(?: (inner|outer))?(?: steps?\b)?",
    rf"\b(?:tau|τ)(?: of)?{_IS}(\d+){_END}(?: (inner|outer))?(?: steps?\b)?",
    rf"{_N} (?=inner|outer|steps?\b)(inner|outer)?(?: ?steps?)?\b",
)
_OVERLAP_ONE = r"\b(inner|outer) steps?\b"
_OUTER_WORDS = r"\b(?:eager(?:ly)?|delayed|delay)\b"
_OVERLAP_WORD = r"\boverlap(?:s|ped|ping)?\b"
_DATA_PARALLEL = r"\b(?:(?:fully sharded |distributed )?data ?parallel(?:ism)?|ddp|dp|fsdp)\b"
_ALL_REDUCE = r"\ball ?reduce\b"
_DILOCO = r"\b(?:(?:open ?)?diloco|muloco|local ?sgd)\b"
"""And its relatives that send as much as often."""
_NOT_STREAMING = r"\b(?:non|not|without|no) ?streaming\b"
_CONSECUTIVE, _STRIDED = r"\b(?:sequential|consecutive)\b(?: pattern\b)?", r"\bstrided\b(?: pattern\b)?"
_QUANTIZED = r"\b(?:quanti[sz](?:ed|ation|ing)|compress(?:ed|ion))\b"
_NOT_QUANTIZED = r"\b(?:un|(?:no|non|not|without) ?(?:gradient )?)(?:quanti[sz](?:ed|ation)|compress(?:ed|ion))\b"
_OPTIMIZER = r"(?:adamw?|muon)"
_WIDTH = r"(?:\d+[ -]?bits?|(?:bf|fp|nf|f|int)-?\d+)"
_OPTIMIZER_BITS = rf"{_WIDTH}[ -]+{_OPTIMIZER}\b|\b{_OPTIMIZER}[ -]*\(?[ -]*{_WIDTH}\b"
_FILLER = frozenset(
    "with and of for to using in at the a an comm com comms communication communications method naive vanilla plain "
    "standard baseline ours our variant update updates gradient gradients compute computation sync synchronous "
    "adam adamw muon sgd nesterov momentum".split()
)
_MARKS = ".:*-\u2020\u2021\u00a7\u00b6"
"""Full stops, hyphens and the signs of footnotes."""
_RAISED = r"[\u00b2\u00b3\u00b9\u2070-\u207f]+"
"""Signs of footnotes too, but for an exponent."""
_CITATION = (
    r"\[\s*\d+(?:\s*[,;\u2013-]\s*\d+)*\s*\]"
    r"|[^\W\d][\w'\u2019-]* et al\b\.?(?:,? *[(\[]?(?:19|20)\d\d[a-z]?\b)?"
)
_COUNTING = {word: str(n) for n, word in enumerate("zero one two three four five six seven eight nine ten".split())}


@dataclass(frozen=True)
class MethodName:
    """What a name says; None where it says nothing."""

    data_parallel: bool = False
    streaming: bool = False
    sync_every: int | None = None
    overlap: tuple[int, str] | None = None
    """A number of inner or outer steps."""
    bits_per_param: float | None = None
    fragment_layers: int | None = None
    fragments: int | None = None
    strided: bool | None = None


def paper_method(name: str, sync_every: int = PAPER_SYNC_EVERY, **settings: Any) -> Method:
    """The method that a table calls `name`.

    Args:
        sync_every: H where the name has none.
        settings: other fields of `Method`, likewise where the name says nothing of them. Of data parallelism only
            bits_per_param and layerwise are taken.

    Raises:
        BadInput: a word of the name is not understood or contradicts another, or a setting is no field of `Method`.
    """
    known = [f.name for f in fields(Method)]
    for key in settings:
        if key not in known:
            raise BadInput(f"{key} is no setting of a method: give one of {', '.join(known)}")
    said = read_name(name)
    given = {key: value for key, value in settings.items() if value is not None}
    bits = said.bits_per_param or given.get("bits_per_param", PAPER_BITS)
    layerwise = given.get("layerwise", True)
    if said.data_parallel:
        return Method(bits_per_param=bits, layerwise=layerwise)
    every = said.sync_every if said.sync_every is not None else sync_every
    overlap_steps = given.get("overlap_steps", 0)
    if said.overlap is not None:
        overlap_steps = said.overlap[0] * (every if said.overlap[1] == "outer" else 1)
    return Method(
        sync_every=every,
        overlap_steps=overlap_steps,
        bits_per_param=bits,
        strided=said.strided if said.strided is not None else given.get("strided", True),
        even_gaps=given.get("even_gaps", True),
        layerwise=layerwise,
        **_parts(said, given),
    )


def _parts(said: MethodName, given: dict[str, Any]) -> dict[str, int | None]:
    """The model as a whole for DiLoCo; fragments as the name, or else the settings, or else the papers have them."""
    keys = ("fragments", "fragment_layers")
    for parts in ([getattr(said, key) for key in keys], [given.get(key) if said.streaming else None for key in keys]):
        if any(parts):
            return dict(zip(keys, parts, strict=True))
    return {"fragment_layers": PAPER_FRAGMENT_LAYERS if said.streaming else None}


def read_name(name: str) -> MethodName:
    """Raises BadInput for a name with a word that is not understood, or with two that contradict one another."""
    text = _Text(name)
    if re.search(_OPTIMIZER_BITS, text.name.lower()):
        raise text.refused("bits beside an optimizer may be its own or those sent: write the optimizer elsewhere")
    text.one("replicas", _REPLICAS)
    text.take(_MIXING)
    none = bool([found for pattern in _NO_OVERLAP for found in text.take(pattern)])
    text.take(_NOT_EAGER)
    inner = () if re.search(_MAY_BE_OVERLAP, text.left) else (_INNER_STEPS,)
    sync_every = text.one("H", (*_SYNC_EVERY, *inner, _HYPHENED_H))
    fragment_layers = text.one("layers of a fragment", _FRAGMENT_LAYERS)
    fragments = text.one("fragments", _FRAGMENTS)
    bits = _bits(text)
    text.take(r"\bouter (?:pseudo )?(?=gradients?\b|updates?\b)")
    not_streaming = bool(text.take(_NOT_STREAMING))
    overlap = _overlap(text, none)
    data_parallel, streaming = bool(text.take(_DATA_PARALLEL)), bool(text.take(r"\bstreaming(?=\b|diloco\b)"))
    diloco, all_reduce = bool(text.take(_DILOCO)), bool(text.take(_ALL_REDUCE))
    data_parallel |= all_reduce and not (diloco or streaming or fragments or fragment_layers)
    consecutive, strided = bool(text.take(_CONSECUTIVE)), bool(text.take(_STRIDED))
    text.refuse_the_rest()
    if data_parallel:
        other = {"H": sync_every not in (None, 1), "overlap": overlap and overlap[0],
                 "fragments": fragments or fragment_layers}  # fmt: skip
        if diloco or streaming:
            raise text.refused("it is both data parallel and DiLoCo: leave one of the two out")
        if any(other.values()):
            has = next(name for name, value in other.items() if value)
            raise text.refused(f"data parallelism has no {has} here: leave it out, or write DiLoCo")
        return MethodName(data_parallel=True, bits_per_param=bits)
    if fragments is not None and fragment_layers is not None:
        raise text.refused("fragments are given by their number and by their layers: leave one of them out")
    if not_streaming and (streaming or fragments or fragment_layers):
        raise text.refused("it is both streaming and not: leave one of them out")
    if not (diloco or streaming or overlap and overlap[0] or fragments or fragment_layers):
        raise text.refused("it names no method: write Data-Parallel, DiLoCo or Streaming DiLoCo")
    if consecutive and strided:
        raise text.refused("fragments are both strided and consecutive: leave one of them out")
    pattern = strided if consecutive or strided else None
    whole = not_streaming or (diloco and not (streaming or fragments or fragment_layers))
    return MethodName(False, not whole, sync_every, overlap, bits, fragment_layers, fragments, pattern)


def _bits(text: _Text) -> float | None:
    widths = {1 + int(e) + int(m) for e, m in text.take(_MINIFLOAT)}
    widths |= {float(found) for pattern in _BITS for (found,) in text.take(pattern)}
    bits = text.only("bits", widths)
    if text.take(_NOT_QUANTIZED) and bits not in (None, PAPER_BITS):
        raise text.refused(f"it is not quantized and has {bits:g} bits: leave one of the two out")
    if bits is not None:
        text.take(_QUANTIZED)
    return bits


def _overlap(text: _Text, none: bool) -> tuple[int, str] | None:
    """Steps, and whether they are inner or outer ones. `none`: the name has said that there is no overlap."""
    said = text.left
    free = [(int(n), unit) for pattern in _OVERLAP_COUNTED[:2] for n, unit in text.take(pattern)]
    counted = [(int(n), unit) for n, unit in text.take(_OVERLAP_COUNTED[2])]
    counted += [(1, unit) for (unit,) in text.take(_OVERLAP_ONE)]
    outer, word = bool(text.take(_OUTER_WORDS)), bool(text.take(_OVERLAP_WORD))
    for n, unit in counted:
        if unit != "outer" and not (word or outer or (n, unit) == (1, "inner")):
            raise text.refused(f"{n} steps may be H or an overlap: write H={n} or {n}-inner-step overlap")
    if "eager" in said and any(unit != "outer" for _, unit in (*free, *counted)):
        raise text.refused("eager updates overlap whole outer steps: write 1 outer step eager")
    if "delay" in said and any(n and not unit for n, unit in (*free, *counted)):
        raise text.refused("steps of a delay may be inner or outer ones: write 1-outer-step delayed, or tau=5")
    found = {(n, "outer" if unit == "outer" else "inner") for n, unit in (*free, *counted)}
    if len(found) > 1 or (none and (any(n for n, _ in found) or outer or word)):
        raise text.refused("it has more than one overlap: leave all but one out")
    if found:
        return found.pop()
    if outer:
        return (1, "outer")
    return (0, "inner") if none else (1, "inner") if word else None


class _Text:
    """A name from which attributes are taken."""

    def __init__(self, name: str) -> None:
        self.name = str(name)
        self.left = _plain(self.name)

    def take(self, pattern: str) -> list[tuple[str, ...]]:
        """The groups of all places where `pattern` is, which are gone afterwards."""
        found = [tuple(match.groups()) or (match[0],) for match in re.finditer(pattern, self.left)]
        self.left = re.sub(pattern, _GONE, self.left)
        return found

    def one(self, what: str, patterns: tuple[str, ...]) -> int | None:
        """The whole number that stands in any of `patterns`."""
        return self.only(what, {int(found) for pattern in patterns for (found,) in self.take(pattern)})

    def only(self, what: str, found: set[Any]) -> Any:
        """Raises BadInput where there are two."""
        if len(found) > 1:
            raise self.refused(f"it gives {what} as {' and as '.join(f'{n:g}' for n in sorted(found))}: leave one out")
        return next(iter(found), None)

    def refuse_the_rest(self) -> None:
        """Raises BadInput for a word that nobody has taken."""
        words = [word.strip(_MARKS) for word in re.findall(r"[^\s;]+", self.left)]
        words = [word for word in words if word and word not in _FILLER]
        if words:
            raise self.refused(f"{words[0]!r} is not understood: write {UNDERSTOOD}, or leave it out")

    def refused(self, why: str) -> BadInput:
        return BadInput(f"method is {self.name!r}: {why}")


def _plain(name: str) -> str:
    """In small letters, hyphens inside words as blanks, other punctuation as semicolons, numbers as digits."""
    text = re.sub(rf"(?<=\d)(?={_RAISED})", "^", name)
    text = re.sub(rf"(?<!\^){_RAISED}", " ", text)
    text = re.sub(_CITATION, _GONE, unicodedata.normalize("NFKC", text).lower())
    text = re.sub(r"\bw/o\b", "without", text)
    text = re.sub(r"\bw[/.]", "with ", text)
    text = re.sub(r"\\(?=tau|alpha)|\$", "", text)
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"\s*/\s*(?=fragment)|\bper[ -](?=fragment)", " per ", text)
    text = re.sub(r"(?<=\w)(?<!diloco(?=-\d))[-_\u2010-\u2015\u2212]+(?=\w)", " ", text)
    text = re.sub(r"(?<=\s)[-\u2010-\u2015](?=\s)|[(),\[\]{}/+&|\"']", _GONE, text)
    text = re.sub(r"[a-z]+", lambda word: _COUNTING.get(word[0], word[0]), text)
    return re.sub(r"\s+", " ", text).strip()
