"""A hostile client on a real server publishes under another client's stream: new subscribers miss nothing, connected
ones are told, and no message of the victim is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.agent_site import Site, agent_site, until

from shoal.bus import Bus, Subscription
from shoal.message import Item, Message, Retraction
from shoal.runtime import PRODUCTION
from shoal.wire import envelope
from shoal.wire.envelope import HEADER, MAGIC
from shoal.wire.identity import KEY_BYTES

SECRET = bytes(range(KEY_BYTES))
FAR = 1 << 60
WAIT_S = 60.0


def make_bus(site: Site) -> Bus:
    return Bus(site.url, runtime=PRODUCTION)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with agent_site(SECRET) as here:
        here.start_agent()
        yield here


class Victim:
    """A publisher whose stream the attacker knows: everything in a header is public."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.stream = envelope.stream_id(bus.client_id, 1)
        self.last = 0

    async def publish(self, count: int = 1) -> list[bytes]:
        payloads = [b"true %d" % number for number in range(self.last + 1, self.last + 1 + count)]
        for payload in payloads:
            await self.bus.publish("tile", payload, confirm=True)
        self.last += count
        return payloads

    def message(self, sequence: int, tag: bytes = bytes(8)) -> bytes:
        version = self.bus.router.book.placement(b"tile").version
        return HEADER.pack(MAGIC, 0, version, self.stream, sequence, 0)[:32] + tag + b"false"

    def beacon(self, last: int) -> bytes:
        version = self.bus.router.book.placement(b"tile").version
        return envelope.beacon(version, self.stream, last, last, 0)


async def take(messages: Subscription, count: int) -> list[Item]:
    async with asyncio.timeout(WAIT_S):
        return [await messages.get() for _ in range(count)]


@pytest.mark.parametrize("claim", ["message", "beacon"])
async def test_a_claim_of_a_number_far_ahead_silences_no_new_subscriber(site: Site, claim: str) -> None:
    async with make_bus(site) as bus, make_bus(site) as reader:
        victim = Victim(bus)
        await victim.publish()
        async with reader.subscribe("tile") as connected:
            false = victim.message(FAR) if claim == "message" else victim.beacon(FAR)
            await site.plain.publish("tile", false)
            async with reader.subscribe("tile") as new:
                expected = await victim.publish(20)
                for messages in (connected, new):
                    items = await take(messages, 20)
                    assert [item.payload for item in items if isinstance(item, Message)] == expected
            core = connected.core
            assert core is not None
            await until(lambda: not core.doubts())
            assert connected.get_nowait() is None


async def test_the_victims_next_number_is_taken_back_and_the_true_message_delivered(site: Site) -> None:
    async with make_bus(site) as bus, make_bus(site) as reader:
        victim = Victim(bus)
        await victim.publish()
        async with reader.subscribe("tile") as messages:
            await site.plain.publish("tile", victim.message(2, b"8 bytes."))
            false, retraction = await take(messages, 2)
            assert isinstance(false, Message)
            assert (false.payload, false.sequence) == (b"false", 2)
            assert retraction == Retraction("tile", bus.client_id, 2)
            expected = await victim.publish(3)
            assert [item.payload for item in await take(messages, 3) if isinstance(item, Message)] == expected


async def test_a_true_message_behind_a_false_one_is_delivered_too(site: Site) -> None:
    async with make_bus(site) as bus, make_bus(site) as reader:
        victim = Victim(bus)
        await victim.publish()
        async with reader.subscribe("tile") as messages:
            await site.plain.publish("tile", victim.message(2))
            expected = await victim.publish(3)
            items = await take(messages, 5)
            payloads = [item.payload for item in items if isinstance(item, Message)]
            assert sorted(payloads) == [b"false", *expected]
            assert [item for item in items if not isinstance(item, Message)] == [Retraction("tile", bus.client_id, 2)]


async def test_an_altered_copy_is_a_duplicate(site: Site) -> None:
    async with make_bus(site) as bus, make_bus(site) as reader:
        victim = Victim(bus)
        async with reader.subscribe("tile") as messages, site.plain.pubsub(ignore_subscribe_messages=True) as ear:
            await ear.subscribe("tile")
            await victim.publish()
            overheard = await until(lambda: ear.get_message(timeout=1.0))
            await site.plain.publish("tile", overheard["data"][:40] + b"altered")
            await victim.publish()
            items = await take(messages, 2)
            assert [item.payload for item in items if isinstance(item, Message)] == [b"true 1", b"true 2"]
