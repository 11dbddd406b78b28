"""The run folder while it is being written: config, events, row and receipt."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import diloco
from diloco.errors import BadInput
from diloco.outer.report import RoundReport
from diloco.train.config import TrainConfig, config_hash, to_dict
from diloco.train.evaluate import Evaluation
from diloco.watch import runfolder
from diloco.watch.events import EventLog, read_events, truncate_after


class Run:
    """Only the main process has one; the others have None. Nothing is written before `open`.

    Raises BadInput where the folder holds a run that is not to be resumed, or none that could be.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.folder = run_path(config)
        self.log: EventLog | None = None
        self._lock: int | None = None
        _check_fresh(self.folder, config.resume)

    def open(self, step: int, facts: dict[str, Any], tokenizer: str | None = None) -> None:
        """Begins at inner step `step`: later events, of a leg that went beyond its last checkpoint, are dropped, so
        that nothing appears twice. `facts` join the configuration in config.json; `tokenizer` is the JSON of one."""
        _make(self.folder)
        self.lock()
        _check_fresh(self.folder, self.config.resume)  # another process may have begun a run of this name since
        runfolder.write_json(self.folder / runfolder.CONFIG, {**facts, **provenance(self.config)})
        if tokenizer is not None:
            runfolder.atomic_write_text(self.folder / runfolder.TOKENIZER, tokenizer)
        truncate_after(self.folder / runfolder.EVENTS, step)
        self.log = EventLog(self.folder / runfolder.EVENTS)

    def lock(self) -> None:
        """Keeps other processes from writing the folder until `close`, or until this one ends, however it ends.

        Raises BadInput where another has it.
        """
        if self._lock is not None:
            return
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(folder)
            raise BadInput(
                f"run folder {self.folder} is being written by another process: wait for it, or give another --name"
            ) from error
        self._lock = folder

    def close(self) -> None:
        if self.log is not None:
            self.log.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def evaluations(self) -> dict[int, Evaluation]:
        """Evaluations so far by inner step, those of earlier legs included."""
        columns = [f.name for f in dataclasses.fields(Evaluation)]
        events = read_events(self.folder / runfolder.EVENTS, ("eval",))
        return {e["step"]: Evaluation(*(e[c] for c in columns)) for e in events}

    def note(self, step: int, text: str) -> None:
        self.log.write("note", step, text=text)

    def round(self, report: RoundReport) -> None:
        """At the step it landed, so that a resume from before that writes it once."""
        values = dataclasses.asdict(report)
        sent_step = values.pop("step")
        self.log.write("round", values.pop("landed_step"), sent_step=sent_step, **values)

    def window(self, first_step: int, rows_MS2: Tensor, lrs: Sequence[float], seconds: float) -> None:
        """Train events for a window of S steps: `rows_MS2` holds [nll, gradient norm] of every replica and step."""
        rate = rows_MS2.shape[1] * self.config.batch_tokens / seconds if seconds > 0 else 0.0
        for s, lr in enumerate(lrs):
            losses, norms = rows_MS2[:, s, 0].tolist(), rows_MS2[:, s, 1].tolist()
            step = first_step + s + 1
            self.log.write(
                "train",
                step,
                tokens=step * self.config.batch_tokens,
                loss=sum(losses) / len(losses),
                loss_per_replica=losses,
                inner_lr=lr,
                grad_norm=sum(norms) / len(norms),
                tokens_per_s=rate,
            )

    def evaluation(self, step: int, result: Evaluation, virtual_s: float | None = None) -> None:
        values = {"tokens": step * self.config.batch_tokens, "weights": "global", **dataclasses.asdict(result)}
        if virtual_s is not None:
            values["virtual_s"] = virtual_s
        self.log.write("eval", step, **values)

    def finish(self, receipt: dict[str, Any], row: dict[str, Any] | None) -> None:
        self.log.close()
        runfolder.write_json(self.folder / runfolder.RECEIPT, receipt)
        if row is not None:
            runfolder.write_row(self.folder / runfolder.ROW, row)


def run_path(config: TrainConfig) -> Path:
    return Path(config.runs) / config.run_name


def provenance(config: TrainConfig) -> dict[str, Any]:
    """What is needed to say which run this was: resolved settings with their hash, code and library versions,
    machine."""
    return {
        "config": to_dict(config),
        "config_hash": config_hash(config),
        "code": {"version": diloco.__version__, "sha256": _source_hash()},
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "machine": {"system": platform.platform(), "threads": torch.get_num_threads()},
    }


def _source_hash() -> str:
    digest, root = hashlib.sha256(), Path(diloco.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _check_fresh(folder: Path, resume: bool) -> None:
    started = (folder / runfolder.EVENTS).exists()
    if started and not resume:
        raise BadInput(f"run folder {folder} already holds a run: give another --name, or go on with --resume")
    if resume and not started:
        raise BadInput(
            f"run folder {folder} holds no run to resume: check --runs and --name (needed where --replicas is another "
            "than before), or leave out --resume"
        )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"run folder {folder} cannot be made ({error.strerror}): choose another with --runs") from error
