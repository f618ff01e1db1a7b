"""Subscriptions with a filter on a real cluster: only matching messages are delivered, and nothing else changes."""

from __future__ import annotations

import pytest

import shoal
from shoal.errors import FilterError
from shoal.filters.language import parse
from shoal.message import Item, Message

WAIT_S = 60.0


async def taken(messages: shoal.Subscription, count: int) -> list[bytes]:
    items: list[Item] = [await messages.get(WAIT_S) for _ in range(count)]
    assert all(isinstance(item, Message) for item in items), items
    return [item.payload for item in items if isinstance(item, Message)]


async def test_only_messages_that_match_are_handed_over(bus: shoal.Bus, other: shoal.Bus) -> None:
    async with (
        bus.subscribe("quotes", where="volume > 10 and symbol prefix 'Y'") as wanted,
        bus.subscribe("quotes", where=parse("volume absent")) as bare,
        bus.subscribe("quotes") as everything,
        bus.psubscribe("quo*", where="[symbol,eq,'IBM']") as pattern,
    ):
        for number, symbol in enumerate(["YHOO", "IBM", "YHOO"]):
            await other.publish("quotes", f"{number}", attributes={"symbol": symbol, "volume": 10 + number})
        await other.publish("quotes", "3")
        await other.publish("quotes", "4", attributes={"symbol": "Y", "volume": 11.5}, confirm=True)
        assert await taken(everything, 5) == [b"0", b"1", b"2", b"3", b"4"]
        assert await taken(wanted, 2) == [b"2", b"4"]
        assert await taken(bare, 1) == [b"3"]
        assert await taken(pattern, 1) == [b"1"]
        assert [each.get_nowait() for each in (wanted, bare, pattern)] == [None, None, None]
    assert bus.statistics().counters["unwanted"] == 3 + 4 + 4


async def test_the_only_subscription_of_a_channel_is_filtered_in_bursts_too(bus: shoal.Bus, other: shoal.Bus) -> None:
    async with bus.subscribe("burst", where="n >= 990") as wanted:
        for number in range(1000):
            attributes = {"n": number} if number % 2 else None
            await other.publish("burst", str(number), attributes=attributes)
        assert await taken(wanted, 5) == [b"991", b"993", b"995", b"997", b"999"]
        assert wanted.gaps == 0


@pytest.mark.parametrize("where", ["volume >", "a = 1 and a = 2", "[a,eq"])
async def test_a_filter_that_is_none_is_refused_at_once(bus: shoal.Bus, where: str) -> None:
    with pytest.raises(FilterError):
        bus.subscribe("quotes", where=where)
