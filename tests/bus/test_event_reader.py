"""A reader of events: names are looked up when an event is taken, and are those that it had when it came."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.bus.event_reader import BusMatching, Matching
from shoal.engine.client import Arrived
from shoal.engine.messages import Delivery, pack
from shoal.errors import SubscribeError
from shoal.filters.events import encode_event
from shoal.limits import DEFAULT_LIMITS
from shoal.message import Gap, Match
from shoal.rules import ALL_RULES

EMITTER = 7


class Reader:
    """A reader with some filters that are in force."""

    def __init__(self, *names: str) -> None:
        bus: Any = SimpleNamespace(
            limits=DEFAULT_LIMITS, runtime=SimpleNamespace(random=SimpleNamespace(getrandbits=lambda bits: 1))
        )
        self.matching = BusMatching(bus, cast(Any, None), ALL_RULES)
        self.reader = self.matching.reader(None)
        self.reader._opened = True
        self.matching.opened(self.reader)
        self.add(*names)
        self.last = 0

    def add(self, *names: str) -> None:
        numbers = self.matching._core.add([b""] * len(names))
        self.reader._numbers.update(zip(names, numbers, strict=True))
        self.reader._names.add(numbers, names)

    def arrive(self, *names: str) -> None:
        """An event arrives that matches these filters."""
        self.last += 1
        numbers = pack([self.reader._numbers[name] for name in names])
        event = Delivery(EMITTER, self.last, 5, encode_event({"size": self.last}), b"payload", numbers)
        self.matching._act(Arrived(event, numbers))

    async def take(self) -> Match:
        item = await self.reader.get(timeout=1)
        assert isinstance(item, Match)
        return item


async def test_an_event_has_the_names_of_all_filters_that_it_matches() -> None:
    reader = Reader("a", "b", "c")
    reader.arrive("a", "c")
    reader.arrive("b")
    item = await reader.take()
    assert (item.matched, item.attributes, item.payload, item.publisher) == (("a", "c"), {"size": 1}, b"payload", 7)
    assert (await reader.take()).matched == ("b",)


async def test_filters_that_go_do_not_take_their_names_from_events_that_have_come() -> None:
    reader = Reader("a", "b")
    reader.arrive("a", "b")
    await reader.reader.remove("a")
    reader.arrive("b")
    reader.matching._act(Arrived(Delivery(EMITTER, 3, 5, encode_event({}), b"", pack([2])), pack([2])))
    assert reader.reader.waiting == 3
    await reader.reader.remove("b")
    assert [(await reader.take()).matched for _ in range(3)] == [("a", "b"), ("b",), ("b",)]


async def test_a_gap_keeps_its_place_when_filters_go() -> None:
    reader = Reader("a", "b")
    reader.arrive("a")
    reader.reader.missed("a reason")
    await reader.reader.remove("a")
    reader.arrive("b")
    assert (await reader.take()).matched == ("a",)
    assert isinstance(await reader.reader.get(timeout=1), Gap)
    assert (await reader.take()).matched == ("b",)


async def test_what_has_come_can_be_taken_after_the_end() -> None:
    reader = Reader("a", "b")
    reader.arrive("a", "b")
    await reader.reader.aclose()
    assert (await reader.take()).matched == ("a", "b")
    with pytest.raises(SubscribeError):
        await reader.reader.get(timeout=1)


async def test_a_reader_is_full_until_its_items_are_taken() -> None:
    reader = Reader("a", "b")
    most = DEFAULT_LIMITS.inbox_messages_max
    for _ in range(most):
        reader.arrive("a")
    assert reader.reader.is_full
    await reader.reader.remove("b")
    assert reader.reader.is_full
    assert reader.reader.waiting == most
    await reader.take()
    assert not reader.reader.is_full


async def test_a_reader_that_waits_is_woken() -> None:
    reader = Reader("a")
    taking = asyncio.create_task(reader.take())
    await asyncio.sleep(0)
    reader.arrive("a")
    assert (await taking).matched == ("a",)


async def test_two_readers_of_a_bus_get_the_names_of_their_own_filters() -> None:
    reader = Reader("a")
    other: Matching = reader.matching.reader(None)
    other._opened = True
    reader.matching.opened(other)
    (number,) = reader.matching._core.add([b""])
    other._numbers["mine"] = number
    other._names.add([number], ["mine"])
    reader.matching._reader_of.update({1: reader.reader, number: other})
    numbers = pack([1, number])
    reader.matching._act(Arrived(Delivery(EMITTER, 1, 5, encode_event({}), b"", numbers), numbers))
    item = await other.get(timeout=1)
    assert isinstance(item, Match)
    assert item.matched == ("mine",)
    assert (await reader.take()).matched == ("a",)


async def test_a_reader_with_much_to_take_lets_other_tasks_run() -> None:
    """Heartbeats could not be sent, and a timeout around the loop did not end it."""
    reader = Reader("a")
    for _ in range(1000):
        reader.arrive("a")
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    for _ in range(1000):
        await reader.take()
    counting.cancel()
    assert turns >= 10
    reader.arrive("a")
    assert isinstance(await reader.reader.get(timeout=0), Match)
