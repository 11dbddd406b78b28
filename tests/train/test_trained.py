"""A trained model comes back out of its run folder with the weights that were asked for.

pytest tests/train/test_trained.py
"""

from __future__ import annotations

import pytest
import torch
from support.training import tiny

from diloco.errors import BadInput
from diloco.train.loop import train
from diloco.train.run import run_path
from diloco.train.trained import heldout_data, open_trained


def test_global_weights_are_the_anchor_and_replicas_their_own(tmp_path):
    """Stopped in mid-window, where anchor, replica 0 and replica 1 all differ."""
    config = tiny(tmp_path, stop_at=6)
    train(config, quiet=True)
    run = run_path(config)
    found = {w: open_trained(run, w) for w in ("global", "replica-0", "replica-1")}
    weights = [torch.cat([p.detach().flatten() for p in t.model.parameters()]) for t in found.values()]
    assert not any(torch.equal(weights[i], weights[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    assert {t.step for t in found.values()} == {6} and not found["global"].model.training
    assert found["global"].config.size == "30k" and found["global"].notes == []


def test_after_a_sync_all_weights_are_the_global_ones(tmp_path):
    config = tiny(tmp_path, stop_at=8)
    train(config, quiet=True)
    first, second = (open_trained(run_path(config), w).model.state_dict() for w in ("global", "replica-1"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_data_parallel_has_one_set_of_weights(tmp_path):
    config = tiny(tmp_path, method="dp", stop_at=3)
    train(config, quiet=True)
    assert open_trained(run_path(config)).weights == "global"
    with pytest.raises(BadInput, match="no part 'replica-1'"):
        open_trained(run_path(config), "replica-1")


def test_heldout_data_is_the_runs_own(tmp_path):
    config = tiny(tmp_path, stop_at=3)
    train(config, quiet=True)
    trained = open_trained(run_path(config))
    assert heldout_data(trained).fingerprint == trained.data_fingerprint
