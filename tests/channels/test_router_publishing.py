"""Publishing: resolved before the first message, confirmed by servers, repeated when a connection is lost, announced by
beacons, and kept for those who missed something."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import hiredis
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.core_driver import (
    CLIENT,
    OTHER,
    SIGNER,
    RouterDriver,
    beacons,
    channel_at,
    sequences,
)

from shoal.channels.client.context import Confirmed, PublishRefused
from shoal.channels.client.heal_meter import ASKERS_MAX
from shoal.channels.client.outgoing_stream import MARKS_MAX, Outgoing
from shoal.channels.client.publisher import BEGUN_MAX
from shoal.channels.states import LaneState
from shoal.errors import PublishError
from shoal.limits import DEFAULT_LIMITS, Limits
from shoal.message import Attributes
from shoal.plan.placement import BY_THE_RING, Mode, Placement, at_home
from shoal.wire import control, envelope
from shoal.wire.commands import Burst
from shoal.wire.envelope import HEADER, HEADER_BYTES, client_of

TILE = b"tile"
BEACON_S = DEFAULT_LIMITS.beacon_delay_s
IDLE_S = DEFAULT_LIMITS.publisher_idle_s


def limited(**limits: Any) -> Limits:
    return msgspec.structs.replace(DEFAULT_LIMITS, **limits)


def with_entry(driver: RouterDriver, channel: bytes, mode: Mode, *servers: str) -> None:
    driver.router.entry(SIGNER.entry(channel, Placement(1, mode, servers)), driver.now)
    driver.play()


def heal(driver: RouterDriver, out: Outgoing, first: int, last: int) -> tuple[list[int], control.Healed]:
    """What a subscriber gets that asks for a range: the numbers of the resends, then the end of the page."""
    driver.tell("s1", control.Heal(out.name, out.stream, first, last))
    resends = driver.told("s1", OTHER, control.Resend)
    (healed,) = driver.told("s1", OTHER, control.Healed)
    return sequences([(resend.channel, resend.blob) for resend in resends]), healed


# The first message


def test_nothing_is_sent_before_the_agent_has_answered() -> None:
    driver = RouterDriver()
    driver.servers["s1"].silent = True
    out = driver.publish(TILE, b"1", b"2")
    assert driver.published("s1") == []
    driver.servers["s1"].silent = False
    driver.advance(1.0)
    (hello, *_) = driver.heard("s1", control.Hello)
    assert hello.publisher
    assert (hello.name, hello.stream, hello.last) == (TILE, out.stream, 0)
    assert sequences(driver.published("s1")) == [1, 2]
    assert driver.router.settled


def test_a_hello_that_is_not_answered_is_repeated() -> None:
    driver = RouterDriver()
    driver.subscribe(b"other")
    driver.heard("s1", control.Hello)
    driver.servers["s1"].silent = True
    driver.publish(TILE, b"1")
    driver.advance(2.0, heartbeats=False)
    assert len(driver.heard("s1", control.Hello)) >= 2


def test_an_answer_about_another_channel_or_with_another_number_is_not_taken() -> None:
    driver = RouterDriver()
    driver.subscribe(b"other")
    driver.servers["s1"].silent = True
    out = driver.publish(TILE, b"1")
    hello = driver.heard("s1", control.Hello)[-1]
    answer = driver.servers["s1"].answer(hello)
    driver.tell("s1", msgspec.structs.replace(answer, name=b"elsewhere"), hello.nonce)
    driver.tell("s1", answer, hello.nonce + 1000)
    assert driver.lane_state(out) is LaneState.ASKING
    driver.tell("s1", answer, hello.nonce)
    assert driver.lane_state(out) is LaneState.LIVE


def test_a_message_is_in_its_envelope() -> None:
    driver = RouterDriver()
    driver.change_ring(("s1",), version=7)
    out = driver.publish(TILE, b"north")
    channel, data = driver.published("s1")[-1]
    assert channel == TILE
    assert HEADER.unpack_from(data) == (envelope.MAGIC, 0, BY_THE_RING | 7, out.stream, 1, 5)
    assert data[HEADER_BYTES:] == b"north"
    assert client_of(out.stream) == CLIENT


def test_attributes_are_in_the_envelope_of_their_message_only() -> None:
    driver = RouterDriver()
    driver.publish(TILE, b"with", attributes={"n": 1})
    driver.publish(TILE, b"without", attributes={})
    (_, first), (_, second) = driver.published("s1")[-2:]
    assert envelope.split_attributes(first, HEADER_BYTES) == ({"n": 1}, b"with")
    assert second[2] == 0
    assert second[HEADER_BYTES:] == b"without"


@pytest.mark.parametrize("attributes", [{"n": 1 << 64}, {"": 1}, {"x": float("nan")}, {"x": "y" * 9000}])
def test_refused_attributes_leave_nothing_behind(attributes: Attributes) -> None:
    driver = RouterDriver()
    out = driver.publish(TILE, b"1")
    with pytest.raises(PublishError):
        driver.publish(TILE, b"bad", attributes=attributes)
    driver.publish(TILE, b"2")
    assert sequences(driver.published("s1")) == [1, 2]
    assert driver.settled(out)
    assert heal(driver, out, 1, 2)[0] == [1, 2]


def test_messages_of_a_turn_go_out_together_only_while_the_lease_lasts() -> None:
    driver = RouterDriver()
    out = driver.publish(TILE, b"1")
    driver.published("s1")
    over_at = driver.link("s1").usable_until
    for payload, now in ((b"2", driver.now), (b"3", driver.now), (b"4", over_at), (b"5", over_at)):
        assert driver.router.publish(TILE, payload, b"", 5, now) is out
    ((_, (burst,)),) = driver.router.take_commands()
    assert isinstance(burst, Burst)
    assert sequences([(TILE, blob) for blob in burst.blobs]) == [2, 3]
    assert out.lanes[0].state is LaneState.HELD


def test_messages_and_other_commands_keep_their_order() -> None:
    driver = RouterDriver()
    driver.publish(TILE, b"1")
    other = b"other"
    driver.publish(other, b"1")
    driver.published("s1")
    link = driver.link("s1")
    for channel in (TILE, TILE, other, TILE):
        driver.router.publish(channel, b"x", b"", 5, driver.now)
    link.publish(b"between", b"blob")
    driver.router.publish(TILE, b"x", b"", 5, driver.now)
    driver.play()
    channels = [channel for channel, _ in driver.published("s1")]
    assert channels == [TILE, TILE, other, TILE, b"between", TILE]
    assert driver.router.settled


def test_each_channel_has_its_own_numbers() -> None:
    driver = RouterDriver()
    first, second = driver.publish(b"a", b"1", b"2"), driver.publish(b"b", b"1")
    assert first.stream != second.stream
    assert (first.seq, second.seq) == (2, 1)


# Confirmation


def test_a_message_is_pending_until_the_server_has_replied() -> None:
    driver = RouterDriver()
    driver.publish(TILE, b"1")
    driver.servers["s1"].mute = True
    out = driver.publish(TILE, b"22", b"333")
    router = driver.router
    assert router.pending_messages == 2
    assert router.pending_bytes == 2 * HEADER_BYTES + 5
    driver.feed("s1", 1)
    assert (out.confirmed, router.pending_messages) == (2, 1)
    driver.feed("s1", 0)
    assert driver.router.settled, "a server that passes it on to nobody has it all the same"
    assert router.pending_bytes == 0


def test_a_long_run_of_replies_confirms_as_single_ones_do() -> None:
    """Many replies at once take a shorter way, which must not count an error or another lane's reply."""
    driver = RouterDriver()
    other = channel_at(driver.ring, "s1")
    driver.publish(TILE, b"0")
    driver.publish(other, b"0")
    driver.servers["s1"].mute = True
    out = driver.publish(TILE, *[b"x"] * 20)
    also = driver.publish(other, b"y", b"z")
    driver.feed("s1", *[1] * 12)
    assert (out.confirmed, also.confirmed) == (13, 1)
    driver.feed("s1", *[1] * 10)
    assert (out.confirmed, also.confirmed) == (21, 3)
    assert driver.router.settled


