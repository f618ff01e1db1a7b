"""The contender `arq`: its pool and its worker, without results.

It cannot put in batches: each message is a transaction of its own, after a check. So `PRODUCER_TASKS` tasks put at
once, and share syncs. The worker runs a batch of jobs for each consumer at a time and polls without a pause. It runs in
one process, because arq has one event loop.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from shoal.lab.bench.queue_contender import QueueWorkload, Seen

PRODUCER_TASKS: Final = 64
POLL_S: Final = 0.001


async def _pool(load: QueueWorkload) -> Any:
    from arq import create_pool
    from arq.connections import RedisSettings

    settings = RedisSettings(host="127.0.0.1", port=load.port, max_connections=4 * PRODUCER_TASKS)
    return await create_pool(settings, default_queue_name=load.queue)


async def create(load: QueueWorkload) -> None:
    """Nothing: a queue of arq is made by its first job."""


async def produce(load: QueueWorkload) -> None:
    """Tasks that put one message after the other."""
    pool = await _pool(load)
    payloads = [payload for batch in load.batches() for _, payload in batch]

    async def put(first: int) -> None:
        for payload in payloads[first::PRODUCER_TASKS]:
            await pool.enqueue_job("work", payload)

    await asyncio.gather(*map(put, range(PRODUCER_TASKS)))
    await pool.aclose()


async def consume(load: QueueWorkload, seen: Seen) -> None:
    """A worker that runs until all jobs are done."""
    from arq.worker import Worker, func

    pool = await _pool(load)
    left = load.messages
    over = asyncio.Event()

    async def work(_: Any, payload: bytes) -> None:
        nonlocal left
        seen(payload)
        left -= 1
        if left == 0:
            over.set()

    worker = Worker(
        functions=[func(work, name="work", keep_result=0)],
        redis_pool=pool,
        queue_name=load.queue,
        max_jobs=load.take_batch * load.consumers,
        poll_delay=POLL_S,
        keep_result=0,
        handle_signals=False,
    )
    task = asyncio.create_task(worker.async_run())
    await over.wait()
    while await pool.zcard(load.queue):  # noqa: ASYNC110  # the end of a job in the store sets no event
        await asyncio.sleep(POLL_S)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await worker.close()
