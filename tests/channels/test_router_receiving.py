"""What a subscription is handed: exactly once, in order, holes healed or reported with their exact range, never
silence."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hiredis import PushNotification
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.core_driver import CLIENT, OTHER, STREAM, RouterDriver, StandIn, addressed, blob

from shoal.channels.client import subscription
from shoal.channels.client.context import UnknownFlags
from shoal.channels.client.subscription import SubscriptionCore
from shoal.limits import DEFAULT_LIMITS, Limits
from shoal.message import Gap, Message
from shoal.wire import control, envelope
from shoal.wire.envelope import stream_id

DELAY_S, RETRY_S, TIMEOUT_S = (
    DEFAULT_LIMITS.heal_delay_s,
    DEFAULT_LIMITS.heal_retry_s,
    DEFAULT_LIMITS.gap_timeout_s,
)
TILE = b"tile"


def subscribed(*, pattern: bytes | None = None, **limits: Any) -> tuple[RouterDriver, SubscriptionCore]:
    """A subscription in force on s1 that has met the stream: its message 1 has been read."""
    driver = RouterDriver(limits=msgspec.structs.replace(DEFAULT_LIMITS, **limits))
    sub = driver.subscribe(pattern or TILE, pattern=pattern is not None)
    driver.message("s1", TILE, STREAM, 1, b"1", pattern=pattern)
    assert driver.payloads(sub) == [b"1"]
    return driver, sub


def arrive(driver: RouterDriver, *numbers: int) -> None:
    for number in numbers:
        driver.message("s1", TILE, STREAM, number, b"%d" % number)


def resend(driver: RouterDriver, *numbers: int) -> None:
    for number in numbers:
        driver.tell("s1", control.Resend(TILE, blob(STREAM, number, b"%d" % number)))


def asked(driver: RouterDriver, server: str = "s1") -> list[tuple[int, int]]:
    """The ranges that the stream's publisher was asked for."""
    return [(heal.first, heal.last) for heal in driver.told(server, OTHER, control.Heal)]


def restart_server(driver: RouterDriver, **changes: object) -> None:
    """The server dies and is back with nothing; its agent says what `changes` say."""
    here = driver.servers["s1"]
    here.incarnation += 1
    here.streams.clear()
    for name, value in changes.items():
        setattr(here, name, value)
    driver.lose("s1")
    driver.play()


@pytest.mark.parametrize(("away_s", "gaps"), [(290.0, 0), (310.0, 1)])
def test_an_absence_longer_than_the_memory_of_agents_is_reported(away_s: float, gaps: int) -> None:
    """A publisher may have begun, published and ended meanwhile."""
    driver, sub = subscribed()
    driver.servers["s1"].reachable = False
    driver.lose("s1")
    driver.advance(away_s)
    driver.servers["s1"].reachable = True
    driver.advance(8.0)
    found = [item for item in driver.items(sub) if isinstance(item, Gap) and "away" in item.reason]
    assert len(found) == gaps
    assert all((gap.publisher, gap.last) == (None, None) for gap in found)
    driver.lose("s1")
    driver.advance(8.0)
    assert not any(isinstance(item, Gap) and "away" in item.reason for item in driver.items(sub)), "once"


def test_a_stream_that_the_agent_of_its_server_lists_is_not_in_doubt_when_another_agent_restarts() -> None:
    """A stream may be known on servers where it was forwarded or published before."""
    driver = RouterDriver(("s1", "s2"))
    channel = next(name for name in (b"c%d" % number for number in range(99)) if driver.ring.home(name) == "s1")
    for here in driver.servers.values():
        here.streams[channel, STREAM] = 4
    sub = driver.subscribe(b"*", pattern=True)
    driver.servers["s2"].incarnation += 1
    driver.servers["s2"].streams.clear()
    driver.lose("s2")
    driver.advance(2 * DEFAULT_LIMITS.gap_timeout_s)
    assert driver.items(sub) == []


# Plain delivery


def test_messages_are_delivered_with_all_they_carry() -> None:
    driver, sub = subscribed()
    driver.message("s1", TILE, STREAM, 2, b"two", attributes={"n": 1, "f": 0.5, "t": "x", "b": True})
    driver.message("s1", TILE, STREAM, 3, b"three")
    assert driver.items(sub) == [
        Message("tile", b"two", OTHER, 2, 5, {"n": 1, "f": 0.5, "t": "x", "b": True}),
        Message("tile", b"three", OTHER, 3, 5),
    ]


def test_foreign_payloads_are_delivered_as_they_are() -> None:
    driver, sub = subscribed()
    for payload in (b"plain", b"", b"\xf5\x5a short", b"\xf5\x5a\xff" + bytes(40)):
        driver.push("s1", TILE, payload)
    assert driver.items(sub) == [
        Message("tile", payload) for payload in (b"plain", b"", b"\xf5\x5a short", b"\xf5\x5a\xff" + bytes(40))
    ]
    assert driver.counters.foreign == 4


def test_the_application_is_told_once_until_it_has_looked() -> None:
    driver, sub = subscribed()
    driver.ready.clear()
    driver.feed("s1", *(PushNotification([b"message", TILE, blob(STREAM, number)]) for number in (2, 3, 4)))
    assert driver.router.take_ready() == [sub]


def test_each_subscription_of_a_channel_gets_everything() -> None:
    driver, first = subscribed()
    driver.servers["s1"].streams[TILE, STREAM] = 1
    second = driver.subscribe(TILE)
    arrive(driver, 2, 3)
    assert driver.payloads(first) == driver.payloads(second) == [b"2", b"3"]


def test_a_pattern_gets_its_channels_and_says_so() -> None:
    driver, sub = subscribed(pattern=b"ti*")
    driver.message("s1", b"time", STREAM, 1, b"other channel, other numbers", pattern=b"ti*")
    driver.message("s1", TILE, STREAM, 2, b"2", pattern=b"ti*")
    assert driver.items(sub) == [
        Message("time", b"other channel, other numbers", OTHER, 1, 5, pattern="ti*"),
        Message("tile", b"2", OTHER, 2, 5, pattern="ti*"),
    ]


