"""The catalogue of chips and links, and model shapes.

OMP_NUM_THREADS=1 pytest tests/plan/test_hardware.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diloco.errors import BadInput
from diloco.plan.catalogue import catalogue
from diloco.plan.hardware import Chip, Cluster, Link, Site, assumed_speed, with_price
from diloco.plan.model import ModelShape, counted_params, get_model, known_models, shape_of
from diloco.train.sizes import SIZES, count


def test_every_shipped_entry_has_its_source_and_date() -> None:
    known = catalogue()
    wanted = {"a100", "h100", "h200", "b200", "mi300x", "tpu-v5e", "tpu-v5p", "tpu-v6e", "rtx4090", "laptop-cpu"}
    assert wanted <= set(known.chips)
    assert {"nvlink4", "infiniband-ndr", "ethernet-10g", "home-fibre", "lte"} <= set(known.links)
    for entry in (*known.chips.values(), *known.links.values()):
        assert entry.source and entry.date and entry.label
    for chip in known.chips.values():
        assert chip.peak("bf16") > 0 and chip.node_link in known.links
        assert chip.usd_per_h and chip.price_date


def test_the_papers_networks_and_chips_are_theirs() -> None:
    """arXiv:2503.09799v1 Appendix A.3."""
    known = catalogue()
    networks = [(known.link(f"paper-{n}").gbit_per_s, known.link(f"paper-{n}").latency_s) for n in ("high", "low")]
    assert networks == [(400, pytest.approx(1e-4)), (10, pytest.approx(1e-2))]
    assert (known.chip("tpu-v5e").peak(), known.chip("tpu-v6e").peak()) == (197e12, 918e12)


def test_a_file_of_ones_own_overrides_by_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[chip.h100]\nusd_per_h = 1.5\n[chip.abacus]\nmemory = "1GB"\nmemory_bandwidth = "1 GB/s"\n'
        'power_w = 1\npeak = { fp32 = "1 GFLOP/s" }\n[link.string]\nbandwidth = "1 kbit"\n'
    )
    mine = catalogue(str(file))
    assert mine.chip("h100").usd_per_h == 1.5 and mine.chip("h100").memory_bytes == 80e9
    assert mine.chip("Abacus").peak("fp32") == 1e9 and mine.chip("abacus").usd_per_h is None
    assert mine.link("string").gbit_per_s == pytest.approx(1e-6)
    assert catalogue().chip("h100").usd_per_h != 1.5


@pytest.mark.parametrize(
    "text, words",
    [
        ("[chip.x]\nmemory = '1GB'", "chip.x has no 'memory_bandwidth'"),
        ("[chip.h100]\nmemry = '1GB'", "unknown key 'memry': write 'memory'"),
        ("[link.x]\nbandwidth = 10", "link.x.bandwidth is 10: give a rate"),
        ("[chips.x]\na = 1", "has a table 'chips': name tables"),
        ("[chip", "is not TOML"),
        ("[chip.h100]\nnode_chips = 0", "must be above 0"),
    ],
)
def test_a_faulty_file_is_refused_with_the_place(tmp_path: Path, text, words) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(BadInput, match=words):
        catalogue(str(file))
    with pytest.raises(BadInput, match="cannot be read"):
        catalogue(str(tmp_path / "none.toml"))


def test_links_are_given_or_named() -> None:
    known = catalogue()
    given_ = known.parse_link("10gbit,20ms")
    assert (given_.gbit_per_s, given_.latency_s) == (10, 0.02)
    assert known.parse_link("1 Gbit/s").latency_s == 0 and known.parse_link("home-fibre") is known.link("home-fibre")
    with pytest.raises(BadInput, match="link 'home-fiber' is unknown: did you mean home-fibre"):
        known.parse_link("home-fiber")
    with pytest.raises(BadInput, match="chip 'h10' is unknown: did you mean h100"):
        known.chip("h10")


def test_sites_fill_whole_servers() -> None:
    known = catalogue()
    site = known.site("h100", 64)
    assert (site.nodes, site.node_chips, site.chips) == (8, 8, 64) and known.site("h100", 2).nodes == 1
    with pytest.raises(BadInput, match="60 chips do not fill servers of 8 h100: give 64"):
        known.site("h100", 60)
    with pytest.raises(BadInput, match="a site has 0 chips: give 1 or more"):
        known.site("h100", 0)
    cluster = Cluster((site, site), known.parse_link("10gbit"))
    assert cluster.chips == 128 and cluster.power_w == 128 * 700
    assert cluster.usd_per_h == pytest.approx(128 * site.chip.usd_per_h)


def test_impossible_hardware_is_refused() -> None:
    chip = catalogue().chip("h100")
    for make, words in (
        (lambda: Link("l", 0.0), "give more than 0"),
        (lambda: Link("l", 1.0, -1.0), "latency of -1 s"),
        (lambda: Cluster((), Link("l", 1.0)), "0 sites"),
        (lambda: Site(chip, 0, 8, Link("l", 1.0), Link("l", 1.0)), "nodes of a site is 0"),
        (lambda: assumed_speed(chip, mfu=1.2), "mfu is 1.2"),
        (lambda: chip.peak("fp4"), "has a peak in fp8, bf16, fp16, tf32, fp32 alone: add one in fp4"),
        (lambda: with_price(chip, -1), "is -1: give a finite number above 0"),
        (lambda: Chip(**{**vars(chip), "memory_bytes": float("nan")}), "memory_bytes of chip h100 is nan"),
    ):
        with pytest.raises(BadInput, match=words):
            make()


def test_shapes_of_the_paper_are_counted_as_the_laws_count_them() -> None:
    """N = 12 d^2 L + 32000 d returns every coefficient of arXiv:2503.09799v1 Table 7 (reference losses' sizes)."""
    assert get_model("10B").params == 12 * 4096**2 * 48 + 32000 * 4096
    for name, shape in known_models().items():
        if name in SIZES and shape.vocab == 32000 and "2503.09799" in shape.source:
            size = SIZES[name]
            assert (size.layers, size.heads, size.dim, size.ffn) == (shape.layers, shape.heads, shape.width, shape.ffn)
            assert count(size, 32000).params == pytest.approx(shape.params, rel=2e-3)


@given(st.floats(1e6, 1e13))
def test_any_size_has_a_shape_of_about_that_many_parameters(params) -> None:
    shape = shape_of(params)
    assert shape.params == params and shape.width == 64 * shape.heads
    if params >= 1e8:
        assert counted_params(shape.layers, shape.width) == pytest.approx(params, rel=0.2)


def test_operations_of_a_token() -> None:
    dense, mixture = get_model("7b"), get_model("deepseek-v3")
    assert dense.flops_per_token == 6 * 7e9 and mixture.weight_flops_per_token == 6 * 37e9
    for seq_len, longer in ((128, 0), (2048, 0), (2049, 1), (4096, 2048), (10**8, 10**8 - 2048)):
        model = get_model("1.3b", seq_len=seq_len)
        assert model.flops_per_token == 6 * model.params + 6 * 24 * 2048 * longer


@pytest.mark.parametrize(
    "name, words",
    [
        ("llama", "did you mean llama3-405b"),
        ("7q", "give a number that may end in k, m, b or t"),
        ("-7b", "must be above 0"),
        ("1", "give 1000 to 1e\\+17, the nearest is 1000"),
    ],
)
def test_models_that_are_none_are_refused(name, words) -> None:
    with pytest.raises(BadInput, match=words):
        get_model(name)
    with pytest.raises(BadInput, match="active_params"):
        ModelShape("x", 1e9, 2, 64, 1, 256, active_params=2e9)


def test_nothing_here_needs_torch_or_numpy() -> None:
    parts = ("article", "catalogue", "clock", "ideal", "memory", "steps", "utilization")
    code = (
        f"import sys; {'; '.join(f'import diloco.plan.{part}' for part in parts)}; "
        "sys.exit(bool({'torch', 'numpy', 'scipy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
