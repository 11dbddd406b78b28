"""Tokenizers: what goes in comes out, and files that cannot be used are refused.

Run: pytest tests/train/data/test_tokenizer.py
"""

from __future__ import annotations

import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from diloco.errors import BadInput
from diloco.train.data.config import DataConfig
from diloco.train.data.sources import open_source
from diloco.train.data.tokenizer import ByteTokenizer, open_tokenizer, training_text

TEXT = "the cat sat on the mat, and the rat ate the bun. "


def bpe(tmp_path, n=270, text=TEXT * 50, **kwargs):
    (tmp_path / "a.txt").write_text(text)
    config = DataConfig(
        sources=(str(tmp_path / "a.txt"),), tokenizer=f"bpe:{n}", cache_dir=str(tmp_path / "cache"), **kwargs
    )
    return open_tokenizer(config, [open_source(config.sources[0], "text")])


def word_file(path, *, special="<eos>", truncate=False):
    fast = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1, "cat": 2}, unk_token="[UNK]"))
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    fast.add_special_tokens([special])
    if truncate:
        fast.enable_truncation(2)
        fast.enable_padding(length=2)
    fast.save(str(path))
    return str(path)


@pytest.mark.parametrize(
    "text", ["", "plain", "naïve – 日本語 🙂", "tabs\t\r\n  and   spaces\n\n", "<|sep|> is text", "\0"]
)
def test_round_trip(tmp_path, text):
    for tokenizer in (ByteTokenizer(), bpe(tmp_path)):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.encode_batch([text, "x"])[0].tolist() == ids
        assert tokenizer.count_bytes(np.array([*ids, tokenizer.separator])) == len(text.encode()) + 1
        assert max(ids, default=0) < tokenizer.vocab_size


def test_bpe_has_the_size_asked_for_and_shortens_text(tmp_path):
    tokenizer = bpe(tmp_path)
    assert tokenizer.vocab_size == 270
    assert len(tokenizer.encode(TEXT)) < 0.7 * len(TEXT)
    assert tokenizer.separator not in tokenizer.encode("a<|sep|>b")


def test_bpe_is_trained_once_and_the_same_every_time(tmp_path):
    first = bpe(tmp_path)
    (path,) = (tmp_path / "cache").glob("bpe-*.json")
    written = path.stat().st_mtime_ns
    assert bpe_again(tmp_path).fingerprint == first.fingerprint and path.stat().st_mtime_ns == written
    path.unlink()
    assert bpe_again(tmp_path).fingerprint == first.fingerprint


def bpe_again(tmp_path):
    source = open_source(str(tmp_path / "a.txt"), "text")
    return open_tokenizer(DataConfig(tokenizer="bpe:270", cache_dir=str(tmp_path / "cache")), [source])


def test_a_torn_bpe_file_is_trained_again(tmp_path):
    first = bpe(tmp_path)
    (path,) = (tmp_path / "cache").glob("bpe-*.json")
    path.write_bytes(path.read_bytes()[:500])
    with pytest.warns(UserWarning, match="training it again"):
        assert bpe_again(tmp_path).fingerprint == first.fingerprint


def test_bpe_says_when_the_text_is_too_small(tmp_path):
    with pytest.warns(UserWarning, match="bpe:5000 found only 2.. tokens"):
        assert bpe(tmp_path, 5000, "ab ab ab").vocab_size < 300


def test_bpe_sees_no_heldout_text(tmp_path):
    (tmp_path / "a.txt").write_text("a" * 900 + "b" * 100)
    source = open_source(str(tmp_path / "a.txt"), "text")
    config = DataConfig(heldout=0.1)
    assert training_text(source, config, 10**6) == ["a" * 900]
    assert training_text(source, config, 50) == ["a" * 50]
    assert training_text(source, DataConfig(heldout=0.1, max_tokens=100), 10**6) == ["a" * 90]


def test_a_tokenizer_file_is_used_as_it_is(tmp_path):
    path = word_file(tmp_path / "words.json", truncate=True)
    tokenizer = open_tokenizer(DataConfig(tokenizer=path), [])
    assert tokenizer.vocab_size == 4 and tokenizer.separator == 3
    assert tokenizer.encode("the cat the cat dog") == [1, 2, 1, 2, 0]
    other = open_tokenizer(DataConfig(tokenizer=word_file(tmp_path / "b.json", special="</s>")), [])
    assert other.fingerprint != tokenizer.fingerprint


def test_tokenizer_files_that_cannot_be_used(tmp_path):
    path = tmp_path / "t.json"
    path.write_text('{"not": "a tokenizer"}')
    with pytest.raises(BadInput, match="t.json is not a readable tokenizers JSON file"):
        open_tokenizer(DataConfig(tokenizer=str(path)), [])
    with pytest.raises(BadInput, match="no token that ends a text"):
        open_tokenizer(DataConfig(tokenizer=word_file(path, special="<other>")), [])


def test_ids_outside_the_vocabulary_are_refused(tmp_path):
    with pytest.raises(BadInput, match="token id 256 is outside the vocabulary of 256"):
        ByteTokenizer().decode([65, 256])
    with pytest.raises(BadInput, match="token id 270 is outside the vocabulary of 270"):
        bpe(tmp_path).decode([270])