def test_a_pattern_that_covers_internal_channels_does_not_hear_them() -> None:
    driver = RouterDriver()
    sub = driver.subscribe(b"*", pattern=True)
    for channel in (b"__shoal:agent", b"__shoal:heartbeat", b"__shoal:in:000000000b0b"):
        driver.push("s1", channel, b"secret", pattern=b"*")
    assert driver.items(sub) == []


def test_after_unsubscribing_nothing_is_delivered() -> None:
    driver, sub = subscribed()
    driver.router.unsubscribe(sub, driver.now)
    arrive(driver, 2)
    assert driver.items(sub) == []


# Duplicates and order


def test_it_tells_what_is_missing() -> None:
    driver, sub = subscribed()
    assert sub.doubts() == []
    arrive(driver, 2, 5, 6)
    assert sub.doubts() == [f"tile of {STREAM:x} misses 3 to 6"]
    found = sub.statistics()
    assert (found.servers, found.streams, found.held_messages, found.early_messages) == ({"s1": "in_force"}, 1, 2, 0)
    arrive(driver, 3, 4)
    assert sub.doubts() == []


def test_duplicates_are_dropped() -> None:
    driver, sub = subscribed()
    arrive(driver, 2, 2, 1, 3, 2, 3)
    assert driver.payloads(sub) == [b"2", b"3"]
    assert driver.counters.duplicates == 4


def test_a_message_past_a_hole_waits_for_what_comes_before_it() -> None:
    driver, sub = subscribed()
    arrive(driver, 4, 3)
    assert driver.payloads(sub) == []
    arrive(driver, 2)
    assert driver.payloads(sub) == [b"2", b"3", b"4"]
    assert driver.counters.holes == 1


def test_a_hole_in_one_stream_does_not_hold_another() -> None:
    driver, sub = subscribed()
    arrive(driver, 3)
    driver.message("s1", TILE, stream_id(OTHER + 1, 1), 1, b"other")
    assert driver.payloads(sub) == [b"other"]


def test_another_epoch_of_a_client_is_another_stream() -> None:
    driver, sub = subscribed()
    driver.message("s1", TILE, stream_id(OTHER, 2), 1, b"again from one")
    assert driver.payloads(sub) == [b"again from one"]


@settings(max_examples=60)
@given(order=st.permutations(range(2, 9)), twice=st.sets(st.integers(2, 8)))
def test_in_whatever_order_and_however_often_they_come_once_and_in_order(order: list[int], twice: set[int]) -> None:
    driver, sub = subscribed()
    arrive(driver, *order, *twice)
    assert driver.payloads(sub) == [b"%d" % number for number in range(2, 9)]
    driver.advance(TIMEOUT_S * 2)
    assert driver.items(sub) == []


# Holes and healing


def test_a_hole_is_given_a_moment_then_asked_for_then_delivered() -> None:
    driver, sub = subscribed()
    arrive(driver, 5)
    driver.advance(DELAY_S * 0.9)
    assert asked(driver) == []
    driver.advance(DELAY_S * 0.2)
    assert asked(driver) == [(2, 4)]
    resend(driver, 2, 3, 4)
    driver.tell("s1", control.Healed(TILE, STREAM, 1, 5, 5, 2))
    assert driver.payloads(sub) == [b"2", b"3", b"4", b"5"]
    assert driver.counters.healed == 3
    driver.advance(60.0)
    assert asked(driver) == []
    assert driver.items(sub) == []


def test_a_hole_that_fills_by_itself_is_not_asked_for() -> None:
    driver, sub = subscribed()
    arrive(driver, 3, 2)
    driver.advance(5.0)
    assert asked(driver) == []
    assert driver.payloads(sub) == [b"2", b"3"]


def test_an_unanswered_request_is_repeated() -> None:
    driver, _ = subscribed()
    arrive(driver, 3)
    driver.advance(DELAY_S + 5 * RETRY_S)
    requests = asked(driver)
    assert len(requests) >= 2
    assert set(requests) == {(2, 2)}


def test_a_large_hole_is_healed_page_by_page() -> None:
    driver, sub = subscribed(heal_page_messages=4)
    arrive(driver, 11)
    driver.advance(DELAY_S * 1.1)
    pages = []
    while requests := asked(driver):
        pages += requests
        resend(driver, *range(requests[0][0], requests[0][1] + 1))
        driver.tell("s1", control.Healed(TILE, STREAM, 1, 11, 11, requests[0][0]))
        driver.advance(0.001)
    assert pages == [(2, 5), (6, 9), (10, 10)]
    assert driver.payloads(sub) == [b"%d" % number for number in range(2, 12)]


def test_an_answer_that_comes_again_leads_to_no_other_question() -> None:
    """Else a question that was repeated once would go round for ever, and fill the links with what is known."""
    driver, sub = subscribed(heal_page_messages=4)
    arrive(driver, 11)
    driver.advance(DELAY_S + 4 * RETRY_S)
    repeated = asked(driver)
    assert len(repeated) > 2
    assert set(repeated) == {(2, 5)}
    questions = []
    for _ in repeated:
        resend(driver, 2, 3, 4, 5)
        driver.tell("s1", control.Healed(TILE, STREAM, 1, 11, 11, 2))
        driver.advance(0.001)
        questions += asked(driver)
    assert questions == [(6, 9)]
    resend(driver, 6, 7, 8, 9)
    assert driver.payloads(sub) == [b"%d" % number for number in range(2, 10)], "its answer is still awaited"
    driver.tell("s1", control.Healed(TILE, STREAM, 1, 11, 11, 6))
    driver.advance(0.001)
    assert asked(driver) == [(10, 10)]


def test_the_answer_to_another_subscription_of_the_client_leads_to_no_question() -> None:
    driver, early = subscribed(heal_page_messages=4)
    driver.servers["s1"].streams[TILE, STREAM] = 5
    late = driver.subscribe(TILE)
    arrive(driver, 11)
    driver.advance(DELAY_S * 1.1)
    assert asked(driver) == [(2, 5), (6, 9)]
    resend(driver, 2, 3, 4, 5)
    driver.tell("s1", control.Healed(TILE, STREAM, 1, 11, 11, 2))
    driver.advance(0.001)
    assert asked(driver) == [], "the early one goes on, and the late one has just asked for the same"
    resend(driver, 6, 7, 8, 9)
    assert driver.payloads(early) == [b"%d" % number for number in range(2, 10)]
    assert driver.payloads(late) == [b"%d" % number for number in range(6, 10)]


