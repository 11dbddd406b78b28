"""A training run from configuration to receipt. `train` is the table of contents."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import Any

import torch

from diloco.errors import BadInput
from diloco.train import resume
from diloco.train.config import TrainConfig
from diloco.train.data import Data, open_data
from diloco.train.evaluate import Evaluation, evaluate_over
from diloco.train.hf import count_module
from diloco.train.inner import lr_at
from diloco.train.model_source import model_for
from diloco.train.parallel.mesh import picture
from diloco.train.progress import Progress
from diloco.train.receipt import make_receipt, make_row
from diloco.train.replica import Replica, build_replicas
from diloco.train.run import Run
from diloco.train.saving import Checkpoints
from diloco.train.world import World, enter_world

EVALS_PER_RUN = 20


def train(config: TrainConfig, quiet: bool = False) -> dict[str, Any]:
    """Trains, writes the run folder, and returns the receipt (the same object as receipt.json).

    Raises BadInput before the first step for settings that cannot work, FloatingPointError when the global weights stop
    being finite, or a replica's own where the last checkpoint is to be saved.
    """
    with (
        enter_world(config) as world,
        Progress(config, show=world.main and not quiet) as progress,
        contextlib.closing(Job(config, world, progress)) as job,
    ):
        step = job.start()
        while True:
            if step == job.total_steps:
                job.finish()
            if job.eval_due(step):
                job.evaluate(step)
            if job.checkpoint_due(step):
                job.save(step)
            if step == job.last_step:
                job.checkpoints.finish()
                break
            job.inner_step(step)
            step += 1
        return job.receipt(step)


class Job:
    """The state of one run in this process."""

    def __init__(self, config: TrainConfig, world: World, progress: Progress) -> None:
        self.config, self.world, self.progress = config, world, progress
        self.run = world.together(lambda: Run(config) if world.main else None)
        self.data: Data = self._open_data()
        # A model that is to be spread over devices need not fit into one.
        model = model_for(config, self.data, "cpu" if world.place else world.device)
        self.params = count_module(model)
        self.total_steps = config.total_steps(self.params.params)
        self.last_step = min(config.stop_at or self.total_steps, self.total_steps)
        self._check_batches()
        self.checkpoints = Checkpoints(config, world)
        self.replicas: list[Replica] = build_replicas(
            config, self.data, model, self.total_steps, world, self._on_round, self._on_interval,
            resume.codec_of(self.checkpoints.store, config),
        )  # fmt: skip
        self.evaluations: dict[int, Evaluation] = {}
        self.rows: list[torch.Tensor] = []
        self.first_unlogged = 0
        self.saved_at = -1
        self.earlier_s = 0.0
        self.window_started = self.started = time.perf_counter()

    # -- the chapters of `train`

    def start(self) -> int:
        """The step to begin at: 0, or the last checkpoint's."""
        step, notes, replicas = 0, [], self.config.replicas
        if self.world.distributed:
            self.progress.say(picture(self.world.shape))
        if self.config.resume:
            step, notes, replicas = self.world.together(self._resume)
        else:
            self.world.together(lambda: self.checkpoints.check_fresh() if self.world.main else None)
        self.world.together(lambda: self._open_run(step))
        self._share_evaluations()
        notes += resume.change_replicas(self.replicas, replicas)
        if step == 0 and self.replicas[0].sync and self.replicas[0].sync.codec_choice:
            notes.append(str(self.replicas[0].sync.codec_choice))
        for text in notes:
            self._say(step, text)
        self.first_unlogged = step
        self.progress.begin(step, self.total_steps)
        return step

    def inner_step(self, step: int) -> None:
        self.rows.append(torch.cat([replica.inner_step(step) for replica in self.replicas]))
        if (step + 1) % self.config.sync_every == 0:
            self._log_window()
        self.progress.advance(step + 1, self.rows)

    def finish(self) -> None:
        """A last window shorter than sync_every is synced too, so that no inner step is lost."""
        for replica in self.replicas:
            replica.finish()

    def eval_due(self, step: int) -> bool:
        every = self.config.eval_every or max(self.total_steps // EVALS_PER_RUN, 1)
        # A resumed run has its checkpoint's evaluation on file.
        due = step == self.total_steps or (every > 0 and step % every == 0)
        return (due or (self.config.keep_best > 0 and self.checkpoint_due(step))) and step not in self.evaluations

    def evaluate(self, step: int) -> None:
        """On the newest global weights, by replica 0; the others go on and meet it at the next sync."""
        if 0 not in self.world.mine:
            return
        replica, weights = self.replicas[0], self.replicas[0].global_weights()
        result = evaluate_over(replica.engine, weights, self.data, self.config.eval_sequences, self.world.device)
        self.evaluations[step] = result
        self.progress.evaluated(step, result)
        if self.run:
            self.run.evaluation(step, result, self.world.virtual_s)

    def checkpoint_due(self, step: int) -> bool:
        every = self.config.checkpoint_every * self.config.sync_every
        return step == self.last_step or (every > 0 and step > 0 and step % every == 0)

    def save(self, step: int) -> None:
        self._log_window()
        if step == self.saved_at:
            return
        measured = self.evaluations.get(step)
        saved = self.checkpoints.save(step, self.replicas, self._seconds(), measured and measured.loss)
        self.saved_at = step
        if self.run and not saved.skipped:
            self.run.log.write("checkpoint", step, path=saved.path, stall_s=saved.stall_s)
        if saved.failed:
            self._say(step, f"a checkpoint was not written: {saved.failed}")
        if saved.skipped:
            self._say(step, f"{saved.skipped}, since a round has yet to leave the replica out and reset it")

    def receipt(self, step: int) -> dict[str, Any]:
        receipt = make_receipt(self, step, self._seconds())
        if self.run:
            self.run.finish(receipt, make_row(self, receipt) if step == self.total_steps else None)
        return receipt

    def close(self) -> None:
        """Ends the last save, and lets go of the run folder."""
        self.checkpoints.close()
        if self.run:
            self.run.close()

    # -- details

    def _say(self, step: int, text: str) -> None:
        if self.run:
            self.run.note(step, text)
            self.progress.say(text)

    def _open_data(self) -> Data:
        """The main process first, so that the others find the token cache."""
        options = dataclasses.replace(self.config.data, seed=self.config.seed + self.config.data.seed)

        def work() -> Data:
            return open_data(options, progress=self.progress.tokenising)

        data = self.world.together(lambda: work() if self.world.main else None)
        return work() if data is None else data

    def _open_run(self, step: int) -> None:
        if self.run:
            self.run.open(step, self._facts(), self.data.tokenizer.json)
            self.evaluations = self.run.evaluations()

    def _share_evaluations(self) -> None:
        """All of replica 0 has to know which evaluations are on file, since all of it evaluates."""
        own = {step: dataclasses.asdict(found) for step, found in self.evaluations.items()}
        known = self.world.exchange.island.gather_json(own)[0]
        self.evaluations = {int(step): Evaluation(**found) for step, found in known.items()}

    def _resume(self) -> tuple[int, list[str], int]:
        """The step of the checkpoint gone on from, what is to be said about it, and its number of replicas."""
        if self.run:
            self.run.lock()
        loaded = resume.load(self.checkpoints, self.config, self.world, self.replicas)
        if loaded.step > self.last_step:
            raise BadInput(
                f"stop_at is {self.config.stop_at}, but the checkpoint is already at inner step {loaded.step}: give a "
                "later step"
            )
        self.saved_at, self.earlier_s = loaded.step, loaded.seconds
        return loaded.step, [f"resumed from inner step {loaded.step}", *loaded.notes], loaded.replicas

    def _seconds(self) -> float:
        """Seconds so far, those of earlier legs up to their last checkpoint included."""
        return self.earlier_s + time.perf_counter() - self.started

    def _check_batches(self) -> None:
        """Builds one training and one held-out batch, so that a data fault ends the run before it begins."""
        for rank in self.world.mine:
            self.data.batch(0, rank, self.world.replicas, self.config.sequences)
        if next(iter(self.data.heldout_batches(1, 1)), None) is None:
            raise BadInput("the held-out part is empty: raise --data.heldout or give more text")

    def _facts(self) -> dict[str, Any]:
        return {
            "params": self.params.params,
            "params_embedding": self.params.params_embedding,
            "params_body": self.params.params_body,
            "steps": self.total_steps,
            "tokens": self.total_steps * self.config.batch_tokens,
            "device": str(self.world.device),
            "distributed": self.world.distributed,
            "mesh": str(self.world.shape),
            "tokenizer": self.data.tokenizer.fingerprint,
            "data": self.data.fingerprint,
        }

    def _on_round(self, report: Any) -> None:
        if self.run:
            self.run.round(report)
            self.progress.synced(report)

    def _on_interval(self, step: int, every: int, noise: float | None) -> None:
        if self.run:
            self.run.log.write("interval", step, sync_every=every, noise=noise)

    def _log_window(self) -> None:
        """Collects the losses since the last call from all replicas: one small message a window, none between syncs."""
        if not self.rows:
            return
        rows_MS2 = self.world.gather(torch.stack(self.rows, dim=1).cpu())
        first, now = self.first_unlogged, time.perf_counter()
        if self.run:
            lrs = [lr_at(first + s, self.total_steps, self.config.inner) for s in range(rows_MS2.shape[1])]
            self.run.window(first, rows_MS2, lrs, now - self.window_started)
        self.first_unlogged += len(self.rows)
        self.rows, self.window_started = [], now
