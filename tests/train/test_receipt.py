"""The receipt and the row: complete, and counted in closed form.

pytest tests/train/test_receipt.py
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.training import evals, quiet_train, rounds, tiny

from diloco.train.config import OuterConfig
from diloco.train.inner import InnerConfig
from diloco.train.run import run_path
from diloco.train.sizes import count, get_size
from diloco.watch.runfolder import ROW_COLUMNS, RunFolder

PARAMS = count(get_size("30k"), 256).params
HEADER_AND_TRAILER_BYTES = 5 * 8 + 4 * 8  # see outer/round.py; the model has no persistent buffers


def ring_bytes(replicas: int) -> float:
    """A ring sum of the fp32 model: each replica sends 2 (M - 1) / M of it."""
    return 2 * (replicas - 1) / replicas * 4 * PARAMS


@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.slow), 4])
def test_bytes_are_those_of_ring_sums(tmp_path: Path, replicas: int) -> None:
    receipts = {m: quiet_train(tiny(tmp_path, method=m, replicas=replicas)) for m in ("diloco", "local-sgd", "dp")}
    for method in ("diloco", "local-sgd"):
        expected = 5 * (ring_bytes(replicas) + (replicas - 1) * HEADER_AND_TRAILER_BYTES)
        assert receipts[method]["bytes_sent"] == pytest.approx(expected, abs=5)
        assert receipts[method]["bytes_sent_data_parallel"] == receipts["dp"]["bytes_sent"]
    assert receipts["dp"]["bytes_sent"] == pytest.approx(17 * ring_bytes(replicas), abs=17)


def test_the_receipt_of_a_good_run(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    receipt = quiet_train(config)
    assert receipt["ok"] and receipt["finished"] and receipt["run"] == config.run_name
    assert (receipt["steps"], receipt["steps_planned"], receipt["inner_steps"]) == (17, 17, 17)
    assert (receipt["rounds_planned"], receipt["rounds_committed"], receipt["rounds_failed"]) == (5, 5, 0)
    assert receipt["inner_steps_unsynced"] == receipt["inner_steps_dropped"] == receipt["tokens_lost"] == 0
    assert receipt["tokens"] == 17 * 256 and receipt["tokens_per_replica"] == [17 * 128] * 2
    assert receipt["checksum"] == rounds(config)[-1]["checksum"] == receipt["rounds"][-1]["checksum"]
    last = evals(config)[-1]
    assert [receipt[k] for k in ("loss", "loss_se", "bits_per_byte")] == [
        last[k] for k in ("loss", "loss_se", "bits_per_byte")
    ]
    assert receipt["loss_weights"] == "global"
    assert min(receipt[k] for k in ("seconds", "compute_s", "encode_s", "wire_s", "stall_s")) > 0
    assert receipt["link"] is receipt["virtual_s"] is None
    json.dumps(receipt, allow_nan=False)


def test_the_receipt_of_a_stopped_run_says_so(tmp_path: Path) -> None:
    config = tiny(tmp_path, replicas=4, stop_at=7)
    receipt = quiet_train(config)
    assert not receipt["finished"] and receipt["ok"] and receipt["loss"] is None
    assert receipt["inner_steps_unsynced"] == 3 and receipt["tokens_per_replica"] == [4 * 64] * 4
    assert RunFolder(run_path(config)).row is None


def test_a_run_stopped_before_its_first_sync_has_not_failed_yet(tmp_path: Path) -> None:
    receipt = quiet_train(tiny(tmp_path, stop_at=2))
    assert receipt["ok"] and not receipt["finished"] and receipt["rounds_planned"] == 0
    assert receipt["spread_max"] is None


def test_a_run_stopped_while_its_first_round_is_under_way_has_not_failed(tmp_path: Path) -> None:
    config = tiny(tmp_path, overlap="2", stop_at=5)
    receipt = quiet_train(config)
    assert receipt["rounds_planned"] == receipt["rounds_airborne"] == 1
    assert receipt["ok"] and not receipt["rounds_committed"] and not receipt["rounds_failed"]


def test_the_receipt_of_data_parallel(tmp_path: Path) -> None:
    receipt = quiet_train(tiny(tmp_path, method="dp", replicas=4))
    assert receipt["ok"] and "rounds_planned" not in receipt
    assert receipt["tokens_per_replica"] == [17 * 64] * 4 and receipt["tokens"] == 17 * 256


def test_the_row_has_every_column_and_the_run_s_settings(tmp_path: Path) -> None:
    config = tiny(tmp_path, seed=3, inner=InnerConfig(lr=1e-3), outer=OuterConfig(lr=0.5, momentum=0.8))
    receipt = quiet_train(config)
    row = RunFolder(run_path(config)).row
    assert tuple(row) == ROW_COLUMNS
    assert row["params"] == PARAMS == row["params_embedding"] + row["params_body"]
    assert row["params_embedding"] == 256 * get_size("30k").dim
    assert row["flops"] == 6 * PARAMS * 17 * 256
    settings = {"run": config.run_name, "method": "diloco", "model": "30k", "tokens": 17 * 256, "replicas": 2}
    settings |= {"sync_every": 4, "fragments": 1, "codec": "fp32", "batch_tokens": 256, "seed": 3}
    settings |= {"inner_lr": 1e-3, "outer_lr": 0.5, "outer_momentum": 0.8}
    settings |= {k: receipt[k] for k in ("loss", "loss_se", "seconds", "bytes_sent")}
    assert {k: row[k] for k in settings} == settings


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"method": "dp"}, {"sync_every": 1, "outer_lr": None, "outer_momentum": None}),
        ({"method": "local-sgd"}, {"sync_every": 4, "outer_lr": None, "outer_momentum": None}),
        ({"outer": OuterConfig(optimizer="sgd", lr=0.9)}, {"outer_lr": 0.9, "outer_momentum": None}),
        ({"outer": OuterConfig(optimizer="average")}, {"outer_lr": 1.0, "outer_momentum": None}),
        ({"outer": OuterConfig(optimizer="heavyball", lr=1.0, momentum=0.9)}, {"outer_lr": 1.0, "outer_momentum": 0.9}),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if len(value) == 1 else "",
)
def test_the_row_has_no_settings_without_effect(tmp_path: Path, changes: dict, expected: dict) -> None:
    config = tiny(tmp_path, steps=4, **changes)
    quiet_train(config)
    row = RunFolder(run_path(config)).row
    assert {k: row[k] for k in expected} == expected
