"""What a turn of a consumer carries, on a real store: as much as the consumer has room for, and no more."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.queue_store import client_of
from tests.support.redis_server import RedisServer

from shoal.queues.consumer import ConsumerCore
from shoal.queues.queue import NewMessage

MAX_IN_FLIGHT = 64


async def fill(store: RedisServer, name: str, keys: int, messages: int) -> None:
    async with client_of(store) as client:
        queue = await client.create(name, messages_max=10_000)
        for number in range(messages):
            await queue.put_many([NewMessage(b"%d" % number, key=f"k{key}") for key in range(keys)])


async def test_jobs_that_end_at_once_are_reported_in_full_turns(store: RedisServer) -> None:
    """A turn went out before the application had seen the jobs of the last one, so two carried what one could. A key
    that goes back after its quantum had messages fetched for nothing."""
    await fill(store, "full-turns", keys=10, messages=320)
    async with client_of(store) as client, asyncio.timeout(30):
        queue = client.queue("full-turns")
        left = 3200
        async with queue.take(max_in_flight=MAX_IN_FLIGHT) as jobs:
            async for job in jobs:
                await job.done(confirm=False)
                left -= 1
                if left == 0:
                    break
            assert jobs.statistics()["turns"] < 3200 / MAX_IN_FLIGHT + 15
        assert (await queue.stats()).messages == 0


async def test_a_consumer_never_holds_more_than_it_has_room_for(
    store: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn that asked for more messages of keys and for more keys got both, up to twice the room."""
    await fill(store, "no-more", keys=40, messages=30)
    most, reply = 0, ConsumerCore.reply

    def noted(core: ConsumerCore, words: list[object], now: float) -> None:
        nonlocal most
        reply(core, words, now)
        most = max(most, core.in_flight)

    monkeypatch.setattr(ConsumerCore, "reply", noted)
    async with client_of(store) as client, asyncio.timeout(30):
        queue = client.queue("no-more")
        left = 1200
        async with queue.take(max_in_flight=MAX_IN_FLIGHT) as jobs:
            async for job in jobs:
                await job.done(confirm=False)
                left -= 1
                if left == 0:
                    break
    assert most == MAX_IN_FLIGHT
