"""What of a run is saved, as trees of tensors and plain values, and put back.

    global       anchor, outer, buffers, rounds: the same on all replicas; nothing with method dp
    replica-m    model, optimizer, local, counts

and, of a replica over several devices, in both `sent`, the bytes that each of them sent.

Everything is by parameter name, never by an optimizer's own index, so that it fits whatever the mesh: a pipeline stage
has other parameters, and sharded ones are grouped apart. Data order, learning rates and random numbers are functions of
the step and need no state; an optimizer's settings are the configuration's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from diloco.checkpoint import Saved, StoredTensor, read_tree
from diloco.errors import BadInput
from diloco.outer.tensors import clean_name
from diloco.train import sent
from diloco.train.replica import Replica

GLOBAL = "global"
_OWN, _SHARED = ("counts", "local"), ("anchor", "outer", "buffers", "rounds")


def unit_of(replica: int) -> str:
    return f"replica-{replica}"


def trees_of(replica: Replica) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the replica's own, what is the same on all)."""
    own = {"model": _model(replica), "optimizer": _optimizer(replica)}
    if replica.sync is None:
        return own, {}
    state = replica.sync.state_dict()
    own_sent, shared_sent = sent.counts_of(replica.sync)
    own |= {key: state[key] for key in _OWN}
    return own | own_sent, {key: state[key] for key in _SHARED} | shared_sent


def weights_in(tree: dict[str, Any]) -> dict[str, Any]:
    """What has to be finite of either."""
    return {key: tree[key] for key in ("model", "anchor") if key in tree}


def _model(replica: Replica) -> dict[str, Tensor]:
    return {clean_name(name): tensor for name, tensor in replica.model.state_dict().items()}


def _optimizer(replica: Replica) -> dict[str, dict[str, Any]]:
    names = _names(replica)
    states = ((names[id(p)], dict(state)) for o in replica.optimizers for p, state in o.state.items())
    return dict(sorted(states, key=lambda item: item[0]))


def _names(replica: Replica) -> dict[int, str]:
    return {id(p): clean_name(name) for name, p in replica.model.named_parameters()}


# -- back


def like(model: torch.nn.Module) -> Callable[[tuple, StoredTensor], Tensor | None]:
    """For `read_tree`: what belongs to a parameter by its name and size comes back shaped and sharded as it is."""
    own = {clean_name(name): tensor for name, tensor in model.state_dict().items()}

    def find(path: tuple, stored: StoredTensor) -> Tensor | None:
        owner = next((own[key] for key in path if isinstance(key, str) and key in own), None)
        fits = owner is not None and stored.shape and owner.shape.numel() == stored.shape.numel()
        return owner if fits or (owner is not None and owner.shape == stored.shape) else None

    return find


class Reader:
    """Reads of a checkpoint what one replica's rank holds."""

    def __init__(self, saved: Saved, replica: Replica, in_island: bool) -> None:
        """`in_island`: other ranks hold the rest of the replica, so that names this one lacks are theirs."""
        self.saved, self.replica = saved, replica
        self._own, self._like = _model(replica), like(replica.model)
        self._theirs: Callable[[str], bool] = (lambda name: name not in self._own) if in_island else (lambda _: False)

    def stored(self, unit: str) -> dict[str, Any]:
        """A unit's tree, not read yet, without the parameters of other ranks."""
        tree = dict(self.saved.tree(unit))
        for key in tree.keys() & {"model", "optimizer", "anchor", "buffers"}:
            tree[key] = self._mine(tree[key])
        for key in tree.keys() & {"outer", "local"}:
            kinds = {kind: self._mine(views) if isinstance(views, dict) else views for kind, views in tree[key].items()}
            tree[key] = {kind: views for kind, views in kinds.items() if views}
        return tree

    def read(self, tree: dict[str, Any], keys: Collection[str]) -> dict[str, Any]:
        return read_tree({key: tree[key] for key in keys if key in tree}, self._like)

    def _mine(self, by_name: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in by_name.items() if not self._theirs(name)}


def restore(replica: Replica, own: dict[str, Any], shared: dict[str, Any], where: str) -> None:
    """`own`, `shared`: as `trees_of` gives them, but `own` without `local` where the replicas were others. Raises
    BadInput, with `where` they are from, for what is missing."""
    model = replica.model.state_dict()
    if lost := [clean_name(name) for name in model if clean_name(name) not in own["model"]]:
        raise BadInput(f"{where} lacks model/{lost[0]}: use another checkpoint")
    replica.model.load_state_dict({name: own["model"][clean_name(name)] for name in model})
    names = _names(replica)
    for optimizer in replica.optimizers:
        _restore_optimizer(optimizer, names, own["optimizer"])
    if replica.sync is not None:
        replica.sync.load_state_dict({**shared, **{key: own[key] for key in _OWN if key in own}})
        sent.take_up(replica.sync, own, shared)


def _restore_optimizer(optimizer: torch.optim.Optimizer, names: dict[int, str], states: dict[str, dict]) -> None:
    indexed = optimizer.state_dict()
    params = [p for group in optimizer.param_groups for p in group["params"]]
    indices = [index for group in indexed["param_groups"] for index in group["params"]]
    found = {i: states[names[id(p)]] for i, p in zip(indices, params, strict=True) if names[id(p)] in states}
    optimizer.load_state_dict({**indexed, "state": found})
