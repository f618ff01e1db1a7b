"""How the consumers of a queue share: with one key whose handler stalls, and with a consumer that joins late.

Owns the two runs. The messages are in the store before they begin. Each consumer has `SLOTS` handlers that run at once,
as a worker has.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final

from shoal.lab.bench.contender import BenchError
from shoal.lab.bench.queue_contender import QueueWorkload
from shoal.lab.bench.queue_shoal import open_queue
from shoal.queues.job import Job
from shoal.queues.queue import NewMessage

SLOTS: Final = 8
STALLED_KEY: Final = b"stalled"
STALLED_MESSAGES: Final = 64
"""Messages of the stalled key: more than a consumer fetches of one key."""
JOB_S: Final = 0.002
"""How long a job takes while a consumer joins."""
SETTLE_S: Final = 1.0
WINDOW_S: Final = 0.25
"""The share of a consumer is measured over this time."""
SAMPLE_S: Final = 0.025
SHARE_MIN: Final = 0.9
"""Part of an equal share from which on a consumer has its share."""
JOIN_S_MAX: Final = 20.0

Handler = Callable[[Job], Awaitable[None]]


async def _consumer(stack: AsyncExitStack, load: QueueWorkload, handle: Handler) -> None:
    """Start a consumer that ends with the stack."""
    queue = open_queue(load.port, load.queue)
    stack.push_async_callback(queue.aclose)
    jobs = await stack.enter_async_context(queue.take(max_in_flight=load.take_batch))

    async def slot() -> None:
        async for job in jobs:
            await handle(job)
            await job.done(confirm=False)

    tasks = [asyncio.create_task(slot()) for _ in range(SLOTS)]

    async def stop() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    stack.push_async_callback(stop)


async def put_stalled(load: QueueWorkload) -> None:
    """Put the messages of the stalled key."""
    queue = open_queue(load.port, load.queue)
    await queue.put_many([NewMessage(b"x" * load.payload_bytes, STALLED_KEY) for _ in range(STALLED_MESSAGES)])
    await queue.aclose()


async def drain(load: QueueWorkload) -> float:
    """Process the messages of all keys but the stalled one; return when the last one was processed. Handlers return at
    once, so the consumers are busy all the time."""
    left = load.messages
    over, go_on = asyncio.Event(), asyncio.Event()

    async def handle(job: Job) -> None:
        nonlocal left
        if job.key == STALLED_KEY:
            await go_on.wait()
            return
        left -= 1
        if left == 0:
            over.set()

    async with AsyncExitStack() as stack:
        for _ in range(load.consumers):
            await _consumer(stack, load, handle)
        await over.wait()
        ended_at = time.monotonic()
        go_on.set()
    return ended_at


async def join(load: QueueWorkload) -> tuple[float, float]:
    """Let one more consumer join; return the seconds until it processes its share of all messages, and that share as
    part of an equal one."""
    counts = [0] * (load.consumers + 1)

    def handler(number: int) -> Handler:
        async def handle(_: Job) -> None:
            await asyncio.sleep(JOB_S)
            counts[number] += 1

        return handle

    async with AsyncExitStack() as stack:
        for number in range(load.consumers):
            await _consumer(stack, load, handler(number))
        await asyncio.sleep(SETTLE_S)
        began_at = time.monotonic()
        samples = [(began_at, [*counts])]
        await _consumer(stack, load, handler(load.consumers))
        while (now := time.monotonic()) < began_at + JOIN_S_MAX:
            await asyncio.sleep(SAMPLE_S)
            samples.append((time.monotonic(), [*counts]))
            before = next(one for at, one in reversed(samples) if at <= now - WINDOW_S or one is samples[0][1])
            done = [after - earlier for after, earlier in zip(counts, before, strict=True)]
            share = done[-1] * len(counts) / max(sum(done), 1)
            if share >= SHARE_MIN:
                return samples[-1][0] - began_at, share
            if sum(counts) >= load.messages:
                raise BenchError("all messages were processed before the new consumer had its share")
    raise BenchError(f"the new consumer did not get its share in {JOIN_S_MAX:g} s")
