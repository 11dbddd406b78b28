"""`DiLoCo`: the five lines that go into somebody's own training loop.

It counts inner steps, decides when a round is due, keeps the books, and leaves the arithmetic to `outer/` and the
travelling to `wire/`.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from diloco.errors import BadInput
from diloco.outer.flat import linear_view
from diloco.outer.fragment import BUCKET_BYTES, Fragment, bit_sum
from diloco.outer.merge import get_merge
from diloco.outer.optimizers import Nesterov, OuterOptimizer, as_outer, describe
from diloco.outer.round import Mismatch, Round, RoundReport
from diloco.outer.tensors import clean_name, roster
from diloco.wire.collective import Collective
from diloco.wire.exchange import Exchange, Facts
from diloco.wire.local import Local

COUNTERS = ("keep", "max")


class DiLoCo:
    """Keeps a replica in step with the others: every `sync_every` optimizer steps it runs one round.

    DiLoCo, arXiv 2311.08105, Algorithm 1.

    Args:
        model: any nn.Module. Parameters with requires_grad take part, once each; see `outer/tensors.py` for buffers.
        optimizer: the inner optimizer, or several of them; a step is over when each has stepped.
        sync_every: H, inner steps between two outer steps.
        outer: an outer optimizer, a pair of functions (init, update), or a torch.optim class.
        merge: "mean", or "tokens" to weigh replicas by the tokens given to `count_tokens`.
        exchange: `Collective(group)`, `Local(replicas)`; by default the process group where torch.distributed is
            initialised, else this process alone. With one replica the outer step is still run.
        hook: sync from the optimizer's own step hook. With False, call `step()` after each optimizer step; do that with
            a grad scaler, whose skipped steps reach no hook.
        counters: integer buffers are left alone ("keep") or brought to their maximum over the replicas ("max").
        anchor_device: where anchor and outer state live; "cpu" spares accelerator memory for two fp32 copies of the
            model.
        facts: whatever else has to be the same on all replicas (a tokenizer's hash, say): JSON values, refused by name
            where they differ.
        on_round: called with the `RoundReport` of every round.

    Raises:
        BadInput: a setting that cannot be used, or one that differs between replicas, before the first step and on all
        of them.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        sync_every: int,
        outer: object = Nesterov(),
        merge: str = "mean",
        exchange: Exchange | None = None,
        hook: bool = True,
        counters: str = "keep",
        anchor_device: str | torch.device | None = None,
        facts: Facts | None = None,
        on_round: Callable[[RoundReport], None] | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        if isinstance(sync_every, bool) or not isinstance(sync_every, int) or sync_every < 1:
            raise BadInput(f"sync_every is {sync_every!r}: give a whole number of inner steps, 1 or more")
        if isinstance(bucket_bytes, bool) or not isinstance(bucket_bytes, int) or bucket_bytes < 1:
            raise BadInput(f"bucket_bytes is {bucket_bytes!r}: give a whole number of bytes, 1 or more")
        if counters not in COUNTERS:
            raise BadInput(f"counters is {counters!r}: give one of {', '.join(COUNTERS)}")
        self.model, self.sync_every = model, sync_every
        self.optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
        self.outer: OuterOptimizer = as_outer(outer)
        self.merge, self._weights, self.counters = merge, get_merge(merge), counters
        self.on_round = on_round
        self.tensors = roster(model)
        _check_optimizers(self.optimizers, self.tensors.trained)
        device = _device(anchor_device)
        self.fragment = Fragment(self.tensors.trained, self.outer, device, bucket_bytes)
        self.exchange = exchange or (Collective() if dist.is_available() and dist.is_initialized() else Local(1))
        self.rank = self._join(facts or {})
        self._synced_buffers = [b.detach().clone() for b in self.tensors.averaged.values()]
        self._reset_counts()
        self._hooks = [o.register_step_post_hook(self._hook(i)) for i, o in enumerate(self.optimizers)] if hook else []
        self._left_at = time.perf_counter()

    # -- before the first step

    def _join(self, extra: Facts) -> int:
        facts = {
            "sync_every": self.sync_every,
            "outer": describe(self.outer),
            "merge": self.merge,
            "counters": self.counters,
            **extra,
            "tensors": self.tensors.description(),
            "frozen weights": self._frozen_sum(),
        }
        buffers = [*self.tensors.averaged.values(), *self.tensors.counters.values()]
        rank = self.exchange.join(facts, [self.fragment.anchor, *buffers])
        self.fragment.flat.write(self.fragment.anchor, 0, self.fragment.flat.numel)
        return rank

    def _frozen_sum(self) -> str:
        frozen = sorted((clean_name(n), p) for n, p in self.model.named_parameters() if not p.requires_grad)
        total = sum((2 * i + 1) * int(bit_sum(linear_view(p, n))) for i, (n, p) in enumerate(frozen))
        return f"checksum {total % 2**64:016x}"

    def _reset_counts(self) -> None:
        self.inner_step = 0
        self.stepped = [0] * len(self.optimizers)
        """Steps each of several optimizers has taken in an inner step that is not over."""
        self.synced_step = 0
        self.outer_steps = 0
        self.window_tokens = 0
        self.rounds_planned = 0
        self.steps_dropped = 0
        self.rounds: list[RoundReport] = []
        self.compute_s = 0.0

    # -- while training

    def _hook(self, index: int) -> Callable[..., None]:
        def stepped(*_: object) -> None:
            self.stepped[index] += 1
            if min(self.stepped) > 0:
                self.stepped = [n - 1 for n in self.stepped]
                self.step()

        return stepped

    def count_tokens(self, tokens: int) -> None:
        """Adds to the tokens this replica has trained on since the last sync."""
        self.window_tokens += int(tokens)

    def step(self) -> None:
        """Counts one inner step and runs a round where one is due. Called by the optimizer's hook unless hook=False."""
        self.inner_step += 1
        if self.inner_step % self.sync_every == 0:
            self._sync(partial=False)

    def finish(self, flush: bool = True) -> None:
        """Ends the run: syncs a last window shorter than sync_every, or with flush=False drops it and counts its steps
        as dropped.

        Safe to call twice. All replicas must call it.
        """
        steps = self.inner_step - self.synced_step
        if steps and flush:
            self._sync(partial=True)
        elif steps:
            self.restart_window()

    def restart_window(self) -> int:
        """Makes the anchor the replica's weights and returns the inner steps that are dropped by it."""
        dropped = self.inner_step - self.synced_step
        self.steps_dropped += dropped
        self.synced_step, self.window_tokens = self.inner_step, 0
        self.fragment.flat.write(self.fragment.anchor, 0, self.fragment.flat.numel)
        return dropped

    def close(self) -> None:
        """Takes the hooks off the optimizers: from here on the replica trains alone."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def __enter__(self) -> DiLoCo:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
        self.close()

    def _check_roster(self) -> None:
        """A parameter unfrozen or replaced since DiLoCo was built would train on each replica and never be merged."""
        known = {id(p) for p in self.tensors.trained.values()}
        strangers = [n for n, p in self.model.named_parameters() if p.requires_grad and id(p) not in known]
        if strangers:
            raise Mismatch(
                f"parameter {strangers[0]!r} became trainable, or was replaced, after DiLoCo was built and would never "
                "be merged: build DiLoCo once the model is as it will be trained"
            )

    def _sync(self, partial: bool) -> None:
        self._check_roster()
        self.rounds_planned += 1
        self.compute_s += time.perf_counter() - self._left_at
        steps = self.inner_step - self.synced_step
        report = RoundReport(round=self.rounds_planned, step=self.inner_step, steps=steps, partial=partial)
        round = Round(
            self.fragment,
            self.tensors,
            self._synced_buffers,
            self._weights,
            self.counters == "max",
            self.outer_steps,
            report,
            self.window_tokens,
            self._closed,
        )
        self.exchange.run(self.rank, round)

    def _closed(self, report: RoundReport) -> None:
        self.rounds.append(report)
        self.outer_steps += report.committed
        self.synced_step, self.window_tokens = report.step, 0
        if self.rank in report.left_out:
            self._clear_inner_state()
        if self.on_round:
            self.on_round(report)
        self._left_at = time.perf_counter()

    def _clear_inner_state(self) -> None:
        # Moments that met a NaN keep it for ever and would spoil the fresh weights at the next inner step.
        for optimizer in self.optimizers:
            tensors = [t for s in optimizer.state.values() for t in _tensors_in(s.values())]
            if not all(bool(t.isfinite().all()) for t in tensors):
                optimizer.state.clear()

    # -- what it knows

    def anchor(self) -> dict[str, Tensor]:
        """The global weights: fp32 views by parameter name. Read them; never write to them."""
        return self.fragment.named_anchor()

    def checksum(self) -> str:
        """The anchor's 64-bit checksum in hex, as in the receipt."""
        return f"{self.fragment.checksum() % 2**64:016x}"

    def receipt(self) -> dict:
        """What the run did, in JSON values: one whose syncs failed cannot look like one whose syncs worked."""
        committed = [r for r in self.rounds if r.committed]
        # A resumed run may have had another number of replicas in its earlier rounds.
        ever = range(max([self.exchange.replicas, *(len(r.tokens) for r in self.rounds)]))
        return {
            "replica": self.rank,
            "replicas": self.exchange.replicas,
            "sync_every": self.sync_every,
            "outer": describe(self.outer),
            "rounds_planned": self.rounds_planned,
            "rounds_committed": len(committed),
            "rounds_failed": self.rounds_planned - len(committed),
            "inner_steps": self.inner_step,
            "inner_steps_unsynced": self.inner_step - self.synced_step,
            "inner_steps_dropped": self.steps_dropped,
            "tokens_per_replica": [sum(r.tokens[m] for r in self.rounds if m < len(r.tokens)) for m in ever],
            "tokens_lost": sum(r.tokens[m] for r in self.rounds for m in r.left_out),
            "replica_resets": [sum(m in r.left_out for r in self.rounds) for m in ever],
            "spread_median": committed[-1].spread_median if committed else None,
            "spread_max": committed[-1].spread_max if committed else None,
            "checksum": self.checksum(),
            "bytes_sent": sum(r.bytes_sent for r in self.rounds),
            "compute_s": self.compute_s,
            "wire_s": sum(r.wire_s for r in self.rounds),
            "wait_s": sum(r.wait_s for r in self.rounds),
            "rounds": [dataclasses.asdict(r) for r in self.rounds],
        }

    # -- across a restart

    def state_dict(self) -> dict:
        """Anchor, outer state, and all counters; tensors are the live ones, not copies.

        Together with the model's own weights and the inner optimizer's state it is all a resume needs, in mid-window
        too.
        """
        return {
            "anchor": self.anchor(),
            "outer": self._outer_state(),
            "buffers": dict(zip(self.tensors.averaged, self._synced_buffers, strict=True)),
            "counts": {name: getattr(self, name) for name in self._COUNTS},
            "rounds": [dataclasses.asdict(r) for r in self.rounds],
        }

    _COUNTS = (
        "inner_step",
        "stepped",
        "synced_step",
        "outer_steps",
        "window_tokens",
        "rounds_planned",
        "steps_dropped",
        "compute_s",
    )

    def _outer_state(self) -> dict:
        state = self.fragment.state.state_dict()
        return (
            {"torch": state}
            if "param_groups" in state
            else {k: self.fragment.flat.named_views(v) for k, v in state.items()}
        )

    def load_state_dict(self, state: dict) -> None:
        """Restores what `state_dict` gave, from a run with as many replicas or another number.

        The model's weights are not touched: load them from your own checkpoint, since inside a window they differ from
        the anchor.
        Raises BadInput naming what is missing or does not fit.
        """
        for key in ("anchor", "outer", "buffers", "counts", "rounds"):
            if key not in state:
                raise BadInput(
                    f"the state of DiLoCo lacks {key!r}: it cannot be resumed without repeating or losing work"
                )
        _check_names("anchor", state["anchor"], self.anchor())
        own = self._outer_state()
        _check_names("outer state", state["outer"], own)
        _check_names("counts", state["counts"], dict.fromkeys(self._COUNTS))
        for key, views in own.items():
            if key == "torch":
                self.fragment.state.load_state_dict(state["outer"][key])
                continue
            _check_names(f"outer {key}", state["outer"][key], views)
            _copy(state["outer"][key], views)
        _copy(state["anchor"], self.anchor())
        buffers = dict(zip(self.tensors.averaged, self._synced_buffers, strict=True))
        _check_names("buffers", state["buffers"], buffers)
        _copy(state["buffers"], buffers)
        for name in self._COUNTS:
            setattr(self, name, copy.copy(state["counts"][name]))
        self.rounds = [RoundReport(**r) for r in state["rounds"]]
        self._left_at = time.perf_counter()


def _check_optimizers(optimizers: list[torch.optim.Optimizer], trained: dict[str, Tensor]) -> None:
    stepped = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
    if not any(id(p) in stepped for p in trained.values()):
        raise BadInput(
            f"optimizer holds none of the model's {len(trained)} trainable tensors: give the optimizer that trains it"
        )


def _device(name: str | torch.device | None) -> torch.device | None:
    try:
        device = torch.device(name) if name is not None else None
        if device is not None and device.type == "meta":
            raise RuntimeError("it holds no values")
    except RuntimeError as error:
        raise BadInput(
            f"anchor_device is {name!r}, which cannot be used ({error}): give cpu, or leave it out"
        ) from error
    return device


def _copy(source: dict[str, Tensor], target: dict[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])


def _check_names(what: str, given: dict, wanted: dict) -> None:
    missing, extra = sorted(wanted.keys() - given.keys()), sorted(given.keys() - wanted.keys())
    if missing or extra:
        found = f"lacks {missing[0]!r}" if missing else f"has {extra[0]!r}, which this run has not"
        raise BadInput(
            f"{what} in the saved state {found}: load it with the model and outer optimizer it was saved from"
        )
    for name, tensor in wanted.items():
        if isinstance(tensor, Tensor) and given[name].shape != tensor.shape:
            shapes = f"{tuple(given[name].shape)}, here {tuple(tensor.shape)}"
            raise BadInput(f"{what} {name!r} was saved with shape {shapes}: load it with the model it was saved from")


def _tensors_in(values: Iterable[object]) -> list[Tensor]:
    return [v for v in values if isinstance(v, Tensor)]