def test_an_error_among_many_replies_is_reported() -> None:
    driver = RouterDriver()
    driver.publish(TILE, b"0")
    driver.servers["s1"].mute = True
    driver.publish(TILE, *[b"x"] * 12)
    driver.feed("s1", *[1] * 6, hiredis.ReplyError("NOPERM no"), *[1] * 5)
    driver.play()
    assert len(driver.happened(PublishRefused)) == 1
    assert driver.router.settled


def test_waiters_are_woken_in_order_when_their_message_is_confirmed() -> None:
    driver = RouterDriver()
    driver.publish(TILE, b"0")
    driver.servers["s1"].mute = True
    out = driver.publish(TILE, b"1", b"2", b"3")
    router = driver.router
    assert router.await_confirm(out, 2, "one")
    assert router.await_confirm(out, 4, "three")
    driver.feed("s1", 1)
    driver.play()
    assert driver.happened(Confirmed) == [Confirmed(["one"])]
    driver.feed("s1", 1, 1)
    driver.play()
    assert driver.happened(Confirmed) == [Confirmed(["three"])]
    assert not router.await_confirm(out, 3, "late"), "it is confirmed already"


def test_it_tells_what_a_server_still_owes() -> None:
    driver = RouterDriver(("s1", "s2"))
    here, there = channel_at(driver.ring, "s1"), channel_at(driver.ring, "s2")
    driver.publish(here, b"0")
    driver.publish(there, b"0")
    router = driver.router
    assert (router.awaits_replies, router.streams_live) == (False, True)
    driver.servers["s1"].mute = True
    out = driver.publish(here, b"1", b"2")
    assert router.await_confirm(out, 3, "the second")
    assert router.awaits_replies
    assert router.unconfirmed() == router.unconfirmed("s1") == {here: 2}
    assert (router.unconfirmed("s2"), router.unconfirmed("unknown")) == ({}, {})
    assert (router.awaited_confirms("s1"), router.awaited_confirms("s2")) == (["the second"], [])
    driver.lose("s1")
    assert (router.awaits_replies, router.streams_live) == (False, False)