def test_subscriptions_of_a_client_ask_once_for_the_same_hole() -> None:
    driver, first = subscribed(heal_page_messages=4)
    others = [driver.subscribe(TILE) for _ in range(3)]
    arrive(driver, 2, 9)
    driver.advance(DELAY_S * 1.1)
    assert asked(driver) == [(3, 6)]
    resend(driver, 3, 4, 5, 6)
    driver.tell("s1", control.Healed(TILE, STREAM, 1, 9, 9, 3))
    driver.advance(0.001)
    assert asked(driver) == [(7, 8)]
    resend(driver, 7, 8)
    assert [driver.payloads(sub)[-7:] for sub in (first, *others)] == 4 * [[b"%d" % number for number in range(3, 10)]]
    assert driver.counters.heals_shared == 6


def test_a_shared_question_is_repeated_without_an_answer() -> None:
    driver, _ = subscribed()
    driver.subscribe(TILE)
    arrive(driver, 2, 4)
    driver.advance(DELAY_S * 1.1)
    assert asked(driver) == [(3, 3)]
    driver.advance(DEFAULT_LIMITS.heal_retry_s * 1.1)
    assert asked(driver) == [(3, 3)]


def test_a_late_answer_still_says_how_far_the_stream_has_come() -> None:
    driver, sub = subscribed(heal_page_messages=4)
    arrive(driver, 8)
    driver.advance(DELAY_S * 1.1)
    resend(driver, 2, 3, 4, 5)
    driver.tell("s1", control.Healed(TILE, STREAM, 1, 8, 8, 2))
    driver.advance(0.001)
    driver.tell("s1", control.Healed(TILE, STREAM, 1, 9, 9, 2))
    resend(driver, 6, 7, 9)
    assert driver.payloads(sub) == [b"%d" % number for number in range(2, 10)]


def test_a_beacon_reveals_that_the_last_messages_are_missing() -> None:
    driver, sub = subscribed()
    driver.beacon("s1", TILE, STREAM, 3, 3)
    driver.advance(DELAY_S * 1.1)
    assert asked(driver) == [(2, 3)]
    resend(driver, 2, 3)
    assert driver.payloads(sub) == [b"2", b"3"]


@pytest.mark.parametrize(("quiet_s", "owed"), [(70, []), (50, [(1, 3)])])
def test_an_agents_beacon_about_a_stream_that_was_quiet_before_the_subscription_asks_for_nothing(
    quiet_s: int, owed: list[tuple[int, int]]
) -> None:
    """Agents announce the streams of their server on another one. Their publishers may have died long ago."""
    driver = RouterDriver()
    sub = driver.subscribe(TILE)
    driver.advance(60.0)
    driver.beacon("s1", TILE, STREAM, 3, 0, quiet_s=quiet_s)
    driver.advance(DELAY_S * 1.1)
    assert asked(driver) == owed
    driver.message("s1", TILE, STREAM, 4, b"4")
    assert driver.payloads(sub) == ([b"4"] if not owed else [])


@pytest.mark.parametrize("later", [(), (9, 10)])
@pytest.mark.parametrize(("quiet_s", "last"), [(61.5, 8), (61.0, 8), (61.5, 7)])
def test_messages_that_a_beacon_shows_to_be_older_than_the_subscription_are_no_gap(
    quiet_s: float, last: int, later: tuple[int, ...]
) -> None:
    """Another server's agent had heard less of the stream. Its publisher returns, tells how far it had come, goes on,
    and closes its bus before it is asked."""
    driver = RouterDriver()
    driver.servers["s1"].streams[TILE, STREAM] = 4
    sub = driver.subscribe(TILE)
    driver.advance(60.0)
    driver.beacon("s1", TILE, STREAM, last, last, quiet_s=quiet_s)
    driver.beacon("s1", TILE, STREAM, 8, 8)
    arrive(driver, *later)
    driver.advance(DELAY_S * 1.1)
    assert asked(driver)[0] == (5, 8)
    driver.advance(2 * DEFAULT_LIMITS.gap_timeout_s)
    items = driver.items(sub)
    gaps = [(item.first, item.last) for item in items if isinstance(item, Gap)]
    assert gaps == ([] if (quiet_s, last) == (61.5, 8) else [(5, 8)])
    assert [item.sequence for item in items if isinstance(item, Message)] == [*later]


def test_a_beacon_that_says_what_is_known_changes_nothing() -> None:
    driver, sub = subscribed()
    driver.beacon("s1", TILE, STREAM, 1, 1)
    driver.beacon("s1", TILE, STREAM, 0, 0)
    driver.advance(60.0)
    assert asked(driver) == []
    assert driver.items(sub) == []


@pytest.mark.parametrize(
    "garbage",
    [
        envelope.beacon(1, STREAM, 3, 9, 0),
        envelope.beacon(1, STREAM, 3, 3, 0)[:-1],
        envelope.beacon(1, STREAM, 3, 3, 0) + b"x",
        envelope.prefix(envelope.ATTRIBUTES, 1, STREAM) + envelope.SUFFIX.pack(2, 5),
        envelope.prefix(envelope.ATTRIBUTES, 1, STREAM) + envelope.SUFFIX.pack(2, 5) + b"\xff\xff\x80",
        envelope.prefix(envelope.ATTRIBUTES, 1, STREAM) + envelope.SUFFIX.pack(2, 5) + b"\x04\x00\x81\xa1\xff\x01",
        envelope.prefix(envelope.ATTRIBUTES, 1, STREAM) + envelope.SUFFIX.pack(2, 5) + b"\x02\x00\x91\xc0",
    ],
    ids=["settled more than published", "short", "long", "no map", "cut map", "not text", "not a map"],
)
def test_an_envelope_that_cannot_be_read_is_counted_and_harmless(garbage: bytes) -> None:
    driver, sub = subscribed()
    driver.push("s1", TILE, garbage)
    assert driver.counters.garbage == 1
    arrive(driver, 2, 3)
    assert driver.payloads(sub) == [b"2", b"3"]


