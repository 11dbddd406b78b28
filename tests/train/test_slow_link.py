"""Runs over a slow link: what a virtual clock makes of it in one process, and how a codec is chosen for it.

pytest tests/train/test_slow_link.py
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.training import (
    assert_same_numbers,
    curve,
    evals,
    events,
    intervals,
    quiet_train,
    rounds,
    tiny,
    train_over_ranks,
)

from diloco.checkpoint import Store
from diloco.outer.codec import get_codec
from diloco.train import resume
from diloco.train.config import TrainConfig
from diloco.train.run import run_path
from diloco.train.sizes import count, get_size
from diloco.watch.runfolder import RunFolder
from diloco.wire import local, meter
from diloco.wire.link import LINE_BYTES_PER_SENT_BYTE

pytestmark = pytest.mark.slow

PARAMS = count(get_size("30k"), 256).params
HEADER_BYTES, TRAILER_BYTES = 40, 32

BIT_PER_S, DELAY_S = 1e6, 0.03
LINK = "1mbit,30ms"

STEP_S = 0.5


def line_s(sent_bytes: float) -> float:
    return 8 * LINE_BYTES_PER_SENT_BYTE * sent_bytes / BIT_PER_S


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every inner step takes STEP_S on the virtual clock, and arithmetic nothing."""
    stopped = SimpleNamespace(perf_counter=lambda: 0.0)
    monkeypatch.setattr(meter, "time", stopped)
    monkeypatch.setattr(local, "time", stopped)

    def step_ends(self: local.Local, *ranks: int) -> float:
        for rank in ranks if self.clock else ():
            self.clock.compute(rank, STEP_S)
        return STEP_S

    monkeypatch.setattr(local.Local, "step_ends", step_ends)


def virtual_s(config: TrainConfig) -> dict[int, float]:
    return {e["step"]: e["virtual_s"] for e in events(config, "eval")}


# -- the virtual clock


