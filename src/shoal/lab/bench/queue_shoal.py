"""The contender `shoal`: `Queue` on one store, with one connection for each consumer.

Every consumer holds up to `take_batch` messages. A job is ended with `done(confirm=False)`: its end is stored and
confirmed with the consumer's next turn, as a group's XACK is with its next read.
"""

from __future__ import annotations

import asyncio

from shoal.lab.bench.queue_contender import PutOne, QueueWorkload, Seen
from shoal.limits import DEFAULT_LIMITS
from shoal.plan.queue_entry import QueueEntry
from shoal.plan.queue_settings import QueueSettings
from shoal.plan.ring import ServerAddress
from shoal.queues.queue import NewMessage, Queue, QueueContext
from shoal.runtime import PRODUCTION

SETTINGS = QueueSettings(messages_max=10_000_000, bytes_max=1 << 40, keys_max=10_000_000)


def open_queue(port: int, name: str) -> Queue:
    """A queue of a client with a connection of its own."""

    async def find(_: str) -> QueueEntry:
        address = ServerAddress("q1", "127.0.0.1", port)
        return QueueEntry(name.encode(), 1, 1, SETTINGS, (address,), (0,) * SETTINGS.shards)

    context = QueueContext(DEFAULT_LIMITS, PRODUCTION, lambda: (None, None), find)
    return Queue(name, context, lambda other: open_queue(port, other))


async def create(load: QueueWorkload) -> None:
    """Make the queue."""
    queue = open_queue(load.port, load.queue)
    await queue.create(SETTINGS)
    await queue.aclose()


async def produce(load: QueueWorkload) -> None:
    """Batches of one producer, one after the other."""
    queue = open_queue(load.port, load.queue)
    for batch in load.batches():
        result = await queue.put_many([NewMessage(payload, key) for key, payload in batch])
        assert result.accepted == len(batch)
    await queue.aclose()


async def consume(load: QueueWorkload, seen: Seen) -> None:
    """Consumers that take until all messages are done."""
    queues = [open_queue(load.port, load.queue) for _ in range(load.consumers)]
    left = load.messages
    over = asyncio.Event()

    async def take(queue: Queue) -> None:
        nonlocal left
        async with queue.take(max_in_flight=load.take_batch) as jobs:
            try:
                async for job in jobs:
                    seen(job.payload)
                    await job.done(confirm=False)
                    left -= 1
                    if left == 0:
                        over.set()
            except asyncio.CancelledError:
                pass  # leaving the block reports what is done

    tasks = [asyncio.create_task(take(queue)) for queue in queues]
    await over.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks)
    for queue in queues:
        await queue.aclose()


async def open_put(load: QueueWorkload) -> PutOne:
    """A producer of single messages, all of one key."""
    queue = open_queue(load.port, load.queue)

    async def put(payload: bytes) -> None:
        await queue.put(payload, key=b"key:0000000")

    return put