def test_a_message_that_can_never_be_read_becomes_a_gap_in_the_end() -> None:
    """Its publisher resends it as it is, again and again; that is not progress."""
    driver, sub = subscribed()
    bad = envelope.prefix(envelope.ATTRIBUTES, 1, STREAM) + envelope.SUFFIX.pack(2, 5) + b"\x02\x00\x91\xc0"
    driver.push("s1", TILE, bad)
    arrive(driver, 3)
    for _ in range(200):
        driver.advance(TIMEOUT_S / 50)
        for first, _ in asked(driver):
            driver.tell("s1", control.Resend(TILE, bad))
            driver.tell("s1", control.Healed(TILE, STREAM, 1, 3, 3, first))
    items = driver.items(sub)
    assert [type(item) for item in items] == [Gap, Message]
    assert isinstance(items[0], Gap)
    assert (items[0].first, items[0].last) == (2, 2)


# Other versions


def with_flags(flags: int, sequence: int) -> bytes:
    return envelope.prefix(flags, 1, STREAM) + envelope.SUFFIX.pack(sequence, 5) + b"newer"


@pytest.mark.parametrize("pattern", [None, b"ti*"])
def test_a_message_with_an_unknown_flag_is_not_delivered_and_its_hole_shows(pattern: bytes | None) -> None:
    driver, sub = subscribed(pattern=pattern)
    driver.push("s1", TILE, with_flags(64, 2), pattern)
    assert driver.items(sub) == []
    assert driver.counters.unknown_flags == 1
    driver.message("s1", TILE, STREAM, 3, b"3", pattern=pattern)
    assert driver.items(sub) == [], "number 2 was not received"
    driver.advance(DELAY_S * 1.1)
    assert asked(driver) == [(2, 2)]
    driver.tell("s1", control.Resend(TILE, with_flags(64, 2)))
    driver.advance(2 * TIMEOUT_S)
    assert [type(item) for item in driver.items(sub)] == [Gap, Message]


def test_unknown_flags_are_reported_once_a_minute() -> None:
    driver, _ = subscribed()
    for number in range(2, 6):
        driver.push("s1", TILE, with_flags(32 | envelope.BEACON, number))
    assert driver.happened(UnknownFlags) == [UnknownFlags(TILE, 32)]
    driver.now += 61.0
    driver.push("s1", TILE, with_flags(128 | 64, 9))
    assert driver.happened(UnknownFlags) == [UnknownFlags(TILE, 192)]
    assert driver.counters.unknown_flags == 5


@pytest.mark.parametrize("words", [1, 8, 255])
def test_an_extension_is_skipped(words: int) -> None:
    driver, sub = subscribed()
    for number, message in ((2, blob(STREAM, 2, b"2")), (3, blob(STREAM, 3, b"3", {"n": 1}))):
        at = envelope.HEADER_BYTES
        extended = message[:3] + bytes((words,)) + message[4:at] + bytes(8 * words) + message[at:]
        driver.push("s1", TILE, extended)
        (item,) = driver.items(sub)
        assert isinstance(item, Message)
        assert (item.payload, item.sequence) == (b"%d" % number, number)


def test_an_envelope_of_format_1_is_a_foreign_payload() -> None:
    driver, sub = subscribed()
    old = envelope.HEADER_1.pack(envelope.MAGIC_1, 0, 1, STREAM, 2, 5) + b"old"
    driver.push("s1", TILE, old)
    (item,) = driver.items(sub)
    assert isinstance(item, Message)
    assert (item.foreign, item.payload) == (True, old)


# Resends


def test_a_resend_nobody_asked_for_is_ignored() -> None:
    driver, sub = subscribed()
    resend(driver, 2)
    assert driver.items(sub) == []
    arrive(driver, 4)
    resend(driver, 2, 3)
    assert driver.items(sub) == [], "there is a hole, but nobody has asked yet"
    driver.advance(DELAY_S * 1.1)
    resend(driver, 9)
    driver.tell("s1", control.Resend(TILE, b"not an envelope"))
    driver.tell("s1", control.Resend(TILE, envelope.beacon(1, STREAM, 99, 99, 0)))
    driver.tell("s1", control.Resend(b"elsewhere", blob(STREAM, 2)))
    assert driver.items(sub) == []
    assert driver.counters.garbage == 1
    resend(driver, 3, 2)
    assert driver.payloads(sub) == [b"2", b"3", b"4"]


# Gaps


def test_what_the_publisher_no_longer_has_is_a_gap_with_the_exact_range() -> None:
    driver, sub = subscribed()
    arrive(driver, 9)
    driver.advance(DELAY_S * 1.1)
    assert asked(driver) == [(2, 8)]
    resend(driver, 6, 7, 8)
    driver.tell("s1", control.Healed(TILE, STREAM, 6, 9, 9, 2))
    gap, *rest = driver.items(sub)
    assert gap == Gap("tile", OTHER, 2, 5, "its publisher no longer has them")
    assert isinstance(gap, Gap)
    assert gap.count == 4
    assert [item.payload for item in rest if isinstance(item, Message)] == [b"6", b"7", b"8", b"9"]
    assert driver.counters.gaps == 1


def test_dropped_messages_from_before_the_subscription_are_no_gap() -> None:
    driver, sub = subscribed()
    arrive(driver, 9)
    driver.advance(DELAY_S * 1.1)
    driver.tell("s1", control.Healed(TILE, STREAM, 9, 9, 9, 2, age_ms=5000, until=8))
    assert [item.payload for item in driver.items(sub) if isinstance(item, Message)] == [b"9"]
    assert driver.counters.gaps == 0


def test_an_age_counts_only_for_the_messages_that_the_publisher_was_asked_about() -> None:
    driver, sub = subscribed()
    arrive(driver, 9)
    driver.advance(DELAY_S * 1.1)
    driver.tell("s1", control.Healed(TILE, STREAM, 9, 9, 9, 2, age_ms=5000, until=7))
    (gap,) = driver.gaps(sub)
    assert (gap.first, gap.last) == (2, 8)


