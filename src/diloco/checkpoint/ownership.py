"""Which of an island's ranks writes what, so that every value is written once.

A plain tensor or value that several ranks hold at the same path is written by the first of them; of a sharded tensor
every rank writes its chunk, and of chunks that several hold, such as under HSDP, the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from diloco.checkpoint.pack import ABSENT
from diloco.checkpoint.shards import is_owner
from diloco.shards import is_sharded


def own_part(tree: Any, place: int, gather: Callable[[list], list]) -> Any:
    """The tree without what ranks at lower places write.

    Args:
        place: this rank's in its island; all of the island's ranks make the call together.
        gather: a JSON value -> the list of all ranks' values, in the order of their places.
    """
    held = gather(list(_paths(tree, ())))
    taken = {path for paths in held[:place] for path in paths}
    return _prune(tree, (), taken)


def _paths(node: Any, path: tuple):
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _paths(value, (*path, key))
    elif isinstance(node, list | tuple):
        for index, value in enumerate(node):
            yield from _paths(value, (*path, index))
    elif not (isinstance(node, Tensor) and is_sharded(node)):
        yield _text(path)


def _prune(node: Any, path: tuple, taken: set[str]) -> Any:
    if isinstance(node, dict):
        return {key: _prune(value, (*path, key), taken) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return type(node)(_prune(value, (*path, index), taken) for index, value in enumerate(node))
    if isinstance(node, Tensor) and is_sharded(node):
        return node if is_owner(node) else ABSENT
    return ABSENT if _text(path) in taken else node


def _text(path: tuple) -> str:
    return "/".join(map(str, path))