def test_a_refused_message_is_reported_and_the_next_ones_go_on() -> None:
    driver = RouterDriver()
    driver.publish(TILE, b"1")
    driver.published("s1")
    driver.servers["s1"].refuse[TILE] = "NOPERM this user has no permissions"
    driver.publish(TILE, b"2")
    assert driver.happened(PublishRefused) == [PublishRefused(TILE, "NOPERM this user has no permissions")]
    assert driver.counters.refused == 1
    driver.servers["s1"].refuse.clear()
    driver.publish(TILE, b"3")
    assert sequences(driver.published("s1")) == [3]
    assert driver.router.settled


def test_a_refusal_concerns_only_its_own_message_also_among_replies_that_arrive_together() -> None:
    driver = RouterDriver()
    driver.publish(TILE, b"1")
    driver.servers["s1"].mute = True
    out = driver.publish(TILE, b"2", b"3", b"4", b"5")
    for number, token in ((3, "two"), (4, "three"), (5, "four")):
        assert driver.router.await_confirm(out, number, token)
    driver.feed("s1", hiredis.ReplyError("OOM"), 1, hiredis.ReplyError("NOPERM"), 1)
    driver.play()
    assert driver.happened(PublishRefused) == [PublishRefused(TILE, "OOM"), PublishRefused(TILE, "NOPERM", "three")]
    assert driver.happened(Confirmed) == [Confirmed(["two"]), Confirmed(["four"])]
    assert driver.router.settled


# Lost connections


