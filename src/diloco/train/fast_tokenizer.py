"""A run's tokenizer as `transformers` loads it: the same ids for the same text."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from diloco.train.data.tokenizer import Tokenizer
from diloco.watch.runfolder import TOKENIZER

TOKENIZER_CONFIG = "tokenizer_config.json"


def write_fast_tokenizer(folder: Path, tokenizer: Tokenizer, seq_len: int | None) -> None:
    """Writes tokenizer.json and tokenizer_config.json for `AutoTokenizer`, cut at `seq_len` tokens where given.

    The separator is the end-of-text token, which text may spell; bytes have none, since every byte may stand in a text.
    """
    from tokenizers import Tokenizer as FastTokenizer

    content = json.loads(_byte_tokenizer_json() if tokenizer.json is None else tokenizer.json)
    # Training cut, padded and framed nothing, whatever the file was made for.
    content |= {"truncation": None, "padding": None, "post_processor": None}
    text = json.dumps(content, ensure_ascii=False)
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    if seq_len is not None:
        config["model_max_length"] = seq_len
    if tokenizer.json is not None:
        config["eos_token"] = FastTokenizer.from_str(text).id_to_token(tokenizer.separator)
    (folder / TOKENIZER).write_text(text, encoding="utf-8")
    (folder / TOKENIZER_CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False), encoding="utf-8")


def _byte_tokenizer_json() -> str:
    """One token a byte as the `tokenizers` library has it: a byte-level vocabulary without merges."""
    from tokenizers import Tokenizer as FastTokenizer
    from tokenizers import decoders, models, pre_tokenizers

    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    others = itertools.count(256)  # a byte that is no printable character has the next one from here on
    vocab = {chr(byte) if chr(byte) in alphabet else chr(next(others)): byte for byte in range(256)}
    fast = FastTokenizer(models.BPE(vocab=vocab, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    return fast.to_str()
