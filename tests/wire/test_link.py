"""Links, the throttle and the virtual clock: all with clocks of the test's own, so nothing here takes or measures time.

Run just this: pytest tests/wire/test_link.py
"""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from diloco.errors import BadInput
from diloco.wire.link import LINE_BYTES_PER_SENT_BYTE, Link, Throttle, VirtualClock

# A line that carries 1000 payload bytes a second, so that the expected times below are whole numbers.
KILOBYTE_A_SECOND = Link(8 * LINE_BYTES_PER_SENT_BYTE * 1000, delay_s=0.5)


class FakeTime:
    """A clock that only sleeping, or the test, moves."""

    def __init__(self, now_s: float = 100.0) -> None:
        self.now_s, self.slept = now_s, []

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


# -- the link


@pytest.mark.parametrize(
    ("text", "bit_per_s", "delay_s", "canonical"),
    [
        ("100mbit,25ms", 100e6, 0.025, "100mbit,25ms"),
        ("1gbit", 1e9, 0.0, "1gbit"),
        ("2.5gbit,0.5ms", 2.5e9, 0.0005, "2.5gbit,500us"),
        ("1000kbit", 1e6, 0.0, "1mbit"),
        (" 20 Mbit , 1 s ", 20e6, 1.0, "20mbit,1s"),
        ("56kbit,0ms", 56e3, 0.0, "56kbit"),
        ("300bit", 300.0, 0.0, "300bit"),
        ("1.5e3kbit", 1.5e6, 0.0, "1.5mbit"),
    ],
)
def test_parse_and_canonical_text(text, bit_per_s, delay_s, canonical):
    link = Link.parse(text)
    assert (link.bit_per_s, link.delay_s) == pytest.approx((bit_per_s, delay_s), rel=1e-12)
    assert str(link) == canonical


BAD_TEXT = """fast|100|mbit|100mbps|100MB|100mbit,|100mbit,25|100mbit,25ms,3|100mbit 25ms|25ms|100mbit;5ms|1.2.3mbit|
0mbit|-1mbit|infmbit|nanmbit|1e999mbit|20mbit,-5ms|20mbit,1e999s|"""


@pytest.mark.parametrize("text", BAD_TEXT.split("|"))
def test_bad_text_is_refused_with_the_way_out(text):
    with pytest.raises(BadInput, match="as in 100mbit,25ms") as error:
        Link.parse(text)
    assert "link" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_must_be_above_0_and_finite(rate):
    with pytest.raises(BadInput, match="bit/s"):
        Link(rate)


@given(st.floats(1.0, 1e13), st.just(0.0) | st.floats(1e-9, 1e3))
@example(999.9999999999999, 0.9999999999999999)
def test_text_is_read_back_to_12_digits(bit_per_s, delay_s):
    link = Link(bit_per_s, delay_s)
    again = Link.parse(str(link))
    assert again.bit_per_s == pytest.approx(bit_per_s, rel=1e-11)
    assert again.delay_s == pytest.approx(delay_s, rel=1e-11)
    assert str(again) == str(link)


def test_seconds_are_the_bytes_on_the_line_and_a_delay_for_each_hop():
    assert KILOBYTE_A_SECOND.line_s(3000) == pytest.approx(3.0)
    assert KILOBYTE_A_SECOND.seconds(3000) == pytest.approx(3.5)
    assert KILOBYTE_A_SECOND.seconds(3000, hops=4) == pytest.approx(5.0)


def test_line_is_busy_for_whole_frames():
    """A frame of 1538 bytes carries 1448: 1448 payload bytes take as long as 1538 on the line."""
    assert Link.parse("8kbit").line_s(1448) == pytest.approx(1.538)


# -- the throttle


def test_message_arrives_when_its_bytes_have_left_and_the_delay_is_over():
    time = FakeTime()
    throttle = Throttle(KILOBYTE_A_SECOND, time.clock, time.sleep)
    until = throttle.send(2000)
    assert until == pytest.approx(102.5)
    throttle.wait(until)
    assert time.slept == pytest.approx([2.5])


def test_messages_in_flight_share_the_line_and_their_delays_overlap():
    time = FakeTime()
    throttle = Throttle(KILOBYTE_A_SECOND, time.clock, time.sleep)
    assert [throttle.send(1000) for _ in range(3)] == pytest.approx([101.5, 102.5, 103.5])


def test_an_idle_line_saves_nothing_up():
    time = FakeTime()
    throttle = Throttle(KILOBYTE_A_SECOND, time.clock, time.sleep)
    throttle.send(1000)
    time.now_s = 150.0
    assert throttle.send(1000) == pytest.approx(151.5)


def test_work_done_while_a_message_travels_is_not_waited_for_again():
    time = FakeTime()
    throttle = Throttle(KILOBYTE_A_SECOND, time.clock, time.sleep)
    until = throttle.send(2000)
    time.now_s += 2.0
    throttle.wait(until)
    throttle.wait(until)
    assert time.slept == pytest.approx([0.5])