def test_what_is_not_confirmed_is_repeated_after_a_reconnect() -> None:
    driver = RouterDriver()
    out = driver.publish(TILE, b"1")
    driver.servers["s1"].mute = True
    driver.publish(TILE, b"2", b"3", b"4")
    driver.feed("s1", 1)
    driver.servers["s1"].mute = False
    driver.published("s1")
    driver.lose("s1")
    assert driver.lane_state(out) is LaneState.WAITING
    driver.advance(1.0)
    published = driver.published("s1")
    assert sequences(published) == [3, 4]
    assert beacons(published)[0] == (2, 2, False), "first it says how far it was confirmed"
    assert driver.counters.repeated == 2
    assert driver.settled(out)


def test_what_is_published_while_there_is_no_connection_goes_out_later_in_order() -> None:
    driver = RouterDriver()
    driver.publish(TILE, b"1")
    driver.servers["s1"].reachable = False
    driver.published("s1")
    driver.lose("s1")
    out = driver.publish(TILE, b"2", b"3")
    assert driver.router.pending_messages == 2
    driver.servers["s1"].reachable = True
    driver.advance(1.0)
    assert sequences(driver.published("s1")) == [2, 3]
    assert driver.settled(out)


def test_replies_of_a_lost_connection_do_not_count() -> None:
    driver = RouterDriver()
    driver.publish(TILE, b"1")
    driver.servers["s1"].mute = True
    out = driver.publish(TILE, b"2")
    driver.lose("s1")
    driver.feed("s1", 1, 1, 1)
    assert out.confirmed == 1


@settings(max_examples=50, deadline=None)
@given(script=st.lists(st.sampled_from(["publish", "reply", "lose", "tick"]), max_size=40))
def test_whatever_happens_to_the_connection_every_message_arrives_in_order(script: list[str]) -> None:
    """A server's view: it sees every number, none for the first time out of order, and all is confirmed in the end."""
    driver = RouterDriver()
    here = driver.servers["s1"]
    out = driver.publish(TILE, b"0")
    seen = sequences(driver.published("s1"))
    here.mute = True
    for action in script:
        if action == "publish":
            driver.publish(TILE, b"x")
        elif action == "reply":
            here.mute = False
            driver.play()
            here.mute = True
        elif action == "lose":
            driver.lose("s1")
            driver.play()
        else:
            driver.advance(0.3)
        seen += sequences(driver.published("s1"))
    here.mute = False
    driver.advance(30.0)
    seen += sequences(driver.published("s1"))
    assert list(dict.fromkeys(seen)) == list(range(1, out.seq + 1))
    assert driver.router.settled
    assert driver.router.pending_bytes == 0


# Beacons


def test_a_burst_ends_with_a_beacon() -> None:
    driver = RouterDriver()
    driver.publish(TILE, b"1", b"2", b"3")
    driver.published("s1")
    driver.advance(BEACON_S * 0.9)
    assert driver.published("s1") == []
    driver.advance(BEACON_S * 0.2)
    assert beacons(driver.published("s1")) == [(3, 3, False)]
    driver.advance(20.0)
    assert driver.published("s1") == [], "once is enough while nothing is published"


def test_a_beacon_says_for_how_long_the_stream_has_been_quiet() -> None:
    driver = RouterDriver()
    driver.publish(TILE, b"1")
    driver.advance(12.5)
    driver.published("s1")
    driver.router.close(driver.now)
    driver.play()
    ((_, data),) = driver.published("s1")
    assert beacons([(TILE, data)]) == [(1, 1, True)]
    assert envelope.HEADER.unpack_from(data)[-1] == 12.5 * envelope.US_PER_S


def test_an_announcement_says_how_old_the_last_message_is_that_it_announces() -> None:
    """Later messages wait for the server and follow. The confirmed ones may be older than a subscription there, and so
    not owed to it."""
    driver = RouterDriver()
    driver.publish(TILE, b"1")
    driver.advance(10.0)
    driver.lose("s1")
    driver.publish(TILE, b"2")
    ((_, data), *_) = driver.published("s1")[-2:]
    assert beacons([(TILE, data)]) == [(1, 1, False)]
    assert envelope.HEADER.unpack_from(data)[-1] == 10 * envelope.US_PER_S


