"""An exported model gives the same logits in `transformers`, without code of ours, and in our own plain form.

pytest tests/train/test_export.py
"""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file
from support.exported import ATOL, in_transformers, logits_apart, tokens
from tokenizers import pre_tokenizers

from diloco.errors import BadInput
from diloco.train.data.tokenizer import ByteTokenizer, JsonTokenizer
from diloco.train.export import DTYPES, export_model
from diloco.train.hf import load_hf
from diloco.train.model import build_model
from diloco.train.plain import is_plain, load_plain
from diloco.train.sample import generate
from diloco.train.sizes import SIZES

FACTS = {"run": "a", "step": 3, "weights": "global"}


def _model(tied=True, size="30k", vocab=256, seq_len=32):
    """Every gain is its own and every matrix larger than at the start: nothing that is wrong can hide behind a 1."""
    model = build_model(SIZES[size], vocab, seq_len, seed=0, tied=tied).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5) if weight.dim() > 1 else weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    return model


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("size", "vocab", "seq_len"), [("30k", 256, 32), ("100k", 257, 300), ("300k", 61, 17)])
def test_transformers_computes_the_same_logits_without_our_code(tmp_path, tied, size, vocab, seq_len):
    model = _model(tied, size, vocab, seq_len)
    export_model(model, tmp_path / "out", tokenizer=None, facts=FACTS)
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"config.json", "model.safetensors"}
    assert ("lm_head.weight" in load_file(tmp_path / "out" / "model.safetensors")) is not tied
    hf, tokens_BT = in_transformers(tmp_path / "out"), tokens(vocab, seq_len)
    assert 0.3 < model(tokens_BT).std() < 3 and logits_apart(hf, model, tokens_BT) < ATOL
    head, embedding = hf.get_output_embeddings().weight, hf.get_input_embeddings().weight
    assert (head.data_ptr() == embedding.data_ptr()) is tied


def test_the_trainer_takes_the_export_for_a_hugging_face_model(tmp_path):
    model = _model()
    export_model(model, tmp_path / "out", tokenizer=ByteTokenizer(), facts=FACTS)
    torch.testing.assert_close(
        load_hf(str(tmp_path / "out")).eval()(tokens(256, 32)), model(tokens(256, 32)), rtol=0, atol=ATOL
    )


def test_transformers_writes_the_same_text(tmp_path):
    model = _model()
    export_model(model, tmp_path / "out", tokenizer=ByteTokenizer(), facts=FACTS)
    hf = in_transformers(tmp_path / "out")
    tokens_1T = torch.tensor([[104, 105]])
    ours = generate(model, tokens_1T, 20, temperature=0.0)
    theirs = hf.generate(tokens_1T, max_new_tokens=20, do_sample=False, attention_mask=torch.ones_like(tokens_1T))
    assert 0 not in ours and torch.equal(ours, theirs)
    assert hf.generation_config.eos_token_id == ByteTokenizer.separator


@pytest.mark.parametrize("tied", [True, False])
def test_the_plain_form_comes_back_bit_for_bit(tmp_path, tied):
    model = _model(tied, vocab=61, seq_len=17)
    export_model(model, tmp_path / "out", tokenizer=None, facts=FACTS, format="safetensors")
    again = load_plain(tmp_path / "out")
    state = model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in again.state_dict().items())
    assert torch.equal(again(tokens(61, 17)), model(tokens(61, 17))) and not again.training
    record = json.loads((tmp_path / "out" / "config.json").read_text())
    assert record.items() >= FACTS.items() and is_plain(tmp_path / "out")


