"""Reads a law written as text, such as `A*params^a*replicas^b + floor`. Parsed with `ast`, never evaluated.

The grammar: a sum of terms; a term is a product (or quotient) of at most one amplitude, numbers, and axes raised to an
exponent that is linear in exponent names: `params^(a + b*replicas)`, `tokens^-beta`, `replicas^0.5`. `bend(params)`
multiplies a smooth break into a term. A term without an axis is a floor. Names of axes are the rows' columns; all
other names are coefficients to fit.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Collection
from dataclasses import dataclass, field

from diloco.errors import BadInput
from diloco.laws.arguments import named

BEND = "bend"
_LONGEST = 1000
NUMBERS = (1e-100, 1e100)
"""Sizes that a number in an expression may have, so that products of a few stay finite."""

_EXPONENTS = 20.0
"""Sizes that a number in an exponent may have."""

_NO_NAMES = ("nan", "inf", "infinity")
_KEYWORD = re.compile(rf"\b(?:{'|'.join(keyword.kwlist)})\b")
_MARK = "column_"
"""Before a keyword while Python reads it: `lambda` is a fine name for a column."""

Piece = tuple[float, str, str]
"""coefficient * log(first axis) * second axis (or 1 where it is "")."""


@dataclass
class Term:
    """amplitude * value * exp(sum over exponents and their pieces) * bend."""

    amplitude: str = ""
    value: float = 1.0
    exponents: dict[str, tuple[Piece, ...]] = field(default_factory=dict)
    """Exponent name -> what it multiplies in the logarithm; the name "" holds what is multiplied by 1."""
    bend: str = ""
    """The axis with a break, or ""."""


def parse(expression: str, axes: Collection[str]) -> tuple[Term, ...]:
    """The terms of `expression` over `axes`.

    Raises:
        BadInput: it is no such sum, saying which part is not and why.
    """
    if len(expression) > _LONGEST:
        raise BadInput(
            f"{named('form', expression[:40] + '...')} is longer than {_LONGEST} characters: write a shorter sum"
        )
    try:
        tree = _syntax_tree(expression)
        _refuse_number_names(expression, tree, axes)
        parser = _Parser(expression, frozenset(axes))
        terms = tuple(parser.term(node) for node in parser.summands(tree))
    except SyntaxError as error:
        raise BadInput(
            f"{named('form', expression)} cannot be read ({error.msg}): write it as A*params^a + floor"
        ) from error
    except (RecursionError, MemoryError) as error:
        raise BadInput(
            f"{named('form', expression[:40] + '...')} is nested too deeply: write it as A*params^a + floor"
        ) from error
    amplitudes = [term.amplitude for term in terms if term.amplitude]
    exponents = {name for term in terms for name in term.exponents if name}
    twice = sorted({name for name in amplitudes if amplitudes.count(name) > 1 or name in exponents})
    if twice:
        raise BadInput(
            f"{named('form', expression)} uses {twice[0]} in two roles: give each amplitude a name of its own"
        )
    if not any(term.exponents or term.bend for term in terms):
        raise BadInput(f"{named('form', expression)} has no axis: write it as A*params^a + floor")
    if sum(bool(term.bend) for term in terms) > 1:
        raise BadInput(f"{named('form', expression)} has more than one bend: one axis of one term may have a break")
    if not amplitudes:
        raise BadInput(f"{named('form', expression)} has no amplitude to fit: write it as A*params^a")
    return terms


def _refuse_number_names(expression: str, tree: ast.expr, axes: Collection[str]) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id.lower() in _NO_NAMES and node.id not in axes:
            raise BadInput(
                f"{named('form', expression)} uses {node.id}, which is no number that a law may hold and no name for a "
                "coefficient: give it another name"
            )


def _syntax_tree(expression: str) -> ast.expr:
    """Python's own reading of `expression`, with the language's keywords free to be names of columns."""
    tree = ast.parse(_KEYWORD.sub(_MARK + r"\g<0>", expression.replace("^", "**")).strip(), mode="eval").body
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and keyword.iskeyword(node.id.removeprefix(_MARK)):
            node.id = node.id.removeprefix(_MARK)
    return tree


class _Parser:
    def __init__(self, expression: str, axes: frozenset[str]) -> None:
        self.expression, self.axes = expression, axes

    def refuse(self, node: ast.AST, why: str) -> BadInput:
        return BadInput(f"{named('form', self.expression)}: '{ast.unparse(node).replace('**', '^')}' {why}")

    def summands(self, node: ast.expr) -> list[ast.expr]:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return [*self.summands(node.left), *self.summands(node.right)]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            raise self.refuse(node, "subtracts: terms are at least 0, so put the sign into an exponent")
        return [node]

    def term(self, node: ast.expr) -> Term:
        term = Term()
        self.multiply(term, node, 1)
        if not NUMBERS[0] <= term.value <= NUMBERS[1]:
            raise self.refuse(node, f"has a factor outside {NUMBERS[0]:g} to {NUMBERS[1]:g}: change units")
        return term

    def multiply(self, term: Term, node: ast.expr, sign: int) -> None:
        """Multiply `node` into `term`, or divide by it where `sign` is -1."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
            self.multiply(term, node.left, sign)
            self.multiply(term, node.right, sign if isinstance(node.op, ast.Mult) else -sign)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            self.power(term, self.axis(node.left), node.right, sign)
        elif isinstance(node, ast.Constant) and _is_number(node.value) and node.value >= NUMBERS[0]:
            term.value *= float(node.value) ** sign
        elif isinstance(node, ast.Name) and node.id in self.axes:
            self.add(term, "", (float(sign), node.id, ""))
        elif isinstance(node, ast.Name) and not term.amplitude and sign == 1:
            term.amplitude = node.id
        elif isinstance(node, ast.Name):
            raise self.refuse(node, "is a second amplitude or in a denominator: a term has one amplitude, on top")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == BEND:
            if len(node.args) != 1 or term.bend or sign == -1:
                raise self.refuse(node, "is not a bend: write bend(params) once in a term")
            term.bend = self.axis(node.args[0])
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            raise self.refuse(node, "is negative: terms are at least 0, so put the sign into an exponent")
        else:
            raise self.refuse(
                node, "is not an amplitude, a number of usual size above 0 or an axis to a power: expand it into a sum"
            )

    def axis(self, node: ast.expr) -> str:
        if not isinstance(node, ast.Name) or node.id not in self.axes:
            known = ", ".join(sorted(self.axes))
            raise self.refuse(node, f"is not an axis: the columns are {known}")
        return node.id

    def power(self, term: Term, axis: str, exponent: ast.expr, sign: int) -> None:
        for (name, times), coefficient in self.linear(exponent).items():
            if times and not name:
                raise self.refuse(exponent, f"has {times} without a coefficient of its own: write a*{times}")
            if abs(coefficient) > _EXPONENTS:
                raise self.refuse(exponent, f"has a number beyond {_EXPONENTS:g}: no law has such an exponent")
            self.add(term, name, (sign * coefficient, axis, times))

    def add(self, term: Term, name: str, piece: Piece) -> None:
        term.exponents[name] = (*term.exponents.get(name, ()), piece)

    def linear(self, node: ast.expr) -> dict[tuple[str, str], float]:
        """An exponent as {(coefficient's name or "", axis or ""): factor}."""
        if isinstance(node, ast.Constant) and _is_number(node.value):
            return {("", ""): float(node.value)}
        if isinstance(node, ast.Name):
            return {("", node.id) if node.id in self.axes else (node.id, ""): 1.0}
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            sign = -1.0 if isinstance(node.op, ast.USub) else 1.0
            return {key: sign * value for key, value in self.linear(node.operand).items()}
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            sign = 1.0 if isinstance(node.op, ast.Add) else -1.0
            total = self.linear(node.left)
            for key, value in self.linear(node.right).items():
                total[key] = total.get(key, 0.0) + sign * value
            return total
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            return self.product(node)
        raise self.refuse(node, "is not a sum of coefficients, each alone or times a number or an axis")

    def product(self, node: ast.BinOp) -> dict[tuple[str, str], float]:
        total = {}
        for (name, axis), value in self.linear(node.left).items():
            for (other, times), factor in self.linear(node.right).items():
                if (name and other) or (axis and times):
                    raise self.refuse(node, "multiplies two coefficients or two axes: an exponent is linear in each")
                total[name or other, axis or times] = value * factor
        return total


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value <= NUMBERS[1]