def test_messages_are_no_older_than_the_end_of_the_turn_in_which_they_were_published() -> None:
    """Messages of a turn share one reading of the clock, and an application may take long between two of them."""
    driver = RouterDriver(limits=limited(resend_messages_max=4))
    out = driver.publish(TILE, *(b"%d" % number for number in range(10)))
    for took_s in (2.0, 0.5):
        driver.router.turn_took(took_s)
    driver.advance(12.5)
    _, healed = heal(driver, out, 1, 10)
    assert healed.age_ms == pytest.approx(10_500, abs=1)
    driver.published("s1")
    driver.router.close(driver.now)
    driver.play()
    ((_, data),) = driver.published("s1")
    assert envelope.HEADER.unpack_from(data)[-1] == pytest.approx(10.5 * envelope.US_PER_S, abs=1000)


def test_a_beacon_waits_for_the_end_of_the_burst() -> None:
    driver = RouterDriver()
    for number in range(10):
        driver.publish(TILE, b"%d" % number)
        driver.advance(BEACON_S * 0.5)
    assert beacons(driver.published("s1"))[1:] == [], "but for the announcement on coming to the server"
    driver.advance(BEACON_S * 2)
    assert beacons(driver.published("s1")) == [(10, 10, False)]


def test_a_steady_stream_has_a_beacon_when_it_ends_and_not_one_for_each_message() -> None:
    driver = RouterDriver()
    pace = BEACON_S * 1.6
    for number in range(10):
        driver.publish(TILE, b"%d" % number)
        driver.advance(pace)
    said = beacons(driver.published("s1"))
    assert [last for last, _, _ in said if last > 1] == [], "but for the announcement, and before it had a pace"
    driver.advance(2 * pace)
    assert beacons(driver.published("s1")) == [(10, 10, False)]


def test_who_speaks_seldom_has_a_beacon_soon() -> None:
    driver = RouterDriver()
    for number in (1, 2, 3):
        driver.advance(DEFAULT_LIMITS.beacon_delay_s_max)
        driver.publish(TILE, b"now and then")
        driver.published("s1")
        driver.advance(BEACON_S * 1.1)
        assert beacons(driver.published("s1"))[-1:] == [(number, number, False)]


def test_a_beacon_waits_for_confirmation() -> None:
    driver = RouterDriver()
    driver.publish(TILE, b"1")
    driver.advance(2 * BEACON_S)
    driver.published("s1")
    driver.servers["s1"].mute = True
    driver.publish(TILE, b"2")
    driver.advance(BEACON_S * 5)
    assert all(command[:2] != (b"PUBLISH", TILE) for command in driver.servers["s1"].commands[1:])
    driver.servers["s1"].mute = False
    driver.advance(BEACON_S * 5)
    assert beacons(driver.published("s1")) == [(2, 2, False)]


def test_a_silent_stream_ends_and_the_next_message_begins_another() -> None:
    driver = RouterDriver()
    first = driver.publish(TILE, b"1")
    driver.advance(IDLE_S / 2 - 1.0)
    driver.published("s1")
    driver.advance(2.0 + 2 * BEACON_S)
    assert beacons(driver.published("s1")) == [(1, 1, True)]
    assert driver.router.resend_bytes == 0
    second = driver.publish(TILE, b"again")
    assert second.stream != first.stream
    assert sequences(driver.published("s1")) == [1]


def test_a_stream_that_is_used_does_not_end() -> None:
    driver = RouterDriver()
    out = driver.publish(TILE, b"1")
    for _ in range(6):
        driver.advance(IDLE_S / 4)
        assert driver.publish(TILE, b"x") is out
    assert not [final for _, _, final in beacons(driver.published("s1")) if final]


def test_closing_ends_every_stream() -> None:
    driver = RouterDriver()
    driver.publish(b"a", b"1", b"2")
    driver.publish(b"b", b"1")
    driver.published("s1")
    driver.router.close(driver.now)
    driver.play()
    published = driver.published("s1")
    assert [channel for channel, _ in published] == [b"a", b"b"]
    assert beacons(published) == [(2, 2, True), (1, 1, True)]


# Those who missed something


