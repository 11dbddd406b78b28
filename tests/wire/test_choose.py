"""codec="auto": the codec that makes a round shortest, from the arithmetic and the link as measured.

pytest tests/wire/test_choose.py
"""

from __future__ import annotations

import re

import pytest
import torch
from support.processes import run_ranks
from support.replicas import Fleet, small_model

import diloco
from diloco.outer.codec import get_codec
from diloco.wire import choose
from diloco.wire.link import LINE_BYTES_PER_SENT_BYTE

NUMEL = 1_000_000
ARITHMETIC_S = {"fp32": 0.0, "bf16": 0.010, "int8": 0.016, "e3m0": 0.020}


@pytest.fixture(autouse=True)
def known_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "_arithmetic_s", lambda name, numel, replicas: ARITHMETIC_S[name])


def chosen(link: str, replicas: int = 2) -> choose.Choice:
    return choose.choose_codec(diloco.Local(replicas, link=diloco.Link.parse(link)), NUMEL)


@pytest.mark.parametrize("link, codec", [("100gbit", "fp32"), ("1gbit", "e3m0"), ("5mbit,50ms", "e3m0")])
def test_slow_links_take_small_codecs_and_fast_ones_none_report_90(link: str, codec: str) -> None:
    choice = chosen(link)
    assert choice.codec.name == codec
    assert re.match(rf"codec {codec}: at .* Mbit/s a round of all parameters takes fp32 .* s", str(choice))


def test_the_break_even_bandwidth_is_where_the_seconds_are_equal_report_90() -> None:
    """fp32 against e3m0: bytes saved over bandwidth = seconds of arithmetic. bf16 and int8 lie between."""
    saved_bytes = 4 * NUMEL - get_codec("e3m0").nbytes(NUMEL)
    break_even = 8 * LINE_BYTES_PER_SENT_BYTE * saved_bytes / ARITHMETIC_S["e3m0"]
    for share, sooner in ((1.01, "fp32"), (0.99, "e3m0")):
        seconds = choose.choose_codec(diloco.Local(2, link=diloco.Link(share * break_even)), NUMEL).seconds
        assert min(("fp32", "e3m0"), key=seconds.__getitem__) == sooner


@pytest.mark.parametrize("replicas", [2, 3, 8])
def test_seconds_are_arithmetic_delay_and_bytes(replicas: int) -> None:
    choice = chosen("100mbit,25ms", replicas)
    for name, busy_s in ARITHMETIC_S.items():
        sent_bytes = 2 * (replicas - 1) * get_codec(name).nbytes(NUMEL) / replicas
        expected = busy_s + 0.025 + 8 * LINE_BYTES_PER_SENT_BYTE * sent_bytes / 100e6
        assert choice.seconds[name] == pytest.approx(expected, rel=1e-3)
    assert choice.codec.name == min(choice.seconds, key=choice.seconds.__getitem__)


def test_without_a_network_nothing_is_measured() -> None:
    for exchange in (diloco.Local(1), diloco.Local(4), diloco.Local(1, link=diloco.Link.parse("1mbit"))):
        choice = choose.choose_codec(exchange, NUMEL)
        assert (choice.codec.name, choice.seconds) == ("fp32", {})
        assert str(choice) == "codec fp32: nothing crosses a network"


def test_a_sync_takes_what_was_chosen_and_says_so() -> None:
    fleet = Fleet(2, codec="auto")
    fleet.run(4)
    assert fleet.syncs[0].receipt()["codec"] == "fp32"
    assert str(fleet.syncs[1].codec_choice).startswith("codec fp32")
    exchange = diloco.Local(2, link=diloco.Link.parse("100kbit"))
    models = [small_model() for _ in range(2)]
    syncs = [
        diloco.DiLoCo(m, torch.optim.SGD(m.parameters(), lr=0.1), sync_every=1, codec="auto", exchange=exchange)
        for m in models
    ]
    assert {s.codec.name for s in syncs} == {min(syncs[0].codec_choice.seconds, key=syncs[0].codec_choice.seconds.get)}


def _auto(rank: int) -> tuple[str, dict[str, float], bool]:
    # Each machine has its own idea of what arithmetic costs: all go by the slowest.
    choose._arithmetic_s = lambda name, numel, replicas: ARITHMETIC_S[name] * (1000 if rank == 1 else 1)
    model = small_model()
    exchange = diloco.Collective(link=diloco.Link.parse("2mbit"))
    sync = diloco.DiLoCo(
        model, torch.optim.SGD(model.parameters(), lr=0.1), sync_every=1, hook=False, codec="auto", exchange=exchange
    )
    sync.step()
    return sync.receipt()["codec"], sync.codec_choice.seconds, sync.rounds[0].committed


def test_ranks_choose_alike_by_the_slowest_one() -> None:
    found = run_ranks(2, _auto)
    assert found[0] == found[1] and found[0][0] == "fp32" and found[0][2]
    assert found[0][1]["e3m0"] > 1000 * ARITHMETIC_S["e3m0"]


def _slowest(rank: int) -> tuple[float | None, dict[str, float]]:
    choose._probe = lambda exchange: (0.001 * (2 - rank), 1e6 / (1 + rank))
    choice = choose.choose_codec(diloco.Collective(), NUMEL)
    return choice.mbit_per_s, choice.seconds


def test_the_slowest_line_and_the_longest_delay_count() -> None:
    for mbit_per_s, seconds in run_ranks(2, _slowest):
        assert mbit_per_s == pytest.approx(4.0)
        assert seconds["fp32"] == pytest.approx(0.002 + 4 * NUMEL / 0.5e6)
