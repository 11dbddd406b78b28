"""The token cache: used again, checked, rebuilt when damaged, and safe to build twice at once.

Run: pytest tests/train/data/test_cache.py
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from diloco.errors import BadInput
from diloco.train.data import cache
from diloco.train.data.cache import open_corpus
from diloco.train.data.sources import Source, open_source
from diloco.train.data.tokenizer import ByteTokenizer


@pytest.fixture
def text(tmp_path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("some text " * 30)
    (tmp_path / "in" / "b.txt").write_text("ünd more")
    return tmp_path / "in"


def build(text: Path, tokenizer=None, max_tokens=0, progress=None, source=None):
    source = source or open_source(str(text), "text")
    return open_corpus(source, tokenizer or ByteTokenizer(), "text", max_tokens, text.parent / "cache", progress)


def never_read(source: Source) -> Source:
    def pieces():
        raise AssertionError("the source was read although its tokens are cached")
        yield

    return dataclasses.replace(source, pieces=pieces)


def only(folder: Path, suffix: str) -> Path:
    (path,) = folder.glob(f"tokens-*{suffix}")
    return path


def test_documents_are_joined_with_separators(text):
    order = [p.text for p in open_source(str(text), "text").pieces()]
    corpus = build(text)
    assert corpus.tokens.tobytes() == "".join(t + "\0" for t in order).encode() and corpus.tokens.dtype == np.uint8
    meta = json.loads(only(text.parent / "cache", ".json").read_text())
    assert meta["sha256"] == corpus.sha256 == hashlib.sha256(corpus.tokens.tobytes()).hexdigest()
    assert meta["tokens"] == len(corpus.tokens) and meta["dtype"] == "uint8" and meta["tokenizer"] == "bytes"


def test_cached_tokens_are_used_again(text):
    first = build(text)
    again = build(text, source=never_read(open_source(str(text), "text")))
    assert np.array_equal(first.tokens, again.tokens) and not again.tokens.flags.writeable


def test_changed_text_or_options_give_another_cache(text):
    first = build(text)
    assert len(build(text, max_tokens=50).tokens) == 50
    (text / "b.txt").write_text("changed")
    assert len(build(text).tokens) != len(first.tokens)
    assert len(list((text.parent / "cache").glob("*.bin"))) == 3


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def tampered(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "suffix, damage",
    [
        (".bin", torn),
        (".bin", tampered),
        (".bin", Path.unlink),
        (".json", torn),
        (".bin", lambda p: p.write_bytes(b"")),
    ],
)
def test_a_damaged_cache_is_rebuilt_with_a_warning(text, suffix, damage):
    expected = build(text).tokens.tobytes()
    damage(only(text.parent / "cache", suffix))
    with pytest.warns(UserWarning, match="building them again"):
        assert build(text).tokens.tobytes() == expected
    build(text, source=never_read(open_source(str(text), "text")))


def test_a_damaged_cache_of_a_stream_is_refused(text):
    streamed = dataclasses.replace(open_source(str(text), "text"), spec="hf:some/thing", streamed=True)
    build(text, source=streamed)
    tampered(only(text.parent / "cache", ".bin"))
    with pytest.raises(BadInput, match="hf:some/thing: .*does not match its checksum; delete .*json"):
        build(text, source=streamed)


def test_a_build_overtaken_by_another_ends_right(text):
    source = open_source(str(text), "text")

    def pieces():
        yield from source.pieces()
        build(text, source=source)

    overtaken = build(text, source=dataclasses.replace(source, pieces=pieces))
    assert overtaken.tokens.tobytes() == build(text, source=never_read(source)).tokens.tobytes()


@pytest.mark.slow
def test_processes_that_build_at_once_all_end_right(text):
    (text / "a.txt").write_text("some text " * 300_000)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        sums = list(pool.map(_checksum, [str(text)] * 4))
    assert len(set(sums)) == 1 and sums[0] == build(text).sha256
    assert {path.suffix for path in (text.parent / "cache").iterdir()} == {".bin", ".json"}


def _checksum(text: str) -> str:
    return build(Path(text)).sha256


def test_a_failed_build_leaves_nothing(text):
    source = open_source(str(text), "text")

    def pieces():
        yield from source.pieces()
        raise BadInput("the second half is missing")

    with pytest.raises(BadInput, match="second half"):
        build(text, source=dataclasses.replace(source, pieces=pieces))
    assert list((text.parent / "cache").iterdir()) == []


def test_text_is_tokenised_group_by_group(text, monkeypatch):
    whole = build(text).tokens.tobytes()
    monkeypatch.setattr(cache, "GROUP_CHARS", 3)
    fractions = []
    (text.parent / "cache").rename(text.parent / "old")
    assert build(text, progress=lambda spec, fraction: fractions.append(fraction)).tokens.tobytes() == whole
    assert fractions == sorted(fractions) and fractions[-1] == 1.0 and len(fractions) > 2


class WideTokenizer(ByteTokenizer):
    fingerprint = "wide"

    def __init__(self, vocab_size: int, shift: int):
        self.vocab_size, self.shift = vocab_size, shift

    def encode_batch(self, texts):
        return [np.frombuffer(t.encode(), np.uint8).astype(np.uint32) + self.shift for t in texts]


@pytest.mark.parametrize("vocab, dtype", [(256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")])
def test_ids_are_kept_in_the_smallest_type(text, vocab, dtype):
    corpus = build(text, WideTokenizer(vocab, shift=vocab - 256))
    assert corpus.tokens.dtype == dtype and int(corpus.tokens.max()) == vocab - 256 + max("ünd more".encode())


def test_a_token_outside_the_vocabulary_is_refused(text):
    with pytest.raises(BadInput, match="token id 1.., outside the tokenizer's vocabulary of 100"):
        build(text, WideTokenizer(100, shift=0))


def test_a_cache_folder_that_cannot_be_made_is_named(text):
    (text.parent / "cache").write_text("a file is in the way")
    with pytest.raises(BadInput, match="cache_dir .*cache cannot be written"):
        build(text)
