"""The joint between a history and a live subscription: cut where live begins, holes asked for, copies known."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.core_driver import OTHER, STREAM, RouterDriver, blob

from shoal.channels.client.subscription import SubscriptionCore
from shoal.message import Message
from shoal.wire import control
from shoal.wire.envelope import stream_id

TILE = b"tile"


def joined(live_begin: int, live: list[int], reached: dict[int, int]) -> tuple[RouterDriver, SubscriptionCore]:
    """A subscription whose agent said that a stream had come to before `live_begin`, and which then heard `live`."""
    driver = RouterDriver()
    driver.servers["s1"].streams[TILE, STREAM] = live_begin - 1
    sub = driver.subscribe(TILE)
    for number in live:
        driver.message("s1", TILE, STREAM, number, b"%d" % number)
    begins = sub.live_from()
    assert begins == {STREAM: live_begin}
    driver.router.join_history(sub, begins, reached, driver.now)
    driver.play()
    return driver, sub


def heard(sub: SubscriptionCore) -> list[int]:
    return [item.sequence for item in sub.inbox.items if isinstance(item, Message)]


def test_a_history_that_reaches_the_live_messages_changes_nothing() -> None:
    _, sub = joined(5, [5, 6, 7], {STREAM: 4})
    assert heard(sub) == [5, 6, 7]


def test_what_is_between_is_asked_for_before_live_messages_are_handed_over() -> None:
    driver, sub = joined(5, [5, 6], {STREAM: 2})
    assert heard(sub) == []
    driver.advance(driver.router.limits.heal_delay_s)
    (heal,) = driver.told("s1", OTHER, control.Heal)
    assert (heal.first, heal.last) == (3, 4)
    for number in (3, 4):
        resend = control.Resend(TILE, blob(STREAM, number, b"x"))
        driver.tell("s1", resend)
    assert heard(sub) == [3, 4, 5, 6]


def test_a_stream_that_only_the_history_knows_goes_on_behind_it() -> None:
    quiet = stream_id(OTHER + 1, 1)
    driver, sub = joined(5, [], {STREAM: 4, quiet: 8})
    for number in (7, 8, 9):
        driver.message("s1", TILE, quiet, number, b"x")
    assert heard(sub) == [9]


def test_two_streams_of_one_publisher_are_told_apart() -> None:
    driver = RouterDriver()
    later = stream_id(OTHER, 2)
    driver.servers["s1"].streams[TILE, STREAM] = 6
    sub = driver.subscribe(TILE)
    driver.message("s1", TILE, STREAM, 7, b"x")
    for number in (1, 2):
        driver.message("s1", TILE, later, number, b"x")
    assert sub.live_from() == {STREAM: 7, later: 1}


@settings(max_examples=100, deadline=None)
@given(begin=st.integers(1, 20), count=st.integers(0, 10), reached=st.integers(0, 30))
def test_live_messages_stay_in_order_and_come_once(begin: int, count: int, reached: int) -> None:
    """Whatever the history has reached: with what is between sent again, everything behind it comes once."""
    reached = min(reached, begin - 1)
    driver, sub = joined(begin, list(range(begin, begin + count)), {STREAM: reached})
    driver.message("s1", TILE, STREAM, begin + count, b"x")
    driver.advance(driver.limits.heal_delay_s)
    for heal in driver.told("s1", OTHER, control.Heal):
        for number in range(heal.first, heal.last + 1):
            driver.tell("s1", control.Resend(TILE, blob(STREAM, number, b"x")))
    assert heard(sub) == list(range(reached + 1, begin + count + 1))