def test_dropped_messages_that_may_be_younger_than_the_subscription_are_a_gap() -> None:
    driver, sub = subscribed()
    driver.advance(4.9)
    arrive(driver, 9)
    driver.advance(DELAY_S * 1.1)
    driver.tell("s1", control.Healed(TILE, STREAM, 9, 9, 9, 2, age_ms=4900, until=8))
    (gap,) = driver.gaps(sub)
    assert (gap.first, gap.last) == (2, 8)


def test_a_floor_past_the_hole_reports_no_more_than_the_hole() -> None:
    driver, sub = subscribed()
    arrive(driver, 4, 6)
    driver.advance(DELAY_S * 1.1)
    driver.tell("s1", control.Healed(TILE, STREAM, 100, 6, 6, 2))
    items = driver.items(sub)
    assert [(item.first, item.last) for item in items if isinstance(item, Gap)] == [(2, 3)]
    assert [item.payload for item in items if isinstance(item, Message)] == [b"4"]
    driver.advance(RETRY_S * 1.1)
    assert (5, 5) in asked(driver), "the next hole is a question of its own"


def test_a_publisher_that_does_not_answer_ends_in_a_gap() -> None:
    driver, sub = subscribed()
    arrive(driver, 4)
    driver.advance(TIMEOUT_S - 0.1)
    assert driver.items(sub) == []
    driver.advance(TIMEOUT_S)
    assert driver.items(sub) == [
        Gap("tile", OTHER, 2, 3, "its publisher did not answer"),
        Message("tile", b"4", OTHER, 4, 5),
    ]
    arrive(driver, 2, 5)
    assert driver.payloads(sub) == [b"5"], "what was reported missing is not delivered any more"


def test_each_hole_has_its_own_time() -> None:
    driver, sub = subscribed()
    arrive(driver, 3)
    driver.advance(TIMEOUT_S * 0.6)
    arrive(driver, 5)
    driver.advance(TIMEOUT_S * 0.8)
    items = driver.items(sub)
    assert [(item.first, item.last) for item in items if isinstance(item, Gap)] == [(2, 2)]


def test_a_gap_of_a_pattern_says_which() -> None:
    driver, sub = subscribed(pattern=b"ti*")
    driver.message("s1", TILE, STREAM, 3, b"3", pattern=b"ti*")
    driver.advance(TIMEOUT_S * 2)
    assert driver.gaps(sub) == [Gap("tile", OTHER, 2, 2, "its publisher did not answer", "ti*")]


def test_held_messages_are_bounded_and_what_did_not_fit_is_asked_for() -> None:
    driver, sub = subscribed(held_messages_max=3)
    arrive(driver, 3, 4, 5, 6, 7)
    resent: set[int] = set()
    for _ in range(5):
        driver.advance(DELAY_S + RETRY_S)
        for first, last in asked(driver):
            resend(driver, *range(first, last + 1))
            resent |= set(range(first, last + 1))
            driver.tell("s1", control.Healed(TILE, STREAM, 1, 7, 7, first))
    assert driver.payloads(sub) == [b"%d" % number for number in range(2, 8)]
    assert resent == {2, 6, 7}


# A slow application


def test_what_does_not_fit_is_asked_for_once_there_is_room() -> None:
    driver, sub = subscribed(inbox_messages_max=4)
    arrive(driver, 2, 3, 4, 5, 6, 7)
    assert sub.overflowed
    assert driver.counters.overflows == 1
    assert len(sub.inbox.items) == 4
    driver.advance(60.0)
    assert asked(driver) == [], "nobody asks while there is no room"
    assert driver.payloads(sub) == [b"2", b"3", b"4", b"5"]
    driver.router.consumed(sub, driver.now)
    driver.advance(0.001)
    assert asked(driver) == [(6, 7)]
    resend(driver, 6, 7)
    assert driver.payloads(sub) == [b"6", b"7"]


def test_an_overflow_waits_until_half_is_free() -> None:
    driver, sub = subscribed(inbox_messages_max=4)
    arrive(driver, 2, 3, 4, 5, 6)
    sub.inbox.take()
    driver.router.consumed(sub, driver.now)
    assert sub.overflowed
    sub.inbox.take()
    driver.router.consumed(sub, driver.now)
    assert not sub.overflowed


def test_an_overflow_never_turns_into_a_gap_while_the_application_is_slow() -> None:
    driver, sub = subscribed(inbox_messages_max=4)
    arrive(driver, *range(2, 9))
    driver.advance(TIMEOUT_S * 3)
    driver.payloads(sub)
    driver.router.consumed(sub, driver.now)
    driver.advance(1.0)
    resend(driver, 6, 7, 8)
    assert driver.payloads(sub) == [b"6", b"7", b"8"]


def test_a_request_asks_for_no_more_than_there_is_room_for() -> None:
    driver, sub = subscribed(inbox_messages_max=4)
    arrive(driver, *range(2, 20))
    driver.payloads(sub)
    driver.router.consumed(sub, driver.now)
    driver.advance(0.001)
    assert asked(driver) == [(6, 9)]


def test_streams_share_the_room_of_an_inbox() -> None:
    driver, sub = subscribed(inbox_messages_max=8)
    others = [stream_id(OTHER, epoch) for epoch in (7, 8, 9)]
    for stream in others:
        driver.message("s1", TILE, stream, 1, b"")
    driver.payloads(sub)
    for number in range(2, 12):
        for stream in (STREAM, *others):
            driver.message("s1", TILE, stream, number, b"")
    driver.payloads(sub)
    driver.router.consumed(sub, driver.now)
    driver.advance(0.001)
    assert [last - first + 1 for first, last in asked(driver)] == [2, 2, 2, 2]


def test_messages_held_behind_a_hole_are_kept_while_there_is_no_room() -> None:
    driver, sub = subscribed(inbox_messages_max=2)
    arrive(driver, *range(3, 8))
    resend(driver, 2)
    driver.advance(DELAY_S)
    resend(driver, 2)
    found = []
    while items := driver.payloads(sub):
        found += items
        driver.router.consumed(sub, driver.now)
    assert found == [b"%d" % number for number in range(2, 8)], "nothing had to be sent again"