@pytest.mark.parametrize("format", ["transformers", "safetensors"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_dtypes_round_each_weight_once(tmp_path, format, dtype):
    model = _model()
    export_model(model, tmp_path / "out", tokenizer=None, facts=FACTS, format=format, dtype=dtype)
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert {weight.dtype for weight in stored.values()} == {DTYPES[dtype]}
    name = "model.embed_tokens.weight" if format == "transformers" else "embed.weight"
    assert torch.equal(stored[name], model.embed.weight.to(DTYPES[dtype]))
    if format == "transformers":
        hf = pytest.importorskip("transformers").AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
        assert hf.dtype == DTYPES[dtype]
    else:
        assert load_plain(tmp_path / "out").embed.weight.dtype == torch.float32


TEXTS = ["plain words", " two  spaces\n\ttab", "déjà vu – 漢字 🙂", "a\x00b\x7fc\x80\xad", "Ā is no separator", ""]


def test_bytes_become_a_tokenizer_with_the_same_ids(tmp_path):
    export_model(_model(), tmp_path / "out", tokenizer=ByteTokenizer(), facts=FACTS)
    fast = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in TEXTS:
        ids = fast(text)["input_ids"]
        assert ids == ByteTokenizer().encode(text)
        assert fast.decode(ids) == text
    assert len(fast) == 256 and fast.model_max_length == 32
    assert fast.decode([0xC3, 0xA9, 0xFF]) == "é\N{REPLACEMENT CHARACTER}"


def _bpe(folder):
    from tokenizers import Tokenizer, decoders, models, processors, trainers

    fast = Tokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|sep|>", "<|start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    fast.train_from_iterator(["the cat and the dog and the hen"] * 5, trainer)
    start = [("<|start|>", fast.token_to_id("<|start|>"))]
    fast.post_processor = processors.TemplateProcessing(single="<|start|> $A", special_tokens=start)
    fast.enable_truncation(4)
    fast.enable_padding(length=8)
    fast.save(str(folder / "given.json"))
    return JsonTokenizer(folder / "given.json")


def test_a_json_tokenizer_frames_cuts_and_pads_as_little_as_in_training(tmp_path):
    tokenizer = _bpe(tmp_path)
    files = export_model(_model(vocab=300), tmp_path / "out", tokenizer=tokenizer, facts=FACTS)
    assert {file.name for file in files} >= {"tokenizer.json", "tokenizer_config.json"}
    fast = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in ["the cat and the dog and the hen again and again", *TEXTS]:
        ids = fast(text)["input_ids"]
        assert ids == tokenizer.encode(text)
        assert fast.decode(ids) == text
    assert fast.eos_token_id == tokenizer.separator


def test_the_plain_form_keeps_the_tokenizer_as_it_is(tmp_path):
    tokenizer = _bpe(tmp_path)
    export_model(_model(vocab=300), tmp_path / "out", tokenizer=tokenizer, facts=FACTS, format="safetensors")
    assert JsonTokenizer(tmp_path / "out" / "tokenizer.json").fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("tied", [True, False])
def test_a_hugging_face_model_goes_back_as_it_came(tmp_path, tied):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=16, tie_word_embeddings=tied,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "came")
    model = load_hf(str(tmp_path / "came")).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.1)
    export_model(model, tmp_path / "out", tokenizer=None, facts=FACTS)
    hf = in_transformers(tmp_path / "out")
    assert hf.config.model_type == "llama" and torch.equal(hf(tokens(64, 16)).logits, model(tokens(64, 16)))
    export_model(model, tmp_path / "half", tokenizer=None, facts=FACTS, dtype="bf16")
    assert {w.dtype for w in load_file(tmp_path / "half" / "model.safetensors").values()} == {torch.bfloat16}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    with pytest.raises(BadInput, match="format is safetensors but the model is a Hugging Face one"):
        export_model(model, tmp_path / "own", tokenizer=None, facts=FACTS, format="safetensors")


def test_a_folder_is_never_written_over_and_never_left_half(tmp_path, monkeypatch):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    for taken in ("full", "full/mine.txt"):
        with pytest.raises(BadInput, match=f"to is {tmp_path / taken}, which holds something already"):
            export_model(_model(), tmp_path / taken, tokenizer=None, facts=FACTS)

    def no_space(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("diloco.train.export.save_file", no_space)
    with pytest.raises(OSError, match="No space"):
        export_model(_model(), tmp_path / "new", tokenizer=None, facts=FACTS)
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_weights_beyond_fp16_are_refused(tmp_path):
    model = _model()
    with torch.no_grad():
        model.norm.weight[3] = 7e4
    with pytest.raises(BadInput, match="dtype is fp16 but norm.weight goes beyond 65504: give --dtype bf16 or fp32"):
        export_model(model, tmp_path / "out", tokenizer=None, facts=FACTS, dtype="fp16")


def test_damaged_and_foreign_plain_folders_are_refused(tmp_path):
    export_model(_model(), tmp_path / "out", tokenizer=None, facts=FACTS, format="safetensors")
    weights, config = tmp_path / "out" / "model.safetensors", tmp_path / "out" / "config.json"
    whole = weights.read_bytes()
    for content in (whole[:-10], b"", None):
        weights.unlink() if content is None else weights.write_bytes(content)
        with pytest.raises(BadInput, match=f"{tmp_path / 'out'} is damaged"):
            load_plain(tmp_path / "out")
    weights.write_bytes(whole)
    record = json.loads(config.read_text())
    for change, words in (({"version": 99}, "format version 99"), ({"format": "x"}, "no exported model of ours")):
        config.write_text(json.dumps(record | change))
        with pytest.raises(BadInput, match=words):
            load_plain(tmp_path / "out")
    with pytest.raises(BadInput, match="no exported model of ours"):
        load_plain(tmp_path / "nowhere")


def test_the_head_starts_near_uniform_in_both(tmp_path):
    """An untrained export predicts about 1/V, which a missing final gain would spoil."""
    model = build_model(SIZES["30k"], 256, 32, seed=0).eval()
    export_model(model, tmp_path / "out", tokenizer=None, facts=FACTS)
    tokens_BT = tokens(256, 32)
    loss = in_transformers(tmp_path / "out")(tokens_BT, labels=tokens_BT).loss.item()
    assert loss == pytest.approx(math.log(256), rel=0.02)
