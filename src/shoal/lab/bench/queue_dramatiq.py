"""The contender `dramatiq`: its Redis broker and its worker, with few middlewares.

It cannot put in batches: each message is a call of a script that waits for the store's sync. So `PRODUCER_THREADS`
threads put at once, and share syncs. The worker has a thread for each consumer and prefetches a batch for each.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from shoal.extras import needed
from shoal.lab.bench.queue_contender import QueueWorkload, Seen

PRODUCER_THREADS: Final = 32


def _broker(load: QueueWorkload) -> tuple[Any, list[Seen], Any]:
    with needed("the contender dramatiq"):
        import dramatiq
        from dramatiq.brokers.redis import RedisBroker
        from dramatiq.middleware import Retries

    broker = RedisBroker(host="127.0.0.1", port=load.port, middleware=[Retries()])  # type: ignore[no-untyped-call]
    handlers: list[Seen] = []

    @dramatiq.actor(broker=broker, queue_name=load.queue, actor_name="work")
    def work(payload: str) -> None:
        handlers[0](payload.encode())

    return broker, handlers, work


async def create(load: QueueWorkload) -> None:
    """Nothing: a queue of Dramatiq is made by its first message."""


async def produce(load: QueueWorkload) -> None:
    """Threads that put one message after the other."""
    _, _, work = _broker(load)
    texts = [payload.decode() for batch in load.batches() for _, payload in batch]

    def put(first: int) -> None:
        for text in texts[first::PRODUCER_THREADS]:
            work.send(text)

    def put_all() -> None:
        with ThreadPoolExecutor(PRODUCER_THREADS) as pool:
            list(pool.map(put, range(PRODUCER_THREADS)))

    await asyncio.to_thread(put_all)


async def consume(load: QueueWorkload, seen: Seen) -> None:
    """A worker with threads."""
    import dramatiq

    broker, handlers, _ = _broker(load)
    lock, over = threading.Lock(), threading.Event()
    left = load.messages

    def handle(payload: bytes) -> None:
        nonlocal left
        with lock:
            seen(payload)
            left -= 1
            if left == 0:
                over.set()

    handlers.append(handle)
    worker = dramatiq.Worker(broker, worker_threads=load.consumers)
    worker.queue_prefetch = load.take_batch * load.consumers
    worker.start()
    await asyncio.to_thread(over.wait)
    await asyncio.to_thread(broker.join, load.queue)
    await asyncio.to_thread(worker.stop)
