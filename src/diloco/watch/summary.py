"""What one run did, read from its folder: the facts that the reports and the command line show."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from diloco.watch.runfolder import ROW_COLUMNS, RunFolder

GRADIENT_BYTES = 4
"""Size of an fp32 gradient, which data parallel sums over the replicas at every inner step."""


@dataclass(frozen=True)
class Summary:
    """One run. None stands for what the folder does not tell."""

    name: str
    ended: bool
    facts: dict[str, Any]
    """The columns of the row; while the run goes on, those of them that the config names."""
    train: list[dict]
    evals: list[dict]
    """Held-out evaluations of `weights`, in order."""
    weights: str | None
    rounds: list[dict]
    intervals: list[dict]
    """Changes of H, in order."""
    rounds_planned: int
    rounds_committed: int
    rounds_failed: int
    bytes_sent: int | None
    """Per replica."""
    bytes_data_parallel: int | None
    """What a replica would have sent under data parallel on the same tokens."""
    receipt: dict[str, Any]
    """Empty while the run goes on."""

    @property
    def final(self) -> dict | None:
        return self.evals[-1] if self.evals else None

    @property
    def loss(self) -> float | None:
        """Held-out loss in nats per token: the row's, else the newest evaluation's."""
        if self.facts.get("loss") is not None:
            return self.facts["loss"]
        return self.final["loss"] if self.final else None

    @property
    def fragments(self) -> list[int]:
        return sorted({event.get("fragment", 0) for event in self.rounds})

    @property
    def virtual_s(self) -> float | None:
        """What the run would have taken over the link it simulates."""
        return self.final.get("virtual_s") if self.final else None

    @property
    def has_rounds(self) -> bool:
        return bool(self.rounds_planned or self.rounds)


def summarize(run: RunFolder) -> Summary:
    """Read all of a run folder once."""
    by_kind: dict[str, list[dict]] = {"train": [], "eval": [], "round": [], "interval": []}
    for event in run.events(kinds=by_kind):
        by_kind[event["kind"]].append(event)
    receipt, row = run.receipt, run.row
    facts = row or _facts_of_config(run.config)
    weights = _final_weights(by_kind["eval"])
    rounds = by_kind["round"]
    committed = sum(1 for event in rounds if event.get("committed"))
    counted = receipt or {}
    return Summary(
        name=run.name,
        ended=receipt is not None,
        facts=facts,
        train=by_kind["train"],
        evals=[event for event in by_kind["eval"] if event.get("weights") == weights],
        weights=weights,
        rounds=rounds,
        intervals=by_kind["interval"],
        rounds_planned=counted.get("rounds_planned", len(rounds)),
        rounds_committed=counted.get("rounds_committed", committed),
        rounds_failed=counted.get("rounds_failed", len(rounds) - committed),
        bytes_sent=facts.get("bytes_sent") if row else sum(event.get("bytes_sent") or 0 for event in rounds),
        bytes_data_parallel=_bytes_data_parallel(facts),
        receipt=counted,
    )


def problems(summary: Summary) -> list[str]:
    """What a reader must know before any number: a sentence each, worst first; empty if all went as planned."""
    found = []
    several = (summary.facts.get("replicas") or 1) > 1
    if summary.has_rounds and summary.ended and not summary.rounds_committed:
        fate = "these are independent replicas, not one model" if several else "the anchor never moved"
        found.append(f"No round was ever committed: {fate}.")
    elif summary.rounds_failed:
        found.append(f"{summary.rounds_failed} of {summary.rounds_planned} rounds failed.")
    if summary.loss is not None and not math.isfinite(summary.loss):
        found.append("The held-out loss is not a number: the run diverged.")
    if left_out := [event for event in summary.rounds if event.get("left_out")]:
        replicas = sorted({str(replica) for event in left_out for replica in event["left_out"]})
        how_often = f"{len(left_out)} of {len(summary.rounds)} rounds"
        found.append(f"Replica {', '.join(replicas)} was left out of the merge in {how_often}.")
    return found


def data_parallel_bytes(params: float, inner_steps: float, replicas: int) -> int:
    """Bytes a replica sends under data parallel: to sum over M replicas, 2 (M-1)/M of the gradient, the least possible.

    `bytes_sent` in receipts counts a sync's sum in the same way, so the two compare.
    """
    return round(2 * (replicas - 1) / replicas * GRADIENT_BYTES * params * inner_steps)


def flatten(tree: dict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a nested dict with their dotted paths."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _facts_of_config(config: dict) -> dict[str, Any]:
    leaves = {path.rsplit(".", 1)[-1]: value for path, value in flatten(config)}
    return {column: leaves[column] for column in ROW_COLUMNS if column in leaves and column not in ("loss", "tokens")}


def _final_weights(evals: list[dict]) -> str | None:
    names = [event.get("weights") for event in evals]
    return "global" if "global" in names else names[-1] if names else None


def _bytes_data_parallel(facts: dict[str, Any]) -> int | None:
    if (facts.get("replicas") or 1) < 2 or not all(facts.get(key) for key in ("params", "tokens", "batch_tokens")):
        return None
    return data_parallel_bytes(facts["params"], facts["tokens"] / facts["batch_tokens"], facts["replicas"])
