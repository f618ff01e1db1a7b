"""The inbox: first in, first out, bounded in messages and bytes; gaps always find room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.channels.client.inbox import Inbox, InboxStatistics
from shoal.message import Gap, Message


def message(payload: bytes = b"x") -> Message:
    return Message("tile", payload, 1, 1)


def room(inbox: Inbox) -> tuple[bool, bool]:
    """Whether it is full, and whether it is roomy."""
    return inbox.full, inbox.roomy


GAP = Gap("tile", 1, 3, 7, "lost")


def test_items_come_out_in_the_order_in_which_they_went_in() -> None:
    inbox = Inbox(10, 1000)
    inbox.put(message(b"1"))
    inbox.report(GAP)
    inbox.put(message(b"2"))
    assert [inbox.take(), inbox.take(), inbox.take()] == [message(b"1"), GAP, message(b"2")]
    with pytest.raises(IndexError):
        inbox.take()


def test_many_are_taken_at_once() -> None:
    inbox = Inbox(10, 1000)
    for item in (message(b"1"), message(b"22"), message(b"333")):
        inbox.put(item)
    inbox.report(GAP)
    assert inbox.take_many(2) == [message(b"1"), message(b"22")]
    assert inbox.bytes == 3
    assert inbox.take_many(9) == [message(b"333"), GAP]
    assert (inbox.take_many(9), inbox.bytes) == ([], 0)


def test_messages_that_are_not_wanted_are_dropped_and_gaps_stay() -> None:
    inbox = Inbox(10, 1000)
    inbox.put(message(b"1"))
    inbox.report(GAP)
    inbox.put(message(b"22"))
    inbox.keep(lambda item: item.payload == b"22")
    assert inbox.bytes == 2
    assert inbox.take_many(9) == [GAP, message(b"22")]


def test_it_is_full_by_number() -> None:
    inbox = Inbox(2, 1000)
    inbox.put(message())
    assert room(inbox)[0] is False
    inbox.put(message())
    assert room(inbox)[0] is True
    inbox.take()
    assert room(inbox)[0] is False


def test_it_is_full_by_bytes() -> None:
    inbox = Inbox(100, 10)
    inbox.put(message(b"x" * 9))
    assert room(inbox)[0] is False
    inbox.put(message(b"x"))
    assert room(inbox)[0] is True


def test_a_gap_is_taken_even_when_it_is_full() -> None:
    inbox = Inbox(1, 10)
    inbox.put(message())
    inbox.report(GAP)
    assert [inbox.take(), inbox.take()] == [message(), GAP]


def test_there_is_room_again_when_half_of_both_is_free() -> None:
    inbox = Inbox(4, 100)
    for _ in range(4):
        inbox.put(message(b"x" * 25))
    assert room(inbox) == (True, False)
    inbox.take()
    assert room(inbox) == (False, False)
    inbox.take()
    assert room(inbox) == (False, True)
    inbox.put(message(b"x" * 51))
    inbox.take()
    assert room(inbox) == (False, False), "few messages, but many bytes"


def test_it_tells_how_full_it_is() -> None:
    inbox = Inbox(4, 100)
    inbox.put(message(b"xyz"))
    inbox.overflows += 2
    assert inbox.statistics() == InboxStatistics(1, 3, 4, 100, 2)


@given(actions=st.lists(st.sampled_from(["put", "report", "take"]) | st.integers(0, 30)))
def test_its_bytes_are_those_of_the_messages_in_it(actions: list[str | int]) -> None:
    inbox = Inbox(1000, 1 << 20)
    for action in actions:
        if action == "report":
            inbox.report(GAP)
        elif action == "take":
            if inbox.items:
                inbox.take()
        else:
            inbox.put(message(b"x" * (action if isinstance(action, int) else 1)))
        assert inbox.bytes == sum(len(item.payload) for item in inbox.items if isinstance(item, Message))