def test_a_copy_of_a_held_message_takes_its_place() -> None:
    driver, sub = subscribed(inbox_messages_max=4)
    arrive(driver, *range(3, 8))
    driver.advance(DELAY_S)
    resend(driver, 2)
    assert sub.overflowed
    sub.inbox.take()
    arrive(driver, 6)
    assert driver.payloads(sub) == [b"3", b"4", b"5", b"6"]
    driver.router.consumed(sub, driver.now)
    assert driver.payloads(sub) == [b"7"]
    assert sub.statistics().held_messages == 0


def test_further_holes_of_a_silent_publisher_are_reported_with_the_first() -> None:
    driver, sub = subscribed()
    arrive(driver, 3, 5, 7)
    driver.advance(TIMEOUT_S + 20 * RETRY_S)
    items = driver.items(sub)
    gaps = [(item.first, item.last) for item in items if isinstance(item, Gap)]
    assert gaps == [(2, 2), (4, 4), (6, 6)]


def test_a_hole_that_is_found_later_has_its_own_time_limit() -> None:
    driver, sub = subscribed()
    arrive(driver, 3)
    driver.advance(TIMEOUT_S / 2)
    arrive(driver, 5)
    driver.advance(TIMEOUT_S / 2 + 20 * RETRY_S)
    assert [item.first for item in driver.items(sub) if isinstance(item, Gap)] == [2]
    resend(driver, 4)
    assert driver.payloads(sub) == [b"4", b"5"]


def test_bytes_fill_an_inbox_too() -> None:
    limits: Limits = msgspec.structs.replace(DEFAULT_LIMITS, inbox_bytes_max=10)
    driver = RouterDriver(limits=limits)
    sub = driver.subscribe(TILE)
    for number in (1, 2, 3):
        driver.message("s1", TILE, STREAM, number, b"x" * 6)
    assert sub.overflowed
    assert len(sub.inbox.items) == 2


def test_foreign_messages_do_not_grow_an_inbox_without_bound() -> None:
    """Nobody can send them again, so at the limit the application hears of a gap instead."""
    driver, sub = subscribed(inbox_messages_max=4)
    for number in range(50):
        driver.push("s1", TILE, b"foreign %d" % number)
    assert len(sub.inbox.items) <= 8
    assert driver.gaps(sub), "nothing is silent"


# The death of a server


def test_after_a_restart_a_stream_whose_publisher_answers_goes_on() -> None:
    driver, sub = subscribed()
    restart_server(driver, absent={(TILE, STREAM): 1})
    driver.beacon("s1", TILE, STREAM, 1, 1)
    arrive(driver, 2)
    driver.advance(DELAY_S * 1.1)
    driver.tell("s1", control.Healed(TILE, STREAM, 1, 2, 2, 3))
    driver.advance(TIMEOUT_S * 2)
    assert driver.payloads(sub) == [b"2"]
    assert driver.counters.restarts_seen == 1


def test_after_a_restart_a_stream_is_in_doubt_if_its_publisher_has_not_told_how_far_it_has_come() -> None:
    """The agent has heard the first message, but it may have been repeated by another client."""
    driver, sub = subscribed()
    restart_server(driver, streams={(TILE, STREAM): 1}, absent={(TILE, STREAM): 1})
    driver.advance(TIMEOUT_S * 2)
    (gap,) = driver.items(sub)
    assert isinstance(gap, Gap)
    assert (gap.first, gap.last) == (2, None)


def test_after_a_restart_what_a_living_publisher_has_is_healed() -> None:
    driver, sub = subscribed()
    restart_server(driver, absent={(TILE, STREAM): 3})
    driver.advance(DELAY_S * 1.1)
    assert asked(driver) == [(2, 3)]
    resend(driver, 2, 3)
    driver.tell("s1", control.Healed(TILE, STREAM, 1, 3, 3, 2))
    assert driver.payloads(sub) == [b"2", b"3"]
    driver.advance(TIMEOUT_S * 2)
    assert driver.items(sub) == []


def test_after_a_restart_a_publisher_that_stays_silent_is_an_open_gap() -> None:
    driver, sub = subscribed()
    restart_server(driver, absent={(TILE, STREAM): 1})
    driver.advance(TIMEOUT_S - 0.1)
    assert driver.items(sub) == []
    driver.advance(0.2)
    (gap,) = driver.gaps(sub)
    assert (gap.channel, gap.publisher, gap.first, gap.last, gap.count) == ("tile", OTHER, 2, None, None)
    assert driver.counters.open_gaps == 1
    driver.advance(TIMEOUT_S * 3)
    assert driver.items(sub) == [], "it is reported once"


def test_a_stream_that_had_ended_is_not_in_doubt() -> None:
    driver, sub = subscribed()
    driver.beacon("s1", TILE, STREAM, 1, 1, final=True)
    restart_server(driver, absent={(TILE, STREAM): 1})
    driver.advance(TIMEOUT_S * 2)
    assert driver.items(sub) == []


def test_a_subscription_that_comes_late_to_a_server_is_told_who_has_died_there() -> None:
    """A publisher used a new server, both died, and the subscription had not heard of the ring with that server. Its
    agent remembers how far the stream had come."""
    driver, sub = subscribed(pattern=b"ti*")
    driver.servers["s2"] = StandIn("s2", incarnation=2, absent={(TILE, STREAM): 3})
    driver.change_ring(("s1", "s2"))
    driver.advance(TIMEOUT_S * 2)
    assert [(gap.channel, gap.first, gap.last) for gap in driver.gaps(sub)] == [("tile", 2, 3)]


def test_an_agent_that_was_not_there_cannot_name_everybody() -> None:
    """Publishers that this subscription never met may have died with the server: a gap without a publisher."""
    driver, sub = subscribed()
    restart_server(driver, remembers=False, streams={(TILE, STREAM): 1})
    gaps = driver.gaps(sub)
    assert [(gap.channel, gap.publisher, gap.last) for gap in gaps] == [("tile", None, None)]


