"""What the reader of a PubSub gets next: entries first, then the error of a cluster that cannot be used."""

from __future__ import annotations

import asyncio

import pytest
from redis import exceptions

from shoal.errors import AuthenticationError, UnreachableError
from shoal.redis.feeds import ReadQueue

GONE = UnreachableError("server s1 could not be used for 15 s")


async def test_a_waiting_reader_gets_redis_pys_error_and_can_read_again() -> None:
    queue = ReadQueue()
    for error, kind in (
        (GONE, exceptions.ConnectionError),
        (AuthenticationError("no"), exceptions.AuthenticationError),
    ):
        reading = asyncio.create_task(queue.get(None))
        await asyncio.sleep(0)
        queue.fail(error)
        with pytest.raises(kind, match=error.what):
            await reading
    queue.put(["message", "c", b"x"])
    assert await queue.get(None) == ["message", "c", b"x"]


async def test_what_arrived_comes_before_the_error() -> None:
    queue = ReadQueue()
    reading = asyncio.create_task(queue.get(None))
    await asyncio.sleep(0)
    queue.fail(GONE)
    queue.put(["message", "c", b"x"])
    assert await reading == ["message", "c", b"x"]


async def test_a_reader_that_does_not_wait_is_not_told_later() -> None:
    queue = ReadQueue()
    queue.fail(GONE)
    assert await queue.get(0.01) is None
