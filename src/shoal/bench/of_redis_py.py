"""The contender `redis-py`: its asyncio client with hiredis, as its documentation uses it.

Each task that publishes has a connection of its own, since a connection of redis-py carries one command at a
time. Its socket timeout is off, which makes it faster: it would set a timer for every read.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, cast

from redis.asyncio import Redis

from shoal.bench.contender import Ear, Mouth, Target


def _client(target: Target, connections: int) -> Any:
    """A client of redis-py, untyped: its types differ between its versions and its stubs."""
    return Redis(
        host=target.host,
        port=target.port,
        username=target.username,
        password=target.password,
        max_connections=connections,
        socket_timeout=None,
    )


class _Ear:
    def __init__(self, pubsub: Any) -> None:
        self._pubsub = pubsub

    async def take(self, count: int) -> None:
        async for message in self._pubsub.listen():
            if message["type"] == "message":
                count -= 1
                if not count:
                    return

    async def close(self) -> None:
        pool = self._pubsub.connection_pool
        await self._pubsub.aclose()
        await pool.disconnect()


class _Mouth:
    def __init__(self, client: Any) -> None:
        self._client = client

    def publish(self, channel: str, payload: bytes) -> Awaitable[object]:
        return cast(Awaitable[object], self._client.publish(channel, payload))

    async def publish_batch(self, channel: str, payload: bytes, count: int) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for _ in range(count):
            pipeline.publish(channel, payload)
        await pipeline.execute()

    async def close(self) -> None:
        await self._client.aclose()


async def listen(target: Target, channel: str, connections: int) -> list[Ear]:
    """See `contender.Contender`."""
    client = _client(target, connections)
    return [await _subscribed(client, channel) for _ in range(connections)]


async def _subscribed(client: Any, channel: str) -> Ear:
    pubsub = client.pubsub()
    await pubsub.subscribe(channel)
    async for answer in pubsub.listen():
        if answer["type"] == "subscribe":
            break
    return _Ear(pubsub)


async def speak(target: Target, tasks: int) -> Mouth:
    """See `contender.Contender`."""
    return _Mouth(_client(target, tasks))


async def talk(target: Target, channel: str) -> tuple[Ear, Mouth]:
    """See `contender.Contender`. A pubsub of redis-py takes a connection of its own."""
    client = _client(target, 2)
    return await _subscribed(client, channel), _Mouth(client)