def test_every_hop_costs_a_delay():
    time = FakeTime()
    assert Throttle(KILOBYTE_A_SECOND, time.clock, time.sleep).send(0, hops=3) == pytest.approx(101.5)


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 10**6)), min_size=1, max_size=20))
def test_measured_rate_is_the_asked_rate_report_109(messages):
    """Waiting for each message at once: the bytes of a busy stretch never come through faster than the line allows, and
    a line that is never idle carries exactly its rate."""
    time = FakeTime(0.0)
    throttle = Throttle(Link.parse("100mbit"), time.clock, time.sleep)
    idle_s = 0.0
    for pause_s, sent_bytes in messages:
        time.now_s += pause_s
        idle_s += pause_s
        throttle.wait(throttle.send(sent_bytes))
    total_bits = 8 * LINE_BYTES_PER_SENT_BYTE * sum(sent_bytes for _, sent_bytes in messages)
    assert time.now_s - idle_s == pytest.approx(total_bits / 100e6, abs=1e-9)


# -- the virtual clock


def test_replicas_have_clocks_and_lines_of_their_own():
    clock = VirtualClock(2, KILOBYTE_A_SECOND)
    clock.compute(0, 1.0)
    clock.compute(1, 4.0)
    assert (clock.now(0), clock.now(1), clock.elapsed_s) == (1.0, 4.0, 4.0)
    assert clock.send(0, 2000, 1, clock.now(0)) == pytest.approx(3.5)
    assert clock.send(1, 2000, 1, clock.now(1)) == pytest.approx(6.5)
    assert clock.send(0, 1000, 2, clock.now(0)) == pytest.approx(5.0)


def test_waiting_stalls_only_for_what_computing_did_not_hide():
    clock = VirtualClock(2, KILOBYTE_A_SECOND)
    arrival = clock.send(0, 2000, 1, 0.0)
    clock.compute(0, 2.0)
    assert clock.wait(0, arrival) == pytest.approx(0.5)
    assert clock.wait(0, arrival) == 0.0
    assert clock.stalled_s == pytest.approx([0.5, 0.0])
    assert clock.now(0) == pytest.approx(2.5)


def test_run_of_steps_and_syncs_takes_what_the_closed_form_says():
    """R rounds of H steps of c seconds and a blocking exchange of b bytes in 2 hops: R (H c + b / rate + 2 delay)."""
    clock = VirtualClock(3, KILOBYTE_A_SECOND)
    rounds, sync_every, step_s, sent_bytes = 4, 10, 0.25, 6000
    for _ in range(rounds):
        for rank in range(3):
            for _ in range(sync_every):
                clock.compute(rank, step_s)
        arrival = max(clock.send(rank, sent_bytes, 2, clock.now(rank)) for rank in range(3))
        for rank in range(3):
            clock.wait(rank, arrival)
    exchange_s = KILOBYTE_A_SECOND.seconds(sent_bytes, hops=2)
    assert clock.elapsed_s == pytest.approx(rounds * (sync_every * step_s + exchange_s))
    assert clock.stalled_s == pytest.approx([rounds * exchange_s] * 3)


def test_clock_and_throttle_agree():
    time = FakeTime(0.0)
    throttle, clock = Throttle(KILOBYTE_A_SECOND, time.clock, time.sleep), VirtualClock(1, KILOBYTE_A_SECOND)
    for compute_s, sent_bytes in [(1.0, 3000), (0.1, 10), (9.0, 0), (0.0, 500)]:
        time.now_s += compute_s
        clock.compute(0, compute_s)
        until = throttle.send(sent_bytes)
        assert clock.send(0, sent_bytes, 1, clock.now(0)) == pytest.approx(until)
        throttle.wait(until - 0.25)
        clock.wait(0, until - 0.25)
        assert clock.now(0) == pytest.approx(time.now_s)


def test_state_goes_through_json_and_resumes_to_the_same_times():
    clock, other = VirtualClock(2, KILOBYTE_A_SECOND), VirtualClock(2, KILOBYTE_A_SECOND)
    clock.compute(0, 1.0)
    clock.wait(1, clock.send(0, 5000, 1, clock.now(0)))
    other.load_state_dict(json.loads(json.dumps(clock.state_dict())))
    for each in (clock, other):
        each.compute(1, 0.3)
    assert other.state_dict() == clock.state_dict()
    assert other.send(0, 100, 1, 0.0) == clock.send(0, 100, 1, 0.0)


def test_state_of_another_number_of_replicas_is_refused():
    with pytest.raises(BadInput, match="2 replicas, this one of 3"):
        VirtualClock(3, KILOBYTE_A_SECOND).load_state_dict(VirtualClock(2, KILOBYTE_A_SECOND).state_dict())
