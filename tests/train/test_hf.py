"""Hugging Face models behind our forward contract, and parameter counts of any module.

Run just this: pytest tests/train/test_hf.py
"""

from __future__ import annotations

import builtins
import copy
import json

import pytest
import torch
from safetensors import safe_open
from torch import nn

from diloco.errors import BadInput
from diloco.train.hf import count_module, load_hf
from diloco.train.inner import InnerConfig, body_matrices, build_inner
from diloco.train.loss import lm_loss
from diloco.train.model import build_model
from diloco.train.sizes import SIZES, count

VOCAB, DIM = 64, 32


def _hf(kind):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "gpt2":
        shape = {"n_embd": DIM, "n_layer": 2, "n_head": 2, "n_positions": 16, "bos_token_id": 0, "eos_token_id": 0}
        config = transformers.GPT2Config(vocab_size=VOCAB, **shape)
    else:
        config = transformers.LlamaConfig(
            vocab_size=VOCAB, hidden_size=DIM, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, max_position_embeddings=16, tie_word_embeddings=kind == "llama-tied",
        )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture(params=["gpt2", "llama-tied", "llama-untied"])
def saved(request, tmp_path):
    hf = _hf(request.param)
    hf.save_pretrained(tmp_path / "model")
    return request.param, hf, str(tmp_path / "model")


def _tokens():
    return torch.randint(0, VOCAB, (2, 8), generator=torch.Generator().manual_seed(0))


def test_logits_names_and_counts_are_the_original_ones(saved):
    kind, hf, path = saved
    model = load_hf(path)
    logits_BTV = model(_tokens())
    torch.testing.assert_close(logits_BTV, hf(_tokens()).logits, rtol=1e-5, atol=1e-6)
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in hf.named_parameters()]
    assert set(model.state_dict()) == set(hf.state_dict())
    assert (model.vocab_size, model.seq_len) == (VOCAB, 16)
    params = count_module(model)
    assert params.params == sum(p.numel() for p in hf.parameters())
    assert params.params_embedding == DIM * (VOCAB + 16 if kind == "gpt2" else VOCAB)


def test_training_mode_repeats_itself_because_dropout_is_off(saved):
    model = load_hf(saved[2])
    assert model.training and model.hf.training
    assert torch.equal(model(_tokens()), model(_tokens()))
    assert not model.eval().hf.training


def test_a_trained_model_exports_and_loads_tied_and_untied_report_99(saved, tmp_path):
    kind, _, path = saved
    model = load_hf(path)
    tied = kind != "llama-untied"
    head, embedding = model.hf.get_output_embeddings().weight, model.hf.get_input_embeddings().weight
    assert (head.data_ptr() == embedding.data_ptr()) is tied
    loss, _ = lm_loss(model(_tokens()[:, :-1]), _tokens()[:, 1:])
    loss.backward()
    for optimizer in build_inner(model, InnerConfig(), 10):
        optimizer.step()
    model.hf.save_pretrained(tmp_path / "export")
    with safe_open(tmp_path / "export" / "model.safetensors", "pt") as tensors:
        assert ("lm_head.weight" in tensors.keys()) is not tied  # noqa: SIM118
    assert torch.equal(load_hf(str(tmp_path / "export"))(_tokens()), model(_tokens()))


def test_a_tied_model_stays_tied_through_load_and_copy_report_98(tmp_path):
    _hf("llama-tied").save_pretrained(tmp_path)
    model = load_hf(str(tmp_path))
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    twin = copy.deepcopy(model)
    for each in (model, twin):
        assert each.hf.lm_head.weight.data_ptr() == each.hf.model.embed_tokens.weight.data_ptr()
    twin.hf.lm_head.weight.data.zero_()
    assert model(_tokens()).abs().max() > 0 and twin(_tokens()).abs().max() == 0


def test_lora_style_model_trains_its_adapters_only_report_97(tmp_path):
    _hf("llama-tied").save_pretrained(tmp_path)
    model = load_hf(str(tmp_path)).requires_grad_(False)
    for layer in model.hf.model.layers:
        layer.self_attn.q_proj = nn.Sequential(
            layer.self_attn.q_proj, nn.Linear(DIM, 2, bias=False), nn.Linear(2, DIM, bias=False)
        )
    adapters = {id(p) for p in model.parameters() if p.requires_grad}
    (adamw,) = build_inner(model, InnerConfig(), 10)
    assert {id(p) for g in adamw.param_groups for p in g["params"]} == adapters
    assert len(adapters) == 4
    assert count_module(model).params == sum(p.numel() for p in model.parameters())


def test_muon_leaves_a_hugging_face_head_to_adamw(tmp_path):
    _hf("llama-untied").save_pretrained(tmp_path)
    model = load_hf(str(tmp_path))
    chosen = {id(p) for p in body_matrices(model)}
    names = {n for n, p in model.named_parameters() if id(p) in chosen}
    assert "lm_head.weight" not in names and "model.embed_tokens.weight" not in names
    assert len(names) == 2 * 7


def test_dtype_is_fp32_unless_asked_otherwise(tmp_path):
    _hf("llama-tied").to(torch.bfloat16).save_pretrained(tmp_path)
    assert {p.dtype for p in load_hf(str(tmp_path)).parameters()} == {torch.float32}
    model = load_hf(str(tmp_path), dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model(_tokens()).dtype == torch.float32


def test_pickled_weights_foreign_code_and_missing_folders_are_refused(tmp_path):
    hf = _hf("llama-tied")
    pickled = tmp_path / "pickled"
    hf.config.save_pretrained(pickled)
    torch.save(hf.state_dict(), pickled / "pytorch_model.bin")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    code = {"model_type": "mine", "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}}
    (foreign / "config.json").write_text(json.dumps(code))
    (foreign / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    for path in (pickled, foreign, tmp_path / "nowhere"):
        with pytest.raises(BadInput, match=f"model '{path}'"):
            load_hf(str(path))
    assert not (tmp_path / "ran").exists()


def test_missing_library_names_the_extra(monkeypatch):
    real = builtins.__import__

    def without_transformers(name, *args, **kwargs):
        if name == "transformers":
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_transformers)
    with pytest.raises(BadInput, match=r'pip install "diloco\[hf\]"'):
        load_hf("gpt2")


@pytest.mark.parametrize("tied", [True, False])
def test_our_own_model_counts_as_in_closed_form(tied):
    model = build_model(SIZES["30k"], 256, 16, seed=0, tied=tied)
    assert count_module(model) == count(SIZES["30k"], 256, tied)
