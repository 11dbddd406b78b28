"""Options of the data pipeline: what is refused, and with which words.

Run: pytest tests/train/data/test_config.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from diloco.errors import BadInput
from diloco.train.data.config import DataConfig, bpe_vocab, split_weight


@pytest.mark.parametrize(
    "options, message",
    [
        ({"sources": ()}, "sources is empty"),
        ({"sources": ("a.txt", "a.txt=2")}, "names a.txt twice"),
        ({"sources": ("a.txt=0",)}, "weight must be a finite number above 0"),
        ({"sources": ("a.txt=-1",)}, "weight must be"),
        ({"sources": ("a.txt=nan",)}, "weight must be"),
        ({"sources": ("a.txt=inf",)}, "weight must be"),
        ({"sources": ("a.txt=much",)}, "weight 'much' is not a number"),
        ({"sources": ("hf:allenai/c4:en",)}, "hf:allenai/c4:en is streamed, so max_tokens must say"),
        ({"tokenizer": "byte"}, r"'byte' is neither.*did you mean bytes\?"),
        ({"tokenizer": "bep:300"}, r"did you mean bpe:4096\?"),
        ({"tokenizer": "nowhere.json"}, "nor a tokenizers JSON file that exists$"),
        ({"tokenizer": "bpe:256"}, "at least 257"),
        ({"tokenizer": "bpe:many"}, "needs a whole number N"),
        ({"seq_len": 0}, "seq_len is 0"),
        ({"heldout": 0.0}, "heldout is 0.0"),
        ({"heldout": 1.0}, "heldout is 1.0"),
        ({"heldout": float("nan")}, "heldout is nan"),
        ({"max_tokens": -5}, "max_tokens is -5"),
        ({"overlap": 0.6}, "overlap is 0.6"),
        ({"overlap": -0.1}, "overlap is -0.1"),
        ({"overlap": float("nan")}, "overlap is nan"),
        ({"shards": "mixed"}, "shards is 'mixed': choose shuffled or contiguous"),
    ],
)
def test_bad_options_are_refused_in_one_line(options, message):
    with pytest.raises(BadInput, match=message) as caught:
        DataConfig(**options)
    assert "\n" not in str(caught.value)


def test_weights_are_split_from_sources(tmp_path):
    assert split_weight("a.txt") == ("a.txt", 1.0)
    assert split_weight("hf:allenai/c4:en=0.7") == ("hf:allenai/c4:en", 0.7)
    odd = tmp_path / "lr=3"
    odd.write_text("a path that exists keeps its sign")
    assert split_weight(str(odd)) == (str(odd), 1.0)
    assert split_weight(f"{odd}=2") == (str(odd), 2.0)


def test_bpe_size():
    assert bpe_vocab("bpe:4096") == 4096 and bpe_vocab("bytes") is None


def test_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert DataConfig().cache_path == Path("/somewhere/diloco")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert DataConfig().cache_path == Path("/home/me/.cache/diloco")
    assert DataConfig(cache_dir="~/c").cache_path == Path("/home/me/c")
