"""Several event loops in one process: an app connects in each of them, and a queue says that it belongs to one."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.queue_store import client_of
from tests.support.redis_server import RedisServer

import shoal
from shoal.errors import QueueError

WAIT_S = 30.0


def app_of(store: RedisServer) -> shoal.App:
    return shoal.App(connect=lambda: client_of(store))


async def _create(store: RedisServer, name: str) -> None:
    async with client_of(store) as client:
        await client.create(name)


async def _payloads(store: RedisServer, name: str) -> set[bytes]:
    async with client_of(store) as client:
        return {message.payload for message in await client.queue(name).peek()}


def test_an_app_puts_in_one_event_loop_after_the_other(store: RedisServer) -> None:
    """The second put waited for ever for the connection of the first event loop, which had ended."""
    asyncio.run(_create(store, "loops"))
    app = app_of(store)

    async def put(payload: bytes, close: bool) -> None:
        async with asyncio.timeout(WAIT_S):
            await app.queue("loops").put(payload)
            if close:
                await app.aclose()

    for payload, close in ((b"1", False), (b"2", False), (b"3", True), (b"4", True)):
        asyncio.run(put(payload, close))
    assert asyncio.run(_payloads(store, "loops")) == {b"1", b"2", b"3", b"4"}


async def test_a_handler_in_a_thread_may_have_an_event_loop_of_its_own(store: RedisServer) -> None:
    await _create(store, "loop-of-a-thread")
    await _create(store, "from-a-thread")
    app = app_of(store)

    @app.worker("loop-of-a-thread")
    def handle(job: shoal.Job) -> None:
        async def put() -> None:
            await app.queue("from-a-thread").put(job.payload)
            await app.aclose()

        asyncio.run(put())
        app.stop()

    await app.queue("loop-of-a-thread").put(b"x")
    async with asyncio.timeout(WAIT_S):
        assert (await app.run(signals=False))["loop-of-a-thread"].done == 1
    await app.aclose()
    assert await _payloads(store, "from-a-thread") == {b"x"}


async def test_a_queue_in_another_event_loop_is_refused(store: RedisServer) -> None:
    async with client_of(store) as client:
        queue = await client.create("foreign-loop")
        with pytest.raises(QueueError, match="open a bus in each event loop"):
            await asyncio.to_thread(lambda: asyncio.run(queue.put(b"x")))
        assert (await queue.stats()).messages == 0


async def test_a_job_is_not_ended_in_another_event_loop(store: RedisServer) -> None:
    """It was done, and the caller got RuntimeError."""
    async with client_of(store) as client:
        queue = await client.create("job-in-a-foreign-loop")
        await queue.put(b"x")
        async with queue.take() as jobs:
            job = await anext(jobs)
            for end in (job.done, job.fail, job.extend):
                with pytest.raises(QueueError, match="another event loop"):
                    await asyncio.to_thread(lambda end=end: asyncio.run(end()))  # type: ignore[misc]
            await job.done()
        assert (await queue.stats()).messages == 0
