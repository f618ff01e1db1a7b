"""`async for job in queue.take()` without `async with`: leaving the loop gives back what it did not start."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.queue_store import client_of
from tests.support.redis_server import RedisServer

from shoal.errors import QueueError
from shoal.queues.queue import Queue


async def _consumers(queue: Queue) -> int:
    return (await queue.stats()).consumers


async def _wait_until_left(queue: Queue) -> None:
    async with asyncio.timeout(30):
        while (await queue.stats()).consumers:  # noqa: ASYNC110  # the store sets no event
            await asyncio.sleep(0.01)


async def test_break_gives_back_what_was_not_started(store: RedisServer) -> None:
    async with client_of(store) as client:
        queue = await client.create("left-by-break")
        await queue.put_many([b"%d" % number for number in range(5)])
        async for job in queue.take():
            await job.done()
            break
        await _wait_until_left(queue)
        stats = await queue.stats()
        assert (stats.messages, stats.ready, stats.held) == (4, 4, 0)
        assert all(status.attempts == 0 for status in await queue.keys())


async def test_a_job_can_be_ended_after_the_loop_was_left(store: RedisServer) -> None:
    async with client_of(store) as client:
        queue = await client.create("ended-after-the-loop")
        await queue.put_many([b"1", b"2", b"3"])
        async for job in queue.take():  # noqa: B007  # ended below
            break
        await asyncio.sleep(0.2)  # the others are given back meanwhile
        assert (await queue.stats()).held == 1
        await job.done()
        await _wait_until_left(queue)
        assert (await queue.stats()).messages == 2


async def test_a_job_that_an_error_has_left_behind_goes_back(store: RedisServer) -> None:
    async with client_of(store) as client:
        queue = await client.create("left-by-error")
        await queue.put(b"1")

        async def work() -> None:
            async for _ in queue.take():
                raise ValueError("no stock")

        with pytest.raises(ValueError, match="no stock"):
            await work()
        await _wait_until_left(queue)
        async with queue.take() as jobs:
            async with asyncio.timeout(30):
                job = await anext(jobs)
            assert job.attempt == 2
            await job.done()


async def test_a_cancelled_loop_leaves(store: RedisServer) -> None:
    async with client_of(store) as client:
        queue = await client.create("left-by-cancellation")

        async def work() -> None:
            async for job in queue.take():
                await job.done()

        task = asyncio.create_task(work())
        async with asyncio.timeout(30):
            while not await _consumers(queue):  # noqa: ASYNC110  # the store sets no event
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await _wait_until_left(queue)


async def test_closing_right_after_the_loop_waits_for_the_consumer(store: RedisServer) -> None:
    async with client_of(store) as client:
        queue = await client.create("left-and-closed")
        await queue.put_many([b"1", b"2", b"3"])
    for pause in (0, 1, 2):
        async with client_of(store) as client:
            async for job in client.queue("left-and-closed").take():
                await job.done()
                break
            for _ in range(pause):
                await asyncio.sleep(0)
        async with client_of(store) as client:
            stats = await client.queue("left-and-closed").stats()
            assert (stats.messages, stats.held, stats.consumers) == (2 - pause, 0, 0)


async def test_a_second_loop_needs_the_block(store: RedisServer) -> None:
    async with client_of(store) as client:
        queue = await client.create("two-loops")
        await queue.put_many([b"1", b"2"])
        stream = queue.take()
        async for job in stream:
            await job.done()
            break
        with pytest.raises(QueueError, match="async with"):
            async for _ in stream:
                pass
        async with queue.take() as jobs:
            async for job in jobs:
                await job.done()
                break
            assert await _consumers(queue) >= 1
            await queue.put(b"3")
            async for job in jobs:
                await job.done()
                break