def test_an_agent_without_room_cannot_name_everybody() -> None:
    """The subscription was away, and its server has more publishers than its agent has room for. Those that are not
    listed may have published meanwhile: the one that is known is asked, and for the others there is a gap."""
    driver, sub = subscribed()
    here = driver.servers["s1"]
    here.streams.clear()
    here.complete = False
    driver.lose("s1")
    driver.play()
    (gap,) = driver.gaps(sub)
    assert (gap.channel, gap.publisher, gap.last) == ("tile", None, None)
    assert gap.reason == "the agent of server s1 has no room for all publishers; some are unknown"
    driver.advance(TIMEOUT_S + 0.1)
    assert [(gap.publisher, gap.first, gap.last) for gap in driver.gaps(sub)] == [(OTHER, 2, None)]


def test_a_new_subscription_is_told_that_an_agent_has_no_room_and_misses_nothing_that_arrives() -> None:
    driver = RouterDriver()
    driver.servers["s1"].complete = False
    sub = driver.subscribe(TILE)
    assert driver.in_force(sub)
    (gap,) = driver.gaps(sub)
    assert (gap.channel, gap.publisher, gap.last) == ("tile", None, None)
    driver.message("s1", TILE, STREAM, 7, b"7")
    driver.advance(TIMEOUT_S * 2)
    assert driver.payloads(sub) == [b"7"]


def test_after_a_lapsed_lease_an_unknown_stream_may_have_begun_elsewhere() -> None:
    """The server may have left the ring and come back, while publishers used the others."""
    driver, sub = subscribed()
    driver.advance(4.0, heartbeats=False)
    assert driver.counters.stale_links == 1
    driver.advance(2.0)
    driver.message("s1", TILE, STREAM + 1, 3, b"3")
    assert driver.payloads(sub) == []
    driver.advance(DELAY_S * 1.1)
    assert asked(driver) == [(1, 2)]


def test_a_subscription_that_begins_after_the_lease_has_lapsed_knows_it_too() -> None:
    """The server may leave the ring and come back after the subscription has begun."""
    driver, _ = subscribed()
    here = driver.servers["s1"]
    here.silent = True
    driver.advance(4.0, heartbeats=False)
    sub = driver.subscribe(TILE)
    client, _, hello = here.heard[-1]
    assert isinstance(hello, control.Hello)
    driver.feed("s1", addressed(client, here.answer(hello), hello.nonce, driver.seal("s1")))
    assert driver.in_force(sub)
    here.silent = False
    driver.advance(2.0)
    driver.message("s1", TILE, STREAM + 1, 3, b"3")
    assert driver.payloads(sub) == []
    driver.advance(DELAY_S * 1.1)
    assert asked(driver) == [(1, 2)]


def test_a_process_that_was_suspended_notices_the_lapsed_lease_before_the_messages() -> None:
    driver, sub = subscribed()
    driver.now += 4.0
    driver.message("s1", TILE, STREAM + 1, 3, b"3")
    assert driver.payloads(sub) == []


def test_a_lapsed_stream_that_speaks_again_goes_on_from_there() -> None:
    driver, sub = subscribed()
    restart_server(driver, absent={(TILE, STREAM): 1})
    driver.advance(TIMEOUT_S + 0.1)
    assert [(gap.first, gap.last) for gap in driver.gaps(sub)] == [(2, None)]
    asked(driver)
    arrive(driver, 7, 8)
    assert driver.payloads(sub) == [], "what came before may have been published after the gap was reported"
    driver.advance(DELAY_S * 1.1)
    assert asked(driver)[:1] == [(2, 6)]
    resend(driver, 5, 6)
    driver.tell("s1", control.Healed(TILE, STREAM, 5, 8, 8, 2))
    items = driver.items(sub)
    assert [item.sequence for item in items if isinstance(item, Message)] == [5, 6, 7, 8]
    assert [(item.first, item.last) for item in items if isinstance(item, Gap)] == [(2, 4)], "its publisher lost them"


def test_an_agent_that_lists_a_lapsed_stream_brings_it_back() -> None:
    """What was published after the open gap was reported, while the subscription was away, is not in the gap."""
    driver, sub = subscribed()
    restart_server(driver, absent={(TILE, STREAM): 1})
    driver.advance(TIMEOUT_S + 0.1)
    assert len(driver.gaps(sub)) == 1
    asked(driver)
    driver.servers["s1"].streams[TILE, STREAM] = 3
    driver.lose("s1")
    driver.play()
    driver.advance(DELAY_S * 1.1)
    assert asked(driver)[:1] == [(2, 3)]
    resend(driver, 2, 3)
    assert driver.payloads(sub) == [b"2", b"3"]


def test_an_agent_that_lists_nothing_new_of_a_lapsed_stream_does_not_bring_it_back() -> None:
    driver, sub = subscribed()
    restart_server(driver, absent={(TILE, STREAM): 1})
    driver.advance(TIMEOUT_S + 0.1)
    assert len(driver.gaps(sub)) == 1
    asked(driver)
    restart_server(driver, absent={(TILE, STREAM): 1})
    driver.advance(TIMEOUT_S * 2)
    assert asked(driver) == []
    assert driver.items(sub) == []


def test_a_lapsed_stream_that_speaks_again_is_watched_as_before() -> None:
    """The open gap covers what came before it was reported, not what is lost later."""
    driver, sub = subscribed()
    restart_server(driver, absent={(TILE, STREAM): 1})
    driver.advance(TIMEOUT_S + 0.1)
    assert len(driver.gaps(sub)) == 1
    arrive(driver, 2)
    arrive(driver, 4)
    assert driver.payloads(sub) == [b"2"], "4 waits for 3"
    driver.advance(DELAY_S * 1.1)
    assert asked(driver)[-1:] == [(3, 3)]


def test_a_gap_that_runs_out_is_no_sign_of_life() -> None:
    """A hole from before the death is reported as a closed gap; the publisher has still not spoken, so what it may have
    published after that is an open one."""
    driver, sub = subscribed()
    arrive(driver, 3)
    driver.advance(TIMEOUT_S / 2)
    restart_server(driver, absent={(TILE, STREAM): 3})
    driver.advance(TIMEOUT_S * 3)
    gaps = driver.gaps(sub)
    assert [(gap.first, gap.last) for gap in gaps if gap.last is not None] in ([(2, 2)], [])
    assert gaps[-1].last is None, "nobody knows how far the stream came before the server died"