def test_a_subscriber_that_missed_something_gets_it() -> None:
    driver = RouterDriver()
    out = driver.publish(TILE, *(b"%d" % number for number in range(10)))
    numbers, healed = heal(driver, out, 3, 6)
    assert numbers == [3, 4, 5, 6]
    assert healed == control.Healed(TILE, out.stream, 1, 10, 10, 3, age_ms=0, until=6)
    assert driver.counters.resent == 4


def test_an_answer_says_how_old_the_dropped_messages_are() -> None:
    """A subscriber that began later is not owed them."""
    driver = RouterDriver(limits=limited(resend_messages_max=4))
    for number in range(10):
        out = driver.publish(TILE, b"%d" % number)
        driver.advance(1.0)
    _, healed = heal(driver, out, 1, 10)
    assert (healed.floor, healed.until) == (7, 10)
    assert healed.age_ms == pytest.approx(5000, abs=1), "number 6 was published 5 s ago"
    _, healed = heal(driver, out, 1, 3)
    assert (healed.floor, healed.until) == (7, 3)
    assert healed.age_ms == pytest.approx(8000, abs=1), "number 3 was published 8 s ago"


def test_the_ages_of_a_long_stream_take_bounded_room_and_are_never_too_high() -> None:
    out = Outgoing(TILE, 1, at_home(1, "s1"), 0.0)
    for number in range(1, 3001):
        out.seq = number
        now = number / 8
        if now >= out.mark_due:
            out.mark(now)
        out.published_at = now
        assert len(out.marks) <= MARKS_MAX
    for number in range(1, 3001):
        assert number / 8 <= out.published_by(number) <= 3000 / 8
    assert out.published_by(2990) - 2990 / 8 < 1.0


def test_a_page_is_limited_in_messages_and_bytes() -> None:
    driver = RouterDriver(limits=limited(heal_page_messages=4))
    out = driver.publish(TILE, *(b"%d" % number for number in range(10)))
    assert heal(driver, out, 1, 10)[0] == [1, 2, 3, 4]
    driver = RouterDriver(limits=limited(heal_page_bytes=1100))
    out = driver.publish(TILE, *(b"x" * 300 for _ in range(10)))
    numbers, _ = heal(driver, out, 2, 10)
    assert numbers == [2, 3, 4]
    out = driver.publish(b"large", b"x" * 5000, b"x" * 5000)
    assert heal(driver, out, 1, 2)[0] == [1], "at least one, however large"


def test_what_the_window_no_longer_has_is_said_by_its_floor() -> None:
    driver = RouterDriver(limits=limited(resend_messages_max=4, heal_page_messages=4))
    out = driver.publish(TILE, *(b"%d" % number for number in range(10)))
    numbers, healed = heal(driver, out, 3, 8)
    assert numbers == [7, 8]
    assert healed.floor == 7


def test_a_window_is_limited_in_bytes_too() -> None:
    driver = RouterDriver(limits=limited(resend_bytes_max=4 * (HEADER_BYTES + 10)))
    out = driver.publish(TILE, *(b"x" * 10 for _ in range(10)))
    assert heal(driver, out, 1, 10)[1].floor == 7


def test_all_windows_together_are_limited() -> None:
    driver = RouterDriver(limits=limited(resend_total_bytes_max=2000))
    for number in range(20):
        driver.publish(b"c.%d" % number, *(b"x" * 50 for _ in range(5)))
    assert driver.router.resend_bytes <= 2000 + 5 * (HEADER_BYTES + 50)


def test_what_is_not_confirmed_stays_in_the_window_whatever_its_limit() -> None:
    driver = RouterDriver(limits=limited(resend_messages_max=2, heal_page_messages=2))
    driver.publish(TILE, b"0")
    driver.servers["s1"].mute = True
    driver.publish(TILE, *(b"%d" % number for number in range(20)))
    driver.servers["s1"].mute = False
    driver.published("s1")
    driver.lose("s1")
    driver.advance(1.0)
    assert sequences(driver.published("s1")) == list(range(2, 22))


