"""`DiLoCo`, whose `step` is the table of contents of a sync."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from diloco.errors import BadInput
from diloco.outer.codec import get_codec
from diloco.outer.fragment import BUCKET_BYTES, Fragment, weighted
from diloco.outer.fragments import as_fragmentation, fragment_names
from diloco.outer.fragments import describe as describe_fragments
from diloco.outer.interval import Interval, as_interval
from diloco.outer.island import any_of
from diloco.outer.late import Late
from diloco.outer.merge import get_merge
from diloco.outer.optimizers import Nesterov, OuterOptimizer, as_outer, describe
from diloco.outer.pool import Pool
from diloco.outer.report import RoundReport
from diloco.outer.round import Means, Round
from diloco.outer.schedule import Timetable
from diloco.outer.site import SiteAverage
from diloco.outer.tensors import roster
from diloco.shards import local
from diloco.sync import checks, state
from diloco.sync.airborne import Airborne
from diloco.sync.build import build_fragments, frozen_sum, reshard
from diloco.sync.receipt import make_receipt
from diloco.wire.choose import AUTO, Choice, choose_codec
from diloco.wire.exchange import Exchange, Facts


class DiLoCo:
    """Keeps a replica in step with the others: every `sync_every` optimizer steps each fragment of it goes through one
    round.

    DiLoCo, arXiv 2311.08105, Algorithm 1; with fragments and overlap Streaming DiLoCo, arXiv 2501.18512, Algorithm 2;
    with a late overlap Eager updates, arXiv 2502.12996.

    Args:
        model: any nn.Module. Parameters with requires_grad take part, once each; see `outer/tensors.py` for buffers.
        optimizer: the inner optimizer, or several of them; a step is over when each has stepped.
        sync_every: H, inner steps between two outer steps of a fragment; or an `Interval`, by which it changes.
        outer: an outer optimizer, a pair of functions (init, update), or a torch.optim class.
        fragments: which parameters sync together: `Whole()`, `Sequential`, `Strided`, `Balanced`, or lists of names.
        offsets: when each fragment is sent, in inner steps after the beginning of a cycle of H; evenly spread if None,
            all together if equal.
        overlap: inner steps between sending a fragment and applying the result, less than H; or "delayed" or "eager",
            to apply it at the fragment's next boundary.
        mixing: weight of the local values when an overlapped result is applied: 0 takes the anchor, 1 leaves the
            replica alone. "rebase" takes the anchor and adds the inner steps since the sending, so that none is lost.
        codec: how outer gradients are written on the wire, see `outer/codec.py`; "auto" measures and chooses.
        merge: "mean"; "tokens" to weigh replicas by the tokens given to `count_tokens`; see `outer/merge.py`.
        exchange: `Collective(group)`, `Local(replicas)`, either of them divided by `Hierarchical`; by default the
            process group where torch.distributed is initialised, else this process alone. With one replica the outer
            step is still run. Where a replica is an island of several ranks (FSDP2, tensor or pipeline parallelism):
            `Collective(mesh, dim="replica")`; each rank then syncs its own shards with its counterparts.
        hook: sync from the optimizer's own step hook. With False, call `step()` after each optimizer step; do that with
            a grad scaler, whose skipped steps reach no hook.
        counters: integer buffers are left alone ("keep") or brought to their maximum over the replicas ("max").
        anchor_device: where anchor and outer state live; "cpu" spares accelerator memory for two fp32 copies of the
            model.
        facts: whatever else has to be the same on all replicas (a tokenizer's hash, say): JSON values, refused by name
            where they differ.
        on_round: called with the `RoundReport` of every round when it has landed.
        on_interval: called with (inner step, H, noise) whenever H changes.

    Raises:
        BadInput: a setting that cannot be used, or one that differs between replicas, before the first step and on all
        of them.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        sync_every: int | Interval,
        outer: object = Nesterov(),
        fragments: object = None,
        offsets: Sequence[int] | None = None,
        overlap: int | str = 0,
        mixing: float | str = 0.0,
        codec: str = "fp32",
        merge: str = "mean",
        exchange: Exchange | None = None,
        hook: bool = True,
        counters: str = "keep",
        anchor_device: str | torch.device | None = None,
        facts: Facts | None = None,
        on_round: Callable[[RoundReport], None] | None = None,
        on_interval: Callable[[int, int, float | None], None] | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self.exchange = checks.as_exchange(exchange)
        try:
            self.model, self.interval = model, as_interval(sync_every)
            self.optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
            self.outer: OuterOptimizer = as_outer(outer)
            self.overlap, self.late = checks.check_flight(overlap, mixing, self.interval, self.outer)
            self.mixing, self.counters, self.merge = mixing, counters, get_merge(merge)
            self.on_round, self.on_interval = on_round, on_interval
            reshard(model)
            self.tensors = roster(model)
            checks.check_optimizers(self.optimizers, self.tensors.trained)
            device, max_counters = checks.as_device(anchor_device), checks.check_counters(counters)
            self.bucket_bytes = checks.check_bucket_bytes(bucket_bytes)
            checks.check_merge(self.merge, self.exchange)
            self.fragmentation = as_fragmentation(fragments)
            groups = fragment_names(self.fragmentation, model, self.tensors.trained)
            self.timetable = Timetable.begin(len(groups), self.interval.at(0, 0, None), checks.as_offsets(offsets))
            self.codec = get_codec("fp32" if codec == AUTO else codec)
        except BadInput as error:
            self.exchange.refuse(str(error))
            raise
        what = {"codec": codec, "fragments": describe_fragments(self.fragmentation)}
        self.exchange.agree({**what, "number of fragments (see diloco.Stage)": len(groups)})
        self.codec_choice: Choice | None = None
        if codec == AUTO:
            self.codec_choice = choose_codec(
                self.exchange, sum(local(t).numel() for t in self.tensors.trained.values())
            )
            self.codec = self.codec_choice.codec
        self.fragments = build_fragments(
            model, self.tensors, groups, self.outer, self.merge.embeddings_apart, device, bucket_bytes,
            self.codec, self.exchange.island,
        )  # fmt: skip
        self.rank = self._join({**(facts or {}), "offsets": offsets and list(offsets)})
        self.means = Means(
            self.codec, self.merge, self.exchange.topology, self.rank,
            self.exchange.device or self.fragments[0].anchor.device, mixing, max_counters, len(self.fragments),
            self.exchange.island,
        )  # fmt: skip
        self.lates = [Late(f, self.late == "eager", self.exchange.replicas) for f in self.fragments if self.late]
        self._site_pool = Pool()  # not the rounds' own, which may be under way in another thread
        state.reset_counts(self)
        self._hooks = [o.register_step_post_hook(self._hook(i)) for i, o in enumerate(self.optimizers)] if hook else []
        self.exchange.step_begins()

    # -- before the first step

    def _join(self, extra: Facts) -> int:
        facts = {
            "sync_every": self.sync_every if self.interval.shortest == self.interval.longest else repr(self.interval),
            "outer": describe(self.outer),
            "fragments": describe_fragments(self.fragmentation),
            "overlap": self.late or self.overlap,
            "mixing": self.mixing,
            "codec": self.codec.name,
            "merge": self.merge.name,
            "counters": self.counters,
            "sites": [list(site) for site in self.exchange.topology.sites],
            "site_every": self.exchange.site_every,
            "bucket_bytes": self.bucket_bytes,
            **extra,
            "tensors": self.tensors.description(),
            "frozen weights": frozen_sum(self.model),
        }
        buffers = [*self.tensors.averaged.values(), *self.tensors.counters.values()]
        rank = self.exchange.join(facts, [*(f.anchor for f in self.fragments), *buffers])
        for fragment in self.fragments:
            fragment.restart()
            for synced, buffer in zip(fragment.synced_buffers, fragment.averaged.values(), strict=True):
                synced.copy_(buffer)
        return rank

    # -- while training

    @property
    def sync_every(self) -> int:
        """H as it is now."""
        return self.timetable.every

    def _hook(self, index: int) -> Callable[..., None]:
        def stepped(*_: object) -> None:
            self.stepped[index] += 1
            if min(self.stepped) > 0:
                self.stepped = [n - 1 for n in self.stepped]
                self.step()

        return stepped

    def count_tokens(self, tokens: int) -> None:
        """Adds to the tokens this replica has trained on, on all the ranks of it together."""
        self.tokens += int(tokens)

    def step_begins(self) -> None:
        """What went before this call (an evaluation, a save) is no training time. Need not be called."""
        self.exchange.step_begins()

    def step(self) -> None:
        """Counts one inner step; sends the fragments that are due and lands those that have been under way for long
        enough. Called by the optimizer's hook unless hook=False."""
        self.compute_s += self.exchange.step_ends(self.rank)
        self.inner_step += 1
        self._land(lambda airborne: airborne.lands_at == self.inner_step)
        self._begin_cycle()
        due = self.timetable.due(self.inner_step)
        if self.exchange.site_every and self.inner_step % self.exchange.site_every == 0:
            self._average_site([f for f in self.fragments if f.index not in due])
        if due:
            checks.check_roster(self.model, self.tensors)
        for index in due:
            self._send(self.fragments[index])
        self.exchange.step_begins()

    def finish(self, flush: bool = True) -> None:
        """Ends the run: lands what is under way, and syncs a last window shorter than H, or with flush=False drops it
        and counts its steps as dropped.

        Safe to call twice. All replicas must call it.
        """
        if not flush:
            self.restart_window()
            return
        self._land(lambda airborne: True)
        checks.check_roster(self.model, self.tensors)
        for fragment in self.fragments:
            if self.inner_step > fragment.sent_step:
                self._send(fragment, last=True)
            else:
                self._restart(fragment)

    def restart_window(self) -> int:
        """Makes the anchor the replica's weights and returns the inner steps that are dropped by it."""
        self._land(lambda airborne: True)
        dropped = self.inner_step - self.synced_step
        self.steps_dropped += dropped
        for fragment in self.fragments:
            fragment.sent_step, fragment.sent_tokens = self.inner_step, self.tokens
            self._restart(fragment)
        return dropped

    def _restart(self, fragment: Fragment) -> None:
        if self.late:
            self.lates[fragment.index].reset()
        fragment.restart()

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

    # -- one round

    def _begin_cycle(self) -> None:
        if not self.timetable.ends(self.inner_step):
            return
        measured = [n for n in self.noises if n is not None]
        noise = sum(measured) / len(measured) if measured else None
        every = self.interval.at(self.inner_step, self.timetable.every, noise)
        if every != self.timetable.every and self.on_interval:
            self.on_interval(self.inner_step, every, noise)
        self.timetable = self.timetable.next(every)

    def _send(self, fragment: Fragment, last: bool = False) -> None:
        self.rounds_planned += 1
        flying = bool(self.overlap or self.late) and not last
        report = RoundReport(
            round=self.rounds_planned,
            step=self.inner_step,
            steps=self.inner_step - fragment.sent_step,
            partial=last,
            fragment=fragment.index,
        )
        round = Round(fragment, self.means, report, self.tokens - fragment.sent_tokens, self._closed, flying)
        began = time.perf_counter()
        for airborne in self.airborne:
            if airborne.round.fragment is fragment:
                airborne.flight.wait()  # it is sent from the memory that the outer gradient is kept in
        round.prepare()
        self._land(lambda airborne: airborne.round.fragment is fragment)
        fragment.sent_step, fragment.sent_tokens = self.inner_step, self.tokens
        if flying:
            if self.late:
                self.lates[fragment.index].turn(fragment.taken if round.finite else None)
                if not round.finite:
                    self._recover()  # its result lands a whole window from here, which would be lost too
            report.stall_s = time.perf_counter() - began
            lands_at = None if self.late else self.inner_step + self.overlap
            self.airborne.append(Airborne(round, lands_at, self.exchange.start(self.rank, round)))
        else:
            self.exchange.run(self.rank, round)

    def _land(self, which: Callable[[Airborne], bool]) -> None:
        landing = [a for a in self.airborne if which(a)]
        self.airborne = [a for a in self.airborne if a not in landing]
        for airborne in landing:
            airborne.flight.wait()
            airborne.round.land(self.inner_step)

    def _closed(self, report: RoundReport) -> None:
        self.rounds.append(report)
        self.noises[report.fragment] = report.noise
        if self.lates and report.partial:
            self.lates[report.fragment].reset()
        if self.rank in report.left_out:
            self._recover()
        if self.on_round:
            self.on_round(report)

    def _recover(self) -> None:
        """A replica that was left out starts anew from the anchors; the fragments it did not sync are as spoilt."""
        if self._any_nonfinite(self.tensors.trained.values()):
            for fragment in self.fragments:
                self._restart(fragment)
        # Moments that met a NaN keep it for ever and would spoil the fresh weights at the next inner step.
        for optimizer in self.optimizers:
            if self._any_nonfinite(v for s in optimizer.state.values() for v in s.values() if isinstance(v, Tensor)):
                optimizer.state.clear()
                self.reset_step = self.inner_step

    def _any_nonfinite(self, tensors: Iterable[Tensor]) -> bool:
        """On any rank of the island: all of them decide alike."""
        return any_of(self.exchange.island, not all(bool(local(t).isfinite().all()) for t in tensors))

    # -- inside a site

    def _average_site(self, fragments: list[Fragment]) -> None:
        """Of the fragments that no round takes up at this step: those are merged over all sites."""
        if not fragments:
            return
        site = self.exchange.topology.site_of(self.rank)
        report = RoundReport(round=0, step=self.inner_step, steps=self.exchange.site_every, partial=False)
        average = SiteAverage(
            [f.flat for f in fragments], site, self._site_pool, report, self._site_averaged, self.exchange.island
        )
        self.exchange.run(self.rank, average)

    def _site_averaged(self, report: RoundReport) -> None:
        self.site_averages += 1
        # A site all of which is spoilt waits for the round, which resets and names its replicas.
        if self.rank in report.left_out and len(report.left_out) < len(self.exchange.topology.site_of(self.rank)):
            self._recover()
        self.site_bytes_sent += report.bytes_sent
        self.site_s += report.stall_s

    # -- what it knows

    @property
    def synced_step(self) -> int:
        """The inner step up to which all fragments have been sent."""
        return min(f.sent_step for f in self.fragments)

    def _settle(self) -> None:
        """Waits for what is under way, so that the anchors are those after it; nothing lands."""
        for airborne in self.airborne:
            airborne.flight.settle()

    def anchor(self) -> dict[str, Tensor]:
        """The newest global weights: fp32 views by parameter name, sharded as the parameters are. Read them; never
        write to them.

        Waits for rounds that are under way, whose results they hold already.
        """
        self._settle()
        return dict(sorted((name, view) for f in self.fragments for name, view in f.named_anchor().items()))

    def checksum(self) -> str:
        """The anchors' 64-bit checksum in hex, as in the receipt: of this rank's parts, where the model is sharded."""
        self._settle()
        return f"{weighted([f.checksum() for f in self.fragments]) % 2**64:016x}"

    def receipt(self) -> dict:
        """What the run did, in JSON values: one whose syncs failed cannot look like one whose syncs worked."""
        return make_receipt(self)

    def state_dict(self) -> dict:
        """Anchors, outer state, what is under way, and all counters; tensors are the live ones, not copies.

        Together with the model's own weights and the inner optimizer's state it is all a resume needs, in mid-window
        too. "local" and "counts" are this replica's own; the rest is the same on all.
        """
        self._settle()
        return state.save(self)

    def load_state_dict(self, saved: dict) -> None:
        """Restores what `state_dict` gave, from a run with as many replicas or another number.

        The model's weights are not touched: load them from your own checkpoint, since inside a window they differ from
        the anchor. Raises BadInput naming what is missing or does not fit.
        """
        state.load(self, saved)
        self.exchange.step_begins()