# Memory


def test_a_stream_that_has_ended_is_forgotten_in_the_end() -> None:
    driver, sub = subscribed()
    driver.beacon("s1", TILE, STREAM, 1, 1, final=True)
    driver.advance(DEFAULT_LIMITS.publisher_idle_s * 3)
    assert not sub.streams


def test_a_stream_that_has_ended_is_remembered_as_long_as_agents_do() -> None:
    """Its publisher has left and everything has arrived. An agent lists it for `publisher_idle_s`; a subscription that
    had forgotten it would take it for one that it missed from its beginning, and report a gap that is none."""
    driver, sub = subscribed()
    driver.beacon("s1", TILE, STREAM, 1, 1, final=True)
    driver.servers["s1"].streams[TILE, STREAM] = 1
    driver.advance(DEFAULT_LIMITS.publisher_idle_s / 2)
    driver.lose("s1")
    driver.play()
    driver.advance(TIMEOUT_S * 2)
    assert driver.items(sub) == []


def test_a_silent_stream_is_forgotten_in_the_end() -> None:
    driver, sub = subscribed()
    driver.advance(DEFAULT_LIMITS.publisher_idle_s * 0.7)
    assert STREAM in sub.streams
    driver.advance(DEFAULT_LIMITS.publisher_idle_s * 3)
    assert not sub.streams


def test_a_busy_stream_is_not_forgotten() -> None:
    driver, sub = subscribed()
    for number in range(2, 12):
        arrive(driver, number)
        driver.advance(DEFAULT_LIMITS.publisher_idle_s / 4)
    assert STREAM in sub.streams


def test_the_streams_that_are_remembered_are_bounded() -> None:
    driver, sub = subscribed(streams_per_channel_max=10)
    for epoch in range(2, 40):
        driver.message("s1", TILE, stream_id(OTHER, epoch), 1, b"x")
    driver.advance(DEFAULT_LIMITS.publisher_idle_s / 2)
    assert len(sub.streams) <= 10


def test_a_silent_stream_that_goes_on_is_not_delivered_again() -> None:
    """Its publisher was cut off with a message that no server had confirmed, so the stream could not end. It goes on
    long after agents and subscribers have forgotten it."""
    driver, sub = subscribed()
    driver.lose("s1")
    driver.play()
    driver.advance(DEFAULT_LIMITS.publisher_idle_s * 3)
    driver.items(sub)
    arrive(driver, 2)
    assert [item.sequence for item in driver.items(sub) if isinstance(item, Message)] == [2]
    assert not sub.streams[STREAM].has_hole(), "1 was delivered before, so its publisher is not asked for it"


def test_a_pattern_forgets_channels_whose_streams_have_ended() -> None:
    driver, sub = subscribed(pattern=b"ti*")
    end = envelope.beacon(0, STREAM, 1, 1, 0, True)
    driver.push("s1", TILE, end, b"ti*")
    driver.advance(DEFAULT_LIMITS.publisher_idle_s * 3)
    assert not sub.channels


def test_a_pattern_does_not_get_a_stream_again_that_was_given_up() -> None:
    """The channel has no streams any more, but what was delivered of the one that was given up is remembered."""
    driver, sub = subscribed(pattern=b"ti*")
    restart_server(driver)
    driver.advance(TIMEOUT_S * 2)
    assert [gap.first for gap in driver.gaps(sub) if gap.publisher == OTHER and gap.last is None] == [2]
    driver.advance(DEFAULT_LIMITS.publisher_idle_s / 2)
    driver.message("s1", TILE, STREAM, 2, b"2", pattern=b"ti*")
    assert [item.sequence for item in driver.items(sub) if isinstance(item, Message)] == [2]
    assert not sub.channels[TILE].streams[STREAM].has_hole()


def test_the_channels_of_a_pattern_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "LAPSED_CHANNELS_MAX", 3)
    driver, sub = subscribed(pattern=b"ti*")
    for number in range(10):
        driver.message("s1", b"tile%d" % number, STREAM, 1, b"1", pattern=b"ti*")
    driver.advance(DEFAULT_LIMITS.publisher_idle_s * 3)
    assert list(sub.channels) == [b"tile7", b"tile8", b"tile9"]


def test_a_client_that_subscribes_to_what_it_publishes_hears_itself() -> None:
    driver = RouterDriver()
    sub = driver.subscribe(TILE)
    out = driver.publish(TILE, b"mine")
    driver.push("s1", TILE, driver.published("s1")[-1][1])
    (message,) = driver.items(sub)
    assert isinstance(message, Message)
    assert (message.publisher, message.sequence) == (CLIENT, 1)
    assert out.settled


def test_a_stream_in_doubt_is_asked_about_again_when_the_inbox_has_room() -> None:
    """While the inbox is full, publishers are not asked; the doubt must not last until its time is over."""
    driver, sub = subscribed(inbox_messages_max=4)
    for number in range(1, 6):
        driver.message("s1", TILE, stream_id(0x999, 1), number, b"x")
    restart_server(driver)
    driver.advance(1.0)
    assert asked(driver) == []
    driver.items(sub)
    driver.router.consumed(sub, driver.now)
    driver.advance(0.1)
    assert asked(driver) == [(2, 2)]


def test_an_older_beacon_does_not_undo_the_end_of_a_stream() -> None:
    """Agents pass beacons on, so an older one may come later."""
    driver, sub = subscribed()
    driver.beacon("s1", TILE, STREAM, 1, 1, final=True)
    driver.beacon("s1", TILE, STREAM, 1, 0)
    restart_server(driver)
    driver.advance(TIMEOUT_S * 2)
    assert driver.gaps(sub) == []


def test_a_publisher_is_asked_again_at_once_when_the_connection_is_back() -> None:
    """It did not answer for a while, because the questions were lost with connections."""
    driver, _ = subscribed()
    arrive(driver, 4)
    driver.advance(4 * RETRY_S)
    asked(driver)
    driver.lose("s1")
    driver.advance(0)
    driver.advance(2 * DELAY_S)
    assert asked(driver)