def test_without_a_link_there_is_no_virtual_time(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    receipt = quiet_train(config)
    assert receipt["virtual_s"] is None and receipt["link"] is None
    assert all("virtual_s" not in e for e in events(config, "eval"))


def test_virtual_time_is_compute_and_what_the_rounds_take_on_the_line(tmp_path: Path, ticking: None) -> None:
    """Two replicas without overlap: a header, the two halves of a sum and a trailer, one after the other."""
    config = tiny(tmp_path, link=LINK)
    receipt = quiet_train(config)
    round_s = line_s(HEADER_BYTES + 4 * PARAMS + TRAILER_BYTES) + 4 * DELAY_S
    done = {0: 0, 6: 1, 12: 3, 17: 5}
    assert virtual_s(config) == pytest.approx({step: step * STEP_S + done[step] * round_s for step in done})
    assert receipt["virtual_s"] == virtual_s(config)[17] and receipt["link"] == LINK
    assert all(r["stall_s"] == pytest.approx(round_s) for r in receipt["rounds"])
    assert receipt["stall_s"] == pytest.approx(5 * round_s)
    assert receipt["wait_s"] + receipt["wire_s"] == pytest.approx(receipt["stall_s"])


def test_data_parallel_pays_for_its_gradient_at_every_step(tmp_path: Path, ticking: None) -> None:
    config = tiny(tmp_path, method="dp", link=LINK)
    receipt = quiet_train(config)
    # Its step is computed in two parts, before and after the gradients have travelled.
    step_s = 2 * STEP_S + line_s(4 * PARAMS) + 2 * DELAY_S
    assert virtual_s(config) == pytest.approx({step: step * step_s for step in (0, 6, 12, 17)})
    assert receipt["virtual_s"] == virtual_s(config)[17]


def test_an_overlapped_round_costs_nothing_while_there_is_compute_to_hide_it(tmp_path: Path, ticking: None) -> None:
    """e3m0 takes an eighth of a second on this line, two steps take one; the end of the run hides nothing."""
    config = tiny(tmp_path, link=LINK, codec="e3m0", overlap="2")
    receipt = quiet_train(config)
    assert virtual_s(config)[12] == 12 * STEP_S and virtual_s(config)[6] == 6 * STEP_S
    *hidden, last_flown, flushed = receipt["rounds"]
    assert [r["stall_s"] for r in hidden] == [0.0] * len(hidden)
    assert last_flown["sent_step"] if "sent_step" in last_flown else last_flown["step"] == 16
    payload_s = (
        line_s(get_codec("e3m0").nbytes(receipt["fragment_elements"][0]) + HEADER_BYTES + TRAILER_BYTES) + 3 * DELAY_S
    )
    assert flushed["stall_s"] == pytest.approx(payload_s)
    assert receipt["virtual_s"] == pytest.approx(17 * STEP_S + receipt["stall_s"])


def test_an_overlap_too_short_for_the_link_stalls_for_the_rest(tmp_path: Path, ticking: None) -> None:
    """fp32 takes a second and more, two steps hide one of them."""
    receipt = quiet_train(tiny(tmp_path, link=LINK, overlap="2"))
    round_s = line_s(HEADER_BYTES + 4 * PARAMS + TRAILER_BYTES) + 4 * DELAY_S
    assert round_s > 2 * STEP_S
    assert [r["stall_s"] for r in receipt["rounds"][:3]] == pytest.approx([round_s - 2 * STEP_S] * 3)


def test_rounds_of_several_fragments_follow_one_another(tmp_path: Path, ticking: None) -> None:
    """As over a network, where one thread carries them: the second is not begun before the first has ended."""
    receipt = quiet_train(tiny(tmp_path, link=LINK, fragments="balanced:2", overlap="1", steps=8, sync_every=8))
    first, second = receipt["rounds"]
    sizes = receipt["fragment_elements"]
    took = [line_s(HEADER_BYTES + 4 * n + TRAILER_BYTES) + 4 * DELAY_S for n in sizes]
    assert (first["step"], second["step"]) == (8, 8) and receipt["virtual_s"] == pytest.approx(8 * STEP_S + sum(took))


@pytest.mark.slow
def test_a_resumed_clock_goes_on_where_it_stood(tmp_path: Path, ticking: None) -> None:
    """The line's queue too: a fragment is under way at most of these stops."""
    options = {"link": LINK, "fragments": "balanced:3", "overlap": "2", "codec": "int8"}
    whole, parts = (tiny(tmp_path, name=name, **options) for name in ("whole", "parts"))
    receipt = quiet_train(whole)
    for stop in range(1, 17):
        quiet_train(parts, stop_at=stop, resume=stop > 1)
    again = quiet_train(parts, resume=True)
    assert virtual_s(parts) == pytest.approx(virtual_s(whole))
    assert again["virtual_s"] == pytest.approx(receipt["virtual_s"])


def test_sites_pay_for_what_leaves_them_alone(tmp_path: Path, ticking: None) -> None:
    """Two leaders exchange what four replicas would have."""
    flat, sites = (tiny(tmp_path, name=f"sites{n}", replicas=4, sites=n, link=LINK) for n in (1, 2))
    assert quiet_train(sites)["virtual_s"] < quiet_train(flat)["virtual_s"]


def test_a_real_clock_is_never_faster_than_the_line(tmp_path: Path) -> None:
    receipt = quiet_train(tiny(tmp_path, link=LINK))
    assert receipt["virtual_s"] >= line_s(receipt["bytes_sent"]) + 5 * 4 * DELAY_S
    assert receipt["virtual_s"] >= receipt["compute_s"]


def test_the_link_changes_time_and_nothing_else(tmp_path: Path) -> None:
    """And it may change from leg to leg, as links do."""
    options = {"fragments": "balanced:3", "overlap": "2", "mixing": "0.5", "codec": "e3m0"}
    free, slow = (tiny(tmp_path, name=f"link{link}", link=link, **options) for link in ("", LINK))
    quiet_train(free)
    quiet_train(slow, stop_at=9)
    assert quiet_train(slow, link="5mbit", resume=True)["virtual_s"] > 0
    assert curve(free) == curve(slow) and rounds(free) == rounds(slow) and intervals(free) == intervals(slow)
    assert [e["loss"] for e in evals(free)] == [e["loss"] for e in evals(slow)]


# -- choosing a codec


def notes(config: TrainConfig) -> list[str]:
    return [e["text"] for e in events(config, "note") if e["text"].startswith("codec ")]


def test_without_a_link_auto_sends_fp32_report_90(tmp_path: Path) -> None:
    config = tiny(tmp_path, codec="auto")
    receipt = quiet_train(config)
    assert receipt["codec"] == "fp32" and notes(config) == [receipt["codec_choice"]]
    assert "nothing crosses a network" in receipt["codec_choice"]
    plain = tiny(tmp_path, name="plain")
    quiet_train(plain)
    assert curve(plain) == curve(config)


@pytest.mark.parametrize("link, chosen", [("20kbit", "e3m0"), ("1e6gbit", "fp32")])
def test_auto_takes_few_bits_on_a_slow_link_and_no_arithmetic_on_a_fast_one_report_90(
    tmp_path: Path, link: str, chosen: str
) -> None:
    config = tiny(tmp_path, codec="auto", link=link)
    receipt = quiet_train(config)
    assert receipt["codec"] == chosen == RunFolder(run_path(config)).row["codec"]
    assert notes(config) == [receipt["codec_choice"]] and receipt["codec_choice"].startswith(f"codec {chosen}: at ")
    assert all(f"{name} " in receipt["codec_choice"] for name in ("fp32", "bf16", "int8", "e3m0"))
    named = tiny(tmp_path, name="named", codec=chosen)
    quiet_train(named)
    assert curve(named) == curve(config)


def test_a_resumed_run_keeps_the_codec_that_was_chosen(tmp_path: Path, monkeypatch) -> None:
    """Whatever the link is by then: another codec would make it another run."""
    whole, parts = (tiny(tmp_path, name=name, codec="auto", link="20kbit") for name in ("whole", "parts"))
    quiet_train(whole)
    quiet_train(parts, stop_at=6)
    with monkeypatch.context() as patch:
        patch.setattr("diloco.sync.diloco.choose_codec", lambda *_: pytest.fail("measured again"))
        receipt = quiet_train(parts, link="1e6gbit", resume=True)
    assert receipt["codec"] == "e3m0" and curve(whole) == curve(parts)
    assert len(notes(parts)) == 1
    assert resume.codec_of(Store(run_path(parts) / "checkpoints"), dataclasses.replace(parts, resume=True)) == "e3m0"
    # A run that was killed before its first checkpoint chooses anew.
    assert resume.codec_of(Store(tmp_path / "nothing"), dataclasses.replace(parts, resume=True)) == "auto"


@pytest.mark.slow
def test_ranks_choose_alike_over_a_link_and_train_like_one_process(tmp_path: Path) -> None:
    """The messages are really as slow: the choice is measured on them."""
    one, many = (tiny(tmp_path, name=name, codec="auto", link="4mbit,1ms") for name in ("one", "many"))
    receipt, receipts = quiet_train(one), train_over_ranks(many, 2)
    assert {r["codec"] for r in receipts} == {receipt["codec"]} == {"e3m0"}
    assert_same_numbers(one, many)
    assert {r["virtual_s"] for r in receipts} == {None} and {r["link"] for r in receipts} == {"4mbit,1ms"}
    # What the replicas stood still for is at least what their bytes take on that line.
    for r in receipts:
        assert r["stall_s"] >= 0.9 * 8 * r["bytes_sent"] / 4e6
