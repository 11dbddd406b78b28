"""Which of an island's ranks writes what, so that every value is written once.

A plain tensor or value that several ranks hold at the same path is written by the first of them, and so is a list
without tensors, as one value: a run's rounds are thousands. Of a sharded tensor every rank writes its chunk, and of
chunks that several hold, such as under HSDP, the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from diloco.checkpoint.coders import digest
from diloco.checkpoint.pack import ABSENT
from diloco.checkpoint.shards import is_owner
from diloco.errors import BadInput
from diloco.shards import is_sharded

_GROUPS = "param_groups"
"""Marks the state of a torch optimizer, which is by number: two ranks may have different parameters under one."""


def own_part(tree: Any, place: int, gather: Callable[[list], list]) -> Any:
    """The tree without what ranks at lower places write.

    Args:
        place: this rank's in its island; all of the island's ranks make the call together.
        gather: a JSON value -> the list of all ranks' values, in the order of their places.

    Raises BadInput, on all ranks, where an optimizer's state is by number and the ranks have different ones: those of
    `DiLoCo` with a torch.optim class as outer optimizer over shards.
    """
    held = gather(list(_paths(tree, (), False)))
    first: dict[str, str | None] = {}
    for path, content in (entry for entries in held for entry in entries):
        if first.setdefault(path, content) != content:
            raise BadInput(
                f"{path} is by number, not by parameter name, and differs between the ranks of a replica, so that one "
                "checkpoint cannot hold it: use another outer optimizer than torch.optim's, or save each rank's own"
            )
    taken = {path for entries in held[:place] for path, _ in entries}
    return _prune(tree, (), taken)


def _paths(node: Any, path: tuple, numbered: bool):
    """(path of what is not sharded, digest of what another rank may hold under the same number)."""
    if isinstance(node, dict):
        numbered = numbered or _GROUPS in node
        for key, value in node.items():
            yield from _paths(value, (*path, key), numbered)
    elif _is_walked(node):
        for index, value in enumerate(node):
            yield from _paths(value, (*path, index), numbered)
    elif not (isinstance(node, Tensor) and is_sharded(node)):
        yield [_text(path), _content(node) if numbered and isinstance(node, Tensor) else None]


def _content(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {digest(tensor.detach().cpu().contiguous())}"


def _prune(node: Any, path: tuple, taken: set[str]) -> Any:
    if isinstance(node, dict):
        return {key: _prune(value, (*path, key), taken) for key, value in node.items()}
    if _is_walked(node):
        return type(node)(_prune(value, (*path, index), taken) for index, value in enumerate(node))
    if isinstance(node, Tensor) and is_sharded(node):
        return node if is_owner(node) else ABSENT
    return ABSENT if _text(path) in taken else node


def _is_walked(node: Any) -> bool:
    """Whether it is a list whose elements are owned one by one."""
    return isinstance(node, list | tuple) and any(_holds_tensors(value) for value in node)


def _holds_tensors(node: Any) -> bool:
    if isinstance(node, dict):
        return any(_holds_tensors(value) for value in node.values())
    return _is_walked(node) or isinstance(node, Tensor)


def _text(path: tuple) -> str:
    return "/".join(map(str, path))