@pytest.mark.parametrize(
    ("stream", "first", "last"), [(0, 1, 2), (1, 1, 2), (None, 2, 1), (None, 50, 60)], ids=["0", "1", "empty", "future"]
)
def test_a_request_that_makes_no_sense_gets_no_messages(stream: int | None, first: int, last: int) -> None:
    driver = RouterDriver()
    out = driver.publish(TILE, b"1", b"2")
    driver.tell("s1", control.Heal(TILE, out.stream if stream is None else stream, first, last))
    driver.tell("s1", control.Heal(b"elsewhere", out.stream, 1, 2))
    assert driver.told("s1", OTHER, control.Resend) == []


def test_a_publisher_says_that_it_never_began_a_stream_on_a_channel() -> None:
    """Another client may have claimed it; a subscriber must not wait and report a gap."""
    driver = RouterDriver()
    out = driver.publish(TILE, b"1")
    driver.publish(b"other", b"1")
    never = out.stream + 7
    for channel, stream in ((b"other", out.stream), (TILE, out.stream + 1), (TILE, never), (b"empty", never)):
        driver.tell("s1", control.Heal(channel, stream, 1, 2))
        assert driver.told("s1", OTHER, control.Healed) == [control.Healed(channel, stream, 0, 0, 0, 1)]


def test_a_publisher_does_not_answer_for_a_stream_that_it_no_longer_remembers() -> None:
    driver = RouterDriver()
    out = driver.publish(TILE, b"1")
    for number in range(BEGUN_MAX):
        driver.publish(b"%d" % number, b"1")
    driver.tell("s1", control.Heal(b"0", out.stream, 1, 2))
    assert driver.told("s1", OTHER, control.Healed) == []


@settings(max_examples=50)
@given(first=st.integers(0, (1 << 64) - 1), last=st.integers(0, (1 << 64) - 1))
def test_any_range_can_be_asked_for(first: int, last: int) -> None:
    driver = RouterDriver()
    out = driver.publish(TILE, b"1", b"2", b"3")
    driver.tell("s1", control.Heal(TILE, out.stream, first, last))
    resends = driver.told("s1", OTHER, control.Resend)
    expected = [number for number in (1, 2, 3) if first <= number <= last]
    assert sequences([(resend.channel, resend.blob) for resend in resends]) == expected


# Requests of many or greedy subscribers


def flooded(driver: RouterDriver, out: Outgoing, askers: Iterable[int], count: int) -> int:
    """The bytes that are resent when each asker asks for everything so many times."""
    size = 0
    for asker in askers:
        for first in range(1, count + 1):
            driver.tell("s1", control.Heal(TILE, out.stream, first, 1 << 60), client=asker)
        size += sum(len(resend.blob) for resend in driver.told("s1", asker, control.Resend))
    return size


LARGE = 1 << 20


def large_stream(driver: RouterDriver, count: int = 12) -> Outgoing:
    for _ in range(count):
        out = driver.publish(TILE, b"x" * LARGE)
    return out


def test_a_page_is_not_sent_again_at_once_to_the_same_asker() -> None:
    driver = RouterDriver()
    out = driver.publish(TILE, b"1", b"2", b"3")
    for _ in range(5):
        driver.tell("s1", control.Heal(TILE, out.stream, 1, 3), client=7)
    assert len(driver.told("s1", 7, control.Resend)) == 3
    driver.tell("s1", control.Heal(TILE, out.stream, 1, 3), client=8)
    assert len(driver.told("s1", 8, control.Resend)) == 3
    driver.advance(DEFAULT_LIMITS.heal_retry_s)
    driver.tell("s1", control.Heal(TILE, out.stream, 1, 3), client=7)
    assert len(driver.told("s1", 7, control.Resend)) == 3
    assert driver.counters.heals_over_quota == 4


def test_one_asker_gets_so_many_bytes_a_second() -> None:
    driver = RouterDriver()
    out = large_stream(driver)
    most = DEFAULT_LIMITS.heal_bytes_per_s_max
    assert most <= flooded(driver, out, [7], 40) <= most + 2 * LARGE
    assert flooded(driver, out, [7], 40) == 0
    driver.advance(2.0)
    assert most <= flooded(driver, out, [7], 40) <= most + 2 * LARGE


