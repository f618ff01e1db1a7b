"""The contender `redis-py`: its asyncio client with hiredis, used as in its documentation.

Each publishing task has its own connection, since a connection of redis-py carries one command at a time. The socket
timeout is off, which makes it faster: it would set a timer for every read.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, cast

from redis.asyncio import Redis

from shoal.lab.bench.contender import BenchPublisher, BenchReceiver, BenchTarget
from shoal.lab.plain_tls import redis_py_tls


def _client(target: BenchTarget, connections: int) -> Any:
    """A client of redis-py, untyped: its types differ between its versions and its stubs."""
    return Redis(
        host=target.host,
        port=target.port,
        username=target.username,
        password=target.password,
        max_connections=connections,
        socket_timeout=None,
        **redis_py_tls(target.tls),
    )


class _Receiver:
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


class _Publisher:
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


async def open_receivers(target: BenchTarget, channel: str, connections: int) -> list[BenchReceiver]:
    """See `contender.ClientLibrary`."""
    client = _client(target, connections)
    return [await _subscribe(client, channel) for _ in range(connections)]


async def _subscribe(client: Any, channel: str) -> BenchReceiver:
    pubsub = client.pubsub()
    await pubsub.subscribe(channel)
    async for answer in pubsub.listen():
        if answer["type"] == "subscribe":
            break
    return _Receiver(pubsub)


async def open_publisher(target: BenchTarget, tasks: int) -> BenchPublisher:
    """See `contender.ClientLibrary`."""
    return _Publisher(_client(target, tasks))


async def open_both(target: BenchTarget, channel: str) -> tuple[BenchReceiver, BenchPublisher]:
    """See `contender.ClientLibrary`. A pubsub of redis-py needs its own connection."""
    client = _client(target, 2)
    return await _subscribe(client, channel), _Publisher(client)
