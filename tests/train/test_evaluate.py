"""Held-out loss: the right number, of the right weights, with its error bar.

pytest tests/train/test_evaluate.py
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support.training import open_job, tiny

from diloco.train import evaluate as module
from diloco.train.evaluate import Evaluation, evaluate
from diloco.train.loop import Job


def evaluated(job: Job, weights: dict, sequences: int = 8) -> Evaluation:
    return evaluate(job.replicas[0].model, weights, job.data, sequences, "fp32", torch.device("cpu"))


def losses_by_hand(job: Job, sequences: int) -> list[float]:
    """Of replica 0's own weights: mean cross entropy of each held-out sequence, one at a time."""
    with torch.no_grad():
        return [
            F.cross_entropy(job.replicas[0].model(row_BT[:, :-1])[0], row_BT[0, 1:]).item()
            for row_BT in job.data.heldout_batches(1, sequences)
        ]


def test_equals_a_plain_loop_with_its_standard_error_and_bits_per_byte(tmp_path: Path, monkeypatch) -> None:
    with open_job(tiny(tmp_path)) as job:
        for step in range(4):
            job.inner_step(step)
        by_hand = losses_by_hand(job, 9)
        found = evaluated(job, job.replicas[0].global_weights(), 9)  # after a sync these are the local weights too
        monkeypatch.setattr(module, "EVAL_BATCH_TOKENS", 2 * 32)  # 5 uneven batches instead of 1
        assert evaluated(job, job.replicas[0].global_weights(), 9).loss == pytest.approx(found.loss, rel=1e-6)
    assert found.sequences == len(by_hand) == 9
    assert found.loss == pytest.approx(statistics.mean(by_hand), rel=1e-6)
    assert found.loss_se == pytest.approx(statistics.stdev(by_hand) / 3, rel=1e-5)
    # Bytes are the tokens here, so nats per token are nats per byte.
    assert job.data.bytes_per_token == 1.0
    assert found.bits_per_byte == pytest.approx(found.loss / math.log(2), rel=1e-12)


def test_bits_per_byte_count_the_bytes_of_a_token(tmp_path: Path) -> None:
    with open_job(tiny(tmp_path)) as job:
        job.data.bytes_per_token = 4.0
        found = evaluated(job, job.replicas[0].global_weights())
    assert found.bits_per_byte == pytest.approx(found.loss / math.log(2) / 4, rel=1e-12)


def test_one_sequence_has_no_spread(tmp_path: Path) -> None:
    with open_job(tiny(tmp_path)) as job:
        found = evaluated(job, job.replicas[0].global_weights(), 1)
    assert found.sequences == 1 and found.loss_se == 0.0


def test_in_mid_window_the_anchor_is_measured_and_not_the_replica(tmp_path: Path) -> None:
    with open_job(tiny(tmp_path)) as job:
        for step in range(4):
            job.inner_step(step)
        at_sync = evaluated(job, job.replicas[0].global_weights())
        for step in range(4, 7):
            job.inner_step(step)
        own = {name: p.detach() for name, p in job.replicas[0].model.named_parameters()}
        assert evaluated(job, job.replicas[0].global_weights()) == at_sync
        local = evaluated(job, own)
        assert local.loss == pytest.approx(statistics.mean(losses_by_hand(job, 8)), rel=1e-6)
        assert local.loss != at_sync.loss
        assert [evaluated(job, r.global_weights()) for r in job.replicas] == [at_sync] * 2


def test_it_leaves_weights_mode_and_random_state_alone(tmp_path: Path) -> None:
    with open_job(tiny(tmp_path)) as job:
        job.inner_step(0)
        model = job.replicas[0].model
        before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
        evaluated(job, job.replicas[0].global_weights())
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
        assert model.training and torch.equal(torch.get_rng_state(), state)
        assert all(p.grad is None for p in model.parameters())
        model.eval()
        evaluated(job, job.replicas[0].global_weights())
        assert not model.training


def test_progress_ends_at_all_of_it(tmp_path: Path) -> None:
    seen: list[float] = []
    with open_job(tiny(tmp_path)) as job:
        replica = job.replicas[0]
        evaluate(replica.model, replica.global_weights(), job.data, 8, "bf16", torch.device("cpu"), seen.append)
    assert seen[-1] == 1.0
