"""Batches: what they hold, and that they depend on nothing but their arguments.

Run: pytest tests/train/data/test_data.py
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from diloco.errors import BadInput
from diloco.train.data import DataConfig, open_data
from diloco.train.data.data import split_windows

L = 16


@pytest.fixture
def numbered(tmp_path):
    """A corpus of bytes in which every window of 4 bytes is unique, so that a batch tells where it comes from."""
    text = "".join(f"{i:03x}." for i in range(1000))
    (tmp_path / "a.txt").write_text(text)
    return tmp_path


def config(tmp_path, *sources, **kwargs) -> DataConfig:
    sources = sources or (str(tmp_path / "a.txt"),)
    return DataConfig(**{"sources": sources, "seq_len": L, "cache_dir": str(tmp_path / "cache"), **kwargs})


def batches(data, steps, replica=0, replicas=2, sequences=8):
    return [data.batch(step, replica, replicas, sequences) for step in steps]


def test_a_batch_holds_the_windows_of_its_sample_ids(numbered):
    data = open_data(config(numbered))
    tokens = (numbered / "a.txt").read_bytes() + b"\0"
    for step in (0, 5, 100):
        batch_BT = data.batch(step, 1, 2, 8)
        assert batch_BT.shape == (4, L + 1) and batch_BT.dtype == torch.int64
        for row, sample in zip(batch_BT.tolist(), data.sample_ids(step, 1, 2, 8), strict=True):
            assert bytes(row) == tokens[sample * L : sample * L + L + 1]


def test_heldout_tokens_are_never_trained_on(numbered):
    data = open_data(config(numbered, heldout=0.1))
    tokens = (numbered / "a.txt").read_bytes() + b"\0"
    n = data.train_tokens // L
    samples = np.concatenate([data.sample_ids(step, 0, 1, 8) for step in range(2 * n // 8)])
    assert samples.max() == n - 1
    last_trained = (n - 1) * L + L
    heldout = torch.cat(list(data.heldout_batches(8, limit=10_000)))
    assert len(heldout) * L == data.heldout_tokens
    starts = [tokens.index(bytes(row)) for row in heldout.tolist()]
    assert min(starts) == last_trained + 1 and max(starts) + L + 1 <= len(tokens)
    assert len(heldout) == pytest.approx(0.1 * len(tokens) / L, abs=1)


@pytest.mark.parametrize("tokens", [34, 35, 49, 50, 51, 1000, 1001])
@pytest.mark.parametrize("heldout", [0.001, 0.05, 0.5, 0.99])
def test_split_leaves_both_parts_at_least_one_window(tokens, heldout):
    train, held = split_windows(tokens, 16, heldout)
    assert train >= 1 and held >= 1
    assert (train * 16 + 1) + (held * 16 + 1) <= tokens < (train + held + 1) * 16 + 2


def test_resume_after_more_than_an_epoch_report_45(numbered):
    """Consume 1.3 epochs, stop, resume: the next 100 batches equal those of an uninterrupted run."""
    data = open_data(config(numbered))
    epoch_steps = data.train_tokens // L // 8
    stop = int(1.3 * epoch_steps)
    uninterrupted = batches(data, range(stop + 100))
    resumed = batches(open_data(config(numbered)), range(stop, stop + 100))
    assert all(torch.equal(a, b) for a, b in zip(uninterrupted[stop:], resumed, strict=True))


def test_resume_twice_report_47(numbered):
    whole = batches(open_data(config(numbered)), range(90))
    parts = [
        b for steps in (range(31), range(31, 62), range(62, 90)) for b in batches(open_data(config(numbered)), steps)
    ]
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))


def test_data_opened_before_the_step_is_known_gives_the_right_shard_report_50(numbered):
    """There is no position inside the data, so opening it before or after a restore makes no difference."""
    early = open_data(config(numbered))
    batches(early, range(7))
    late = open_data(config(numbered))
    assert torch.equal(early.batch(500, 1, 2, 8), late.batch(500, 1, 2, 8))


def test_the_same_tokens_for_any_number_of_replicas(numbered):
    data = open_data(config(numbered))
    for step in (0, 40):
        whole = data.batch(step, 0, 1, 8)
        for replicas in (2, 4):
            assert torch.equal(whole, torch.cat([data.batch(step, m, replicas, 8) for m in range(replicas)]))


def test_empty_or_short_data_is_refused_before_training_report_54(tmp_path):
    (tmp_path / "a.txt").write_text("x" * 32)
    with pytest.raises(BadInput, match="gives 33 tokens, but seq_len 16 needs at least 34"):
        open_data(config(tmp_path))
    (tmp_path / "a.txt").write_text("x" * 33)
    data = open_data(config(tmp_path))
    assert (data.train_tokens, data.heldout_tokens) == (L, L)
    with pytest.raises(BadInput, match="4 sequences is more than the 1 training sequences"):
        data.batch(0, 0, 1, 4)
    with pytest.raises(BadInput, match="evaluation of 0 sequences"):
        next(data.heldout_batches(4, limit=0))
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(BadInput, match="holds no text"):
        open_data(config(tmp_path))


def test_heldout_batches_are_fixed_limited_and_spread(numbered):
    data = open_data(config(numbered, heldout=0.5))
    all_BT = torch.cat(list(data.heldout_batches(7, limit=10_000)))
    some = list(data.heldout_batches(4, limit=10))
    assert [len(b) for b in some] == [4, 4, 2]
    expected = all_BT[[i * len(all_BT) // 10 for i in range(10)]]
    assert torch.equal(torch.cat(some), expected)
    assert torch.equal(torch.cat(some), torch.cat(list(data.heldout_batches(3, limit=10))))
    other_seed = open_data(config(numbered, heldout=0.5, seed=9))
    assert torch.equal(torch.cat(some), torch.cat(list(other_seed.heldout_batches(4, limit=10))))


def test_mixture_has_its_weights_in_training_and_heldout(tmp_path):
    (tmp_path / "a.txt").write_text("a" * 20_000)
    (tmp_path / "b.txt").write_text("b" * 9_000)
    data = open_data(config(tmp_path, f"{tmp_path}/a.txt=3", f"{tmp_path}/b.txt", heldout=0.2))
    train = torch.cat([data.batch(step, 0, 1, 10)[:, 0] for step in range(100)])
    assert (train == ord("a")).sum() == 750 and (train == ord("b")).sum() == 250
    heldout = torch.cat(list(data.heldout_batches(8, limit=40)))[:, 0]
    assert (heldout == ord("a")).sum() == 30 and (heldout == ord("b")).sum() == 10


def test_fingerprint_is_of_tokens_tokenizer_and_split(numbered, tmp_path_factory):
    same = tmp_path_factory.mktemp("other machine")
    (same / "a.txt").write_bytes((numbered / "a.txt").read_bytes())
    here = open_data(config(numbered)).fingerprint
    assert open_data(config(same, seed=5)).fingerprint == here
    assert open_data(config(numbered, heldout=0.3)).fingerprint != here
    assert open_data(config(numbered, seq_len=8)).fingerprint != here
    assert open_data(config(numbered, tokenizer="bpe:300")).fingerprint != here
    (same / "a.txt").write_bytes((numbered / "a.txt").read_bytes().replace(b"3e7", b"3e8"))
    assert open_data(config(same)).fingerprint != here


def test_bits_per_byte_have_their_denominator(tmp_path):
    (tmp_path / "a.txt").write_text("the cat sat on the mat, and the rat ate the bun. " * 100)
    assert open_data(config(tmp_path)).bytes_per_token == 1.0
    data = open_data(config(tmp_path, tokenizer="bpe:270", heldout=0.2))
    ids = torch.cat([b[:, :-1] for b in data.heldout_batches(8, limit=10_000)]).flatten().tolist()
    text = data.tokenizer.decode(ids).replace("<|sep|>", "\0")
    assert data.bytes_per_token == pytest.approx(len(text.encode()) / len(ids), rel=0.02)
    assert data.bytes_per_token > 1.2


def test_stdlib_needs_nothing_but_python(tmp_path):
    data = open_data(config(tmp_path, "stdlib", max_tokens=300_000, seq_len=128))
    assert data.vocab_size == 256 and data.train_tokens + data.heldout_tokens > 299_000
    assert "def " in data.tokenizer.decode(torch.cat(batches(data, range(4))).flatten().tolist())


def test_contiguous_replicas_see_different_text(tmp_path):
    (tmp_path / "a.txt").write_text("a" * 1000 + "b" * 1000 + "z" * 200)
    data = open_data(config(tmp_path, shards="contiguous", heldout=0.1))
    for step in range(100):
        assert set(data.batch(step, 0, 2, 4).flatten().tolist()) <= {ord("a"), ord("b")}
    first = torch.cat(batches(data, range(60)))
    second = torch.cat(batches(data, range(60), replica=1))
    assert (first == ord("a")).float().mean() > 0.95 and (second == ord("b")).float().mean() > 0.85


@pytest.mark.parametrize(
    "sources, message",
    [
        (("a.txt=1", "b.txt=5000"), "a.txt=1 has less than 1/1000 of the total weight"),
        ((".", "a.txt"), "lies inside source ."),
    ],
)
def test_mixtures_that_cannot_work_are_refused(tmp_path, monkeypatch, sources, message):
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name * 100)
    with pytest.raises(BadInput, match=message):
        open_data(config(tmp_path, *sources))
