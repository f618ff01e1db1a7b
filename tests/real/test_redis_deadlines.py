"""Deadlines of the redis-py surface: with frozen or dead servers its calls end as redis-py's do.

The limits of the bus are far above WAIT_S, so a call that ends within WAIT_S ends because of redis-py's timeouts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any

import pytest
from redis import exceptions

import shoal.redis as redis
from shoal.cluster.cluster_timeouts import Timing
from shoal.cluster.local import COORDINATOR, LocalCluster
from shoal.cluster.parts import agent_name, shoal_agent
from shoal.limits import Limits
from shoal.plan.ring import ServerAddress

WAIT_S = 60.0
LEASE_S = 1.5
FOREVER_S = 10 * WAIT_S
PATIENT = Limits(
    server_lease_s=LEASE_S,
    connect_timeout_s=1.0,
    unreachable_s=FOREVER_S,
    subscribe_timeout_s=FOREVER_S,
    enrol_timeout_s=FOREVER_S,
    drain_timeout_s=FOREVER_S,
)
NAMES = (COORDINATOR, agent_name("s1"), "s1")
GONE = (exceptions.TimeoutError, exceptions.ConnectionError)


def agent(server: ServerAddress) -> Sequence[str]:
    return ["env", f"SHOAL_LIMITS_SERVER_LEASE_S={LEASE_S}", *shoal_agent(server)]


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    timing = Timing(restart_pause_s_max=0.2)
    async with LocalCluster(1, limits=PATIENT, timing=timing, agent_command=agent) as started:
        yield started


def client_of(cluster: LocalCluster) -> redis.Redis:
    return redis.Redis.from_url(cluster.url, socket_timeout=2.0, limits=PATIENT)


async def listening(client: redis.Redis, channel: str) -> redis.PubSub:
    """A subscriber that has read its subscribe message."""
    pubsub = client.pubsub(ignore_subscribe_messages=True)
    await pubsub.subscribe(channel)
    assert await pubsub.get_message(timeout=WAIT_S) is None
    return pubsub


async def hear(pubsub: redis.PubSub) -> dict[str, Any]:
    return await anext(aiter(pubsub.listen()))


async def raised(call: Awaitable[Any]) -> BaseException:
    """The error of a call that would otherwise wait."""
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(GONE) as caught:
            await call
    return caught.value


async def kill_all(cluster: LocalCluster) -> None:
    for name in NAMES:
        cluster.hold(name)
        await cluster.kill(name)


async def test_calls_end_while_all_servers_are_frozen(cluster: LocalCluster) -> None:
    client = client_of(cluster)
    pubsub = await listening(client, "frozen")
    await client.publish("frozen", "0")
    assert await pubsub.get_message(timeout=WAIT_S) is not None
    for name in NAMES:
        cluster.pause(name)
    assert await pubsub.get_message(timeout=0.2) is None
    error = await raised(client.publish("frozen", "1"))
    assert isinstance(error, exceptions.TimeoutError)
    assert "may still arrive" in str(error)
    await raised(pubsub.subscribe("other"))
    assert pubsub.channels == {b"frozen": None}
    await raised(client.pubsub().subscribe("frozen"))
    await raised(client.ping())
    async with asyncio.timeout(WAIT_S):
        await pubsub.aclose()
        await client.aclose()


async def test_calls_end_while_all_servers_are_dead_and_go_on_when_they_are_back(cluster: LocalCluster) -> None:
    client = client_of(cluster)
    pubsub = await listening(client, "dead")
    await kill_all(cluster)
    await raised(client.publish("dead", "kept"))
    assert isinstance(await raised(hear(pubsub)), exceptions.ConnectionError)
    assert isinstance(await raised(hear(pubsub)), exceptions.ConnectionError), "it is told again"
    assert isinstance(await raised(pubsub.get_message()), exceptions.ConnectionError)
    await raised(client_of(cluster).publish("dead", "never sent"))
    for name in reversed(NAMES):
        cluster.release(name)
    async with asyncio.timeout(WAIT_S):
        while (message := await read_again(pubsub)) is None:
            pass
        assert message["data"] == b"kept"
        await pubsub.aclose()
        await client.aclose()


async def read_again(pubsub: redis.PubSub) -> dict[str, Any] | None:
    try:
        return await pubsub.get_message(timeout=0.2)
    except exceptions.ConnectionError:
        return None


async def test_closing_does_not_wait_for_messages_that_were_reported(cluster: LocalCluster) -> None:
    client = client_of(cluster)
    pubsub = await listening(client, "closing")
    await kill_all(cluster)
    await raised(client.publish("closing", "x"))
    async with asyncio.timeout(WAIT_S):
        await client.aclose()
        await pubsub.aclose()


async def test_reading_past_the_timeout_is_no_error(cluster: LocalCluster) -> None:
    client = redis.Redis.from_url(cluster.url + "?socket_timeout=0.5", limits=PATIENT)
    pubsub = await listening(client, "patient")
    reading = asyncio.create_task(hear(pubsub))
    await asyncio.sleep(1.5)
    assert not reading.done()
    await client.publish("patient", "x")
    assert (await asyncio.wait_for(reading, WAIT_S))["data"] == b"x"
    await client.aclose()
