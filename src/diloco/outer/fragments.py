"""Fragments: which parameters sync together (Streaming DiLoCo, arXiv 2501.18512, section 2).

A fragmentation splits the names of the trained tensors into groups; each group then has its own place in the sync
interval, so that a sync of the whole model is spread over it. `Sequential` and `Strided` group a model's blocks, by
default 3 to a fragment as in the paper; `Balanced` and `Named` work for models without blocks.
"""

from __future__ import annotations

import difflib
import fnmatch
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from diloco.errors import BadInput
from diloco.outer.tensors import clean_name, roster

REST = "*"
_SPECS = "whole, sequential:3, strided:3, balanced:4"


@runtime_checkable
class Fragmentation(Protocol):
    """How a model is split. An implementation of your own needs a `repr` that is equal on every machine."""

    def split(self, model: nn.Module, trained: dict[str, Tensor]) -> list[list[str]]:
        """Groups of names of `trained` (cleaned and sorted, see `tensors.roster`), every name in exactly one.

        Raises BadInput when the model cannot be split like this.
        """


@dataclass(frozen=True)
class Whole:
    """One fragment: plain DiLoCo."""

    def split(self, model: nn.Module, trained: dict[str, Tensor]) -> list[list[str]]:
        return [sorted(trained)]


@dataclass(frozen=True)
class Sequential:
    """Consecutive blocks: fragment p holds blocks p * blocks to (p + 1) * blocks - 1."""

    blocks: int = 3

    def __post_init__(self) -> None:
        _require_count("blocks", self.blocks)

    def split(self, model: nn.Module, trained: dict[str, Tensor]) -> list[list[str]]:
        return _by_block(self, model, trained, lambda block, fragments: block // self.blocks)


@dataclass(frozen=True)
class Strided:
    """Interleaved blocks: block i belongs to fragment i mod P, with P = ceil(all blocks / blocks)."""

    blocks: int = 3

    def __post_init__(self) -> None:
        _require_count("blocks", self.blocks)

    def split(self, model: nn.Module, trained: dict[str, Tensor]) -> list[list[str]]:
        return _by_block(self, model, trained, lambda block, fragments: block % fragments)


@dataclass(frozen=True)
class Balanced:
    """`count` fragments of about equal bytes, by greedy bin packing: the largest tensor first, into the emptiest."""

    count: int = 4

    def __post_init__(self) -> None:
        _require_count("count", self.count)

    def split(self, model: nn.Module, trained: dict[str, Tensor]) -> list[list[str]]:
        if self.count > len(trained):
            raise BadInput(
                f"fragments are {describe(self)} but the model has {len(trained)} trained tensors: give at most "
                f"balanced:{len(trained)}"
            )
        groups: list[list[str]] = [[] for _ in range(self.count)]
        loads = [0] * self.count
        for name in sorted(trained, key=lambda n: (-trained[n].nbytes, n)):
            lightest = min(range(self.count), key=lambda p: (loads[p], len(groups[p]), p))
            groups[lightest].append(name)
            loads[lightest] += trained[name].nbytes
        return [sorted(group) for group in groups]


@dataclass(frozen=True)
class Named:
    """The user's own groups. An entry is a tensor's name, a module's name (all below it) or a glob ("layers.0.*");
    the entry "*" takes all tensors that no other entry names."""

    lists: Sequence[Sequence[str]]

    def __post_init__(self) -> None:
        if not self.lists or not all(_is_list(group) and group for group in self.lists):
            raise BadInput(f"fragments are {self.lists!r}: give a list of lists of names, none of them empty")
        entries = [entry for group in self.lists for entry in group]
        if not all(isinstance(entry, str) and entry for entry in entries):
            raise BadInput(f"fragments are {self.lists!r}: every name must be a string that is not empty")
        if entries.count(REST) > 1:
            raise BadInput(f"fragments name {REST!r} {entries.count(REST)} times: only one group can take the rest")
        object.__setattr__(self, "lists", tuple(tuple(group) for group in self.lists))

    def split(self, model: nn.Module, trained: dict[str, Tensor]) -> list[list[str]]:
        owner: dict[str, int] = {}
        for index, group in enumerate(self.lists):
            for name in (name for entry in group if entry != REST for name in _matching(entry, trained)):
                if owner.setdefault(name, index) != index:
                    raise BadInput(f"fragments {owner[name]} and {index} both name {name!r}: give it to one of them")
        rest = sorted(trained.keys() - owner.keys())
        takes_rest = next((index for index, group in enumerate(self.lists) if REST in group), None)
        if rest and takes_rest is None:
            raise BadInput(
                f"fragments name {len(owner)} of {len(trained)} trained tensors, and none names "
                f"{_first_few(rest)}: add a last group [{REST!r}] to take the rest"
            )
        if not rest and takes_rest is not None:
            raise BadInput(f"fragment {takes_rest} takes the rest with {REST!r} but nothing is left: drop {REST!r}")
        owner.update((name, takes_rest) for name in rest)
        return [sorted(name for name in owner if owner[name] == index) for index in range(len(self.lists))]


class Stage:
    """What one pipeline stage has of a split of the whole model, so that all stages have equally many fragments.

    `whole`: the unsplit model, whose parameters' names the stages keep; it may be on the meta device.
    """

    def __init__(self, fragments: object, whole: nn.Module) -> None:
        self.of = as_fragmentation(fragments)
        self.groups = fragment_names(self.of, whole, roster(whole).trained)

    def __repr__(self) -> str:
        return describe(self.of)

    def split(self, model: nn.Module, trained: dict[str, Tensor]) -> list[list[str]]:
        return [[name for name in group if name in trained] for group in self.groups]


_BY_NAME: dict[str, type[Sequential | Strided | Balanced]] = {
    "sequential": Sequential,
    "strided": Strided,
    "balanced": Balanced,
}


def as_fragmentation(value: object) -> Fragmentation:
    """A fragmentation from itself, None (`Whole`), lists of names (`Named`) or a spec: "whole", "strided:3" and so on.

    Raises BadInput for anything else.
    """
    if value is None:
        return Whole()
    if isinstance(value, str):
        return _parse(value)
    if _is_list(value):
        return Named(value)
    if isinstance(value, Fragmentation) and not isinstance(value, type):
        if type(value).__repr__ is object.__repr__:
            raise BadInput(
                f"fragments are a {type(value).__name__} without a repr of its own, by which replicas compare "
                "settings: make it a frozen dataclass"
            )
        return value
    raise BadInput(f"fragments are {value!r}: give one of {_SPECS}, or a list of lists of names")


def describe(fragmentation: Fragmentation) -> str:
    """One line, equal on two machines exactly when the fragmentation is: the spec where there is one."""
    if isinstance(fragmentation, Whole):
        return "whole"
    if isinstance(fragmentation, Named):
        return f"named:{json.dumps(fragmentation.lists)}"
    for name, kind in _BY_NAME.items():
        if isinstance(fragmentation, kind):
            return f"{name}:{_number(fragmentation)}"
    return " ".join(repr(fragmentation).split())


def fragment_names(fragmentation: Fragmentation, model: nn.Module, trained: dict[str, Tensor]) -> list[list[str]]:
    """`fragmentation.split`, with proof that every trained tensor is in exactly one group and no group is empty (but a
    pipeline stage's may be).

    Raises BadInput where a fragmentation of the user's own falls short of that.
    """
    groups = [sorted(group) for group in fragmentation.split(model, trained)]
    names = sorted(name for group in groups for name in group)
    if not (all(groups) or isinstance(fragmentation, Stage)) or names != sorted(trained):
        wrong = sorted((set(names) ^ set(trained)) | {name for name in names if names.count(name) > 1})
        what = f"{_first_few(wrong)} not in exactly one group" if wrong else "an empty group"
        raise BadInput(f"fragments are {describe(fragmentation)}, whose split leaves {what}: mend its split()")
    return groups


def _parse(spec: str) -> Fragmentation:
    name, colon, value = spec.strip().lower().partition(":")
    if name == "whole" and not colon:
        return Whole()
    if name in _BY_NAME and not colon:
        return _BY_NAME[name]()
    if name in _BY_NAME and value.isdecimal():
        return _BY_NAME[name](int(value))
    near = difflib.get_close_matches(name, ["whole", *_BY_NAME], n=1)
    default = "" if near in ([], ["whole"]) else f":{_number(_BY_NAME[near[0]]())}"
    hint = f"did you mean {near[0] + default!r}? " if near else ""
    raise BadInput(f"fragments are {spec!r}: {hint}give one of {_SPECS}")


def _number(fragmentation: Sequential | Strided | Balanced) -> int:
    return fragmentation.count if isinstance(fragmentation, Balanced) else fragmentation.blocks


def _require_count(field: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadInput(f"fragments have {field}={value!r}: it must be a whole number of at least 1")


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _first_few(names: Sequence[str], few: int = 3) -> str:
    more = f" and {len(names) - few} more" if len(names) > few else ""
    return ", ".join(repr(name) for name in names[:few]) + more


def _matching(entry: str, trained: Iterable[str]) -> list[str]:
    found = [n for n in trained if n == entry or n.startswith(entry + ".") or fnmatch.fnmatchcase(n, entry)]
    if not found:
        names = sorted(set(trained) | {n[: m.start()] for n in trained for m in re.finditer(r"\.", n)})
        near = difflib.get_close_matches(entry, names, n=3, cutoff=0) or names[:3]
        raise BadInput(f"fragments name {entry!r}, which matches no trained tensor: the nearest are {_first_few(near)}")
    return found


# -- blocks


def _by_block(
    fragmentation: Sequential | Strided, model: nn.Module, trained: dict[str, Tensor], place: Callable[[int, int], int]
) -> list[list[str]]:
    """Groups by `place(block, fragments)`. What comes before the blocks joins the first, what comes after the last."""
    root = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    blocks = find_blocks(root, trained)
    if not blocks:
        raise BadInput(
            f"fragments are {describe(fragmentation)} but the model has no blocks (no nn.ModuleList or nn.Sequential "
            f"with trained tensors): use {describe(Balanced(min(Balanced().count, len(trained))))} or lists of names"
        )
    fragments = -(-len(blocks) // fragmentation.blocks)
    groups: list[list[str]] = [[] for _ in range(fragments)]
    block_of = {name: index for index, names in enumerate(blocks) for name in names}
    last = 0
    for name in (clean_name(n) for n, _ in root.named_parameters()):
        if name in block_of:
            last = fragments - 1
            groups[place(block_of[name], fragments)].append(name)
        elif name in trained:
            groups[last].append(name)
    return [sorted(group) for group in groups]


def find_blocks(root: nn.Module, trained: Iterable[str]) -> list[list[str]]:
    """The trained names of each of the model's blocks, in order; empty when it has none.

    The blocks are the children of the longest nn.ModuleList or nn.Sequential. A list that occurs again elsewhere, under
    the same name up to numbers and as long, is part of a block (the experts of every layer) and does not count.
    """
    wanted, lists = set(trained), {}
    for path, module in root.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential):
            prefix = f"{path}." if path else ""
            children = [_names_below(child, f"{prefix}{key}.") & wanted for key, child in module.named_children()]
            lists[path] = [sorted(names) for names in children if names]
    shapes = [(re.sub(r"\d+", "#", path), len(children)) for path, children in lists.items()]
    trunks = [children for shape, children in zip(shapes, lists.values(), strict=True) if shapes.count(shape) == 1]
    return max(reversed(trunks), key=len, default=[])  # of equals the innermost


def _names_below(module: nn.Module, prefix: str) -> set[str]:
    return {clean_name(prefix + name) for name, _ in module.named_parameters()}