def test_a_flood_in_the_names_of_many_gets_no_more_than_all_may_have() -> None:
    driver = RouterDriver()
    out = large_stream(driver)
    most = DEFAULT_LIMITS.heal_total_bytes_per_s_max
    assert most <= flooded(driver, out, range(1, 2000), 1) <= most + 2 * LARGE
    assert len(driver.router._publisher._meter._recent) <= ASKERS_MAX


# Several servers


def test_all_publishers_means_a_copy_on_every_server() -> None:
    driver = RouterDriver(("s1", "s2", "s3"))
    with_entry(driver, TILE, Mode.ALL_PUBLISHERS, "s1", "s3")
    out = driver.publish(TILE, b"1", b"2")
    assert [sequences(driver.published(server)) for server in ("s1", "s2", "s3")] == [[1, 2], [], [1, 2]]
    assert driver.settled(out)
    driver.servers["s3"].mute = True
    driver.publish(TILE, b"3")
    assert sequences(driver.published("s1")) == [3]
    assert not driver.settled(out), "it is confirmed when all have it"
    driver.servers["s3"].mute = False
    driver.play()
    assert driver.settled(out)
    driver.advance(1.0)
    assert beacons(driver.published("s1")) == beacons(driver.published("s3")) == [(3, 3, False)]


def test_all_subscribers_means_one_server_for_this_publisher() -> None:
    driver = RouterDriver(("s1", "s2", "s3"))
    with_entry(driver, TILE, Mode.ALL_SUBSCRIBERS, "s1", "s2", "s3")
    driver.publish(TILE, b"1")
    own = ("s1", "s2", "s3")[CLIENT % 3]
    assert {server: sequences(driver.published(server)) for server in ("s1", "s2", "s3")} == {
        server: [1] if server == own else [] for server in ("s1", "s2", "s3")
    }


def test_a_lost_server_of_several_gets_what_it_missed() -> None:
    driver = RouterDriver(("s1", "s2"))
    with_entry(driver, TILE, Mode.ALL_PUBLISHERS, "s1", "s2")
    out = driver.publish(TILE, b"1")
    driver.servers["s2"].reachable = False
    driver.lose("s2")
    driver.published("s1"), driver.published("s2")
    driver.publish(TILE, b"2", b"3")
    assert sequences(driver.published("s1")) == [2, 3]
    driver.servers["s2"].reachable = True
    driver.advance(1.0)
    assert sequences(driver.published("s2")) == [2, 3]
    assert sequences(driver.published("s1")) == []
    assert driver.settled(out)


def test_when_the_home_leaves_the_ring_its_heir_gets_what_was_not_confirmed() -> None:
    driver = RouterDriver(("s1", "s2"))
    channel = channel_at(driver.ring, "s2")
    out = driver.publish(channel, b"1")
    driver.servers["s2"].mute = True
    driver.publish(channel, b"2", b"3")
    driver.change_ring(("s1",))
    driver.advance(1.0)
    published = driver.published("s1")
    assert sequences(published) == [2, 3]
    assert beacons(published)[0] == (1, 1, False)
    assert driver.settled(out)
    assert {HEADER.unpack_from(data)[2] for _, data in published if not data[2] & envelope.BEACON} <= {
        BY_THE_RING | 1,
        BY_THE_RING | 2,
    }


def test_replies_of_a_server_that_was_left_do_not_count() -> None:
    driver = RouterDriver(("s1", "s2"))
    channel = channel_at(driver.ring, "s2")
    driver.publish(channel, b"1")
    driver.servers["s2"].mute = True
    out = driver.publish(channel, b"2")
    driver.servers["s1"].mute = True
    driver.router.entry(SIGNER.entry(channel, Placement(2, Mode.SINGLE, ("s1",))), driver.now)
    driver.feed("s2", 1)
    assert out.confirmed == 1
