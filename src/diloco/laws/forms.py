"""The functional forms: one small table, each row an expression, bounds and a source."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from diloco.errors import BadInput
from diloco.laws.arguments import named
from diloco.laws.axes import AXES, INPUTS, SIZE_AXES, TOKENS_PER_PARAM
from diloco.laws.expressions import Term, parse

EXPONENT_LIMIT = 4.0
"""No exponent beyond this: published ones stay under 1.5."""

BEND_PARAMETERS = ("bend_change", "bend_log_at", "bend_log_width")
_FALLS = (0.0, EXPONENT_LIMIT)


@dataclass(frozen=True)
class Form:
    """A sum of terms, each an amplitude times powers of axes; see `expressions` for the grammar.

    Amplitudes are at least 0. Exponents are free within +-4 unless `bounds` says otherwise.
    """

    name: str
    expression: str
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    source: str = ""
    columns: tuple[str, ...] = AXES

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        return parse(self.expression, self.columns)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        used = {}
        for term in self.terms:
            for pieces in term.exponents.values():
                used |= {name: None for _, axis, times in pieces for name in (axis, times) if name}
            if term.bend:
                used[term.bend] = None
        return tuple(used)

    @cached_property
    def exponents(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for term in self.terms for name in term.exponents if name))

    @cached_property
    def amplitudes(self) -> tuple[str, ...]:
        """One per term; "" where the term's factor is a number in the expression."""
        return tuple(term.amplitude for term in self.terms)

    @property
    def bend(self) -> int | None:
        """Index of the term that has a break."""
        return next((k for k, term in enumerate(self.terms) if term.bend), None)

    @property
    def floor(self) -> int | None:
        """Index of the term without an axis."""
        return next((k for k, term in enumerate(self.terms) if not term.exponents and not term.bend), None)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of all coefficients that can be fitted."""
        bend = BEND_PARAMETERS if self.bend is not None else ()
        return (*(name for name in self.amplitudes if name), *self.exponents, *bend)

    @property
    def size_axis(self) -> str:
        return next((axis for axis in SIZE_AXES if axis in self.axes), self.axes[0])

    def coefficient_keys(self) -> dict[str, list[tuple[str, float]]]:
        """Reported key -> (coefficient, sign): `A`, an exponent under its axis's name, `floor`, the rest as named."""
        keys: dict[str, list[tuple[str, float]]] = {}
        leading = next((name for k, name in enumerate(self.amplitudes) if name and k != self.floor), "")
        for k, name in enumerate(self.amplitudes):
            if name:
                key = "floor" if k == self.floor else "A" if name == leading else name
                keys[key] = [(name, 1.0)]
        for term in self.terms:
            for name, pieces in term.exponents.items():
                for factor, axis, times in pieces if name else ():
                    key = f"{axis}*{times}" if times else axis
                    taken = key in keys and keys[key][0][0] != name
                    keys[f"{key}:{name}" if taken else key] = [(name, factor)]
        if self.bend is not None:
            keys |= {name: [(name, 1.0)] for name in BEND_PARAMETERS}
        return keys

    def with_axis(self, old: str, new: str) -> Form:
        """The same form over another column, as `params_body` for `params`."""
        expression = re.sub(rf"\b{re.escape(old)}\b", new, self.expression)
        return Form(f"{self.name} ({new})", expression, self.bounds, self.source, tuple({*self.columns, new}))


def power(axes: Sequence[str], floor: bool = True) -> Form:
    """A product of signed powers of `axes`, with a floor or without."""
    name = "power-floor" if floor else "power"
    product = "*".join(f"{axis}^{_exponent_name(i)}" for i, axis in enumerate(axes))
    expression = f"A*{product}" + (" + floor" if floor else "")
    source = "arXiv:2503.09799 Table 13 rows 1 and 2, over any axes"
    return Form(name, expression, source=source, columns=tuple({*AXES, *axes}))


def _exponent_name(index: int) -> str:
    return "abcdefgh"[index] if index < 8 else f"e{index}"


def _table() -> dict[str, Form]:
    """The named forms. All but one fit the same whatever the units: `coupled-floor` has replicas in the exponent of
    params, so that params counted in millions are another law than params counted in ones."""
    falls = {"alpha": _FALLS, "beta": _FALLS}
    chinchilla, paper = "arXiv:2203.15556 eq. 2", "arXiv:2503.09799 Table 13"
    rows = (
        Form(
            "coupled-floor", "A*params^(a + b*replicas) + floor", {}, f"{paper} row 3; depends on the units of params"
        ),
        Form("sum-floor", "A*params^a + B*replicas^b + floor", {}, f"{paper} row 4"),
        Form("article", "alpha*params^-beta*replicas^-gamma + L_inf", {}, "the article's law, its own sign convention"),
        Form("chinchilla", "A*params^-alpha + B*tokens^-beta + E", falls, chinchilla),
        Form("tied", "A*params^-alpha + B*tokens^-alpha + E", falls, f"{chinchilla} with one exponent"),
        Form(
            "chinchilla-replicas",
            "A*params^-alpha + B*tokens^-beta*replicas^gamma + E",
            falls,
            f"{chinchilla}, with replicas as a discount on the tokens",
        ),
        Form(
            "saturating",
            f"A*params^-alpha + B*params^-alpha*{TOKENS_PER_PARAM}^-beta + E",
            falls,
            "gains from tokens per parameter saturate; arXiv:2403.08540 ties exponents likewise",
        ),
        Form("broken", "A*params^a*bend(params) + floor", {}, "arXiv:2210.14891, one break"),
    )
    return {form.name: form for form in rows}


FORMS = _table()
GENERAL = ("power", "power-floor")
"""Forms over whichever axes vary in the rows."""


def names() -> list[str]:
    return [*GENERAL, *FORMS]


def _nearest(word: str) -> str:
    near = difflib.get_close_matches(word.lower(), names(), n=3, cutoff=0.5)
    others = ", ".join(name for name in names() if name not in near)
    return f"the nearest are {', '.join(near)}, others {others}" if near else f"use one of {others}"


def resolve(form: str | Form, varying: Sequence[str], columns: Mapping[str, str] | Collection[str] = ()) -> Form:
    """A form by name, from an expression, or as it is.

    Args:
        varying: the axes that `power` and `power-floor` take.
        columns: further names that an expression may use as axes; a mapping says which axis each stands for.

    Raises:
        BadInput: neither a known name nor a readable expression.
    """
    if isinstance(form, Form):
        return form
    if form in FORMS:
        return FORMS[form]
    if form in GENERAL:
        if not varying:
            raise BadInput(
                f"{named('form', form)} needs an axis that varies: none of {', '.join(INPUTS)} does in these rows"
            )
        return power(varying, floor=form == "power-floor")
    if not any(mark in form for mark in "*^+/( "):
        raise BadInput(f"{named('form', form)} is not known: {_nearest(form)}, or an expression over columns")
    aliases = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
    form = unicodedata.normalize("NFKC", form)
    parsed = Form("expression", form, columns=tuple({*AXES, *aliases, *aliases.values()}))
    for axis in parsed.axes:
        if aliases.get(axis, axis) != axis:
            renamed = parsed.with_axis(axis, aliases[axis])
            parsed = Form("expression", renamed.expression, columns=renamed.columns)
    return parsed
