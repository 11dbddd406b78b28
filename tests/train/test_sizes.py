"""Sizes by name and parameter counts in closed form.

Run just this: pytest tests/train/test_sizes.py
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from diloco.errors import BadInput
from diloco.train.model import build_model
from diloco.train.sizes import SIZES, count, get_size, train_flops

PAPER_TABLE_3 = {  # layers, heads, width, feed-forward width
    "35m": (6, 8, 512, 2048),
    "90m": (9, 12, 768, 3072),
    "180m": (12, 16, 1024, 4096),
    "335m": (15, 20, 1280, 5120),
    "550m": (18, 24, 1536, 6144),
    "1.3b": (24, 32, 2048, 8192),
    "2.4b": (30, 40, 2560, 10240),
    "4b": (36, 48, 3072, 12288),
    "10b": (48, 64, 4096, 16384),
}
CPU_LADDER = {"30k": 30e3, "100k": 100e3, "300k": 300e3, "1m": 1e6, "3m": 3e6, "10m": 10e6}
ARTICLE_LARGE = {"6.7b": 6.7e9, "40b": 40e9, "100b": 100e9}


@pytest.mark.parametrize("name", PAPER_TABLE_3)
def test_paper_sizes_are_table_3(name):
    size = SIZES[name]
    assert (size.layers, size.heads, size.dim, size.ffn) == PAPER_TABLE_3[name]


@pytest.mark.parametrize("name", CPU_LADDER)
def test_cpu_ladder_is_near_its_names_at_the_byte_vocabulary(name):
    assert count(SIZES[name], 256).params == pytest.approx(CPU_LADDER[name], rel=0.10)
    assert 16 <= SIZES[name].head_dim <= 32


@pytest.mark.parametrize("name", ARTICLE_LARGE)
def test_large_article_sizes_are_within_3_percent_of_their_names(name):
    assert count(SIZES[name], 32768).params == pytest.approx(ARTICLE_LARGE[name], rel=0.03)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", SIZES)
def test_closed_form_is_the_built_model_and_three_counts_are_stated_report_141(name, tied):
    model = build_model(SIZES[name], 1000, 8, seed=0, tied=tied, device="meta")
    expected = count(SIZES[name], 1000, tied)
    assert sum(p.numel() for p in model.parameters()) == expected.params
    assert model.embed.weight.numel() == expected.params_embedding
    assert expected.params == expected.params_embedding + expected.params_body


def test_paper_convention_differs_by_the_norms_only():
    size, vocab = SIZES["550m"], 32768
    paper = 12 * size.dim**2 * size.layers + vocab * size.dim
    norms = size.layers * (2 * size.dim + 2 * size.head_dim) + size.dim
    assert count(size, vocab).params == paper + norms
    assert norms / paper < 2e-4


def test_flops_are_six_n_d():
    assert train_flops(1_000, 20_000) == 6 * 1_000 * 20_000


def test_names_have_no_case_and_unknown_ones_get_the_nearest():
    assert get_size(" 1.3B ") is SIZES["1.3b"]
    with pytest.raises(BadInput, match=r"'35mm' is unknown: did you mean .*35m"):
        get_size("35mm")
    with pytest.raises(BadInput, match="choose one of 30k"):
        get_size("")


def test_importable_without_torch():
    code = "import sys; sys.modules['torch'] = None; import diloco.train.sizes as s; s.count(s.get_size('1m'), 256)"
    subprocess.run([sys.executable, "-c", code], check=True)
