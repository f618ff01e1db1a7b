"""A producer or a consumer of a queue soak: `python -m shoal.lab.soak.queue_client`, run by `shoal.lab.harness`.

Owns the load. It uses the public API only: `shoal.connect`, `Queue.put`, `Queue.take`, `Job.done`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Final

import shoal
from shoal.errors import JobLostError, QueueError, QueueUnavailableError
from shoal.lab.harness import Parent, Stop, run_worker
from shoal.lab.soak.queue_orders import (
    ACCEPTED,
    BEGUN,
    CONFIRMED,
    ENDED,
    LOST,
    ORDERS,
    QUEUE,
    REFUSED,
    SENT,
    UNSURE,
    ClientStatus,
    EventLog,
    Order,
    StartConsumer,
    StartProducer,
    decode_payload,
    encode_payload,
)
from shoal.queues.job import Job
from shoal.queues.queue import Queue

LANES: Final = 8
"""Tasks of a producer. Each has its own keys and waits for each put, so that the order of its puts is known."""
IN_FLIGHT: Final = 32
TELL_S: Final = 0.2
WORK_S: Final = 0.004
SLOW_S: Final = 0.3
"""How long a handler works on average, and how long a slow one does: the interruption in the paper."""
SLOW_SHARE: Final = 0.02


class Producer:
    """Puts messages until it is told to stop."""

    def __init__(self, start: StartProducer, queue: Queue) -> None:
        self._start = start
        self._queue = queue
        self._log = EventLog(Path(start.log), start.name)
        self.count = 0
        self.stopping = False

    async def run(self) -> None:
        """Runs all lanes."""
        await asyncio.gather(*(self._run_lane(lane) for lane in range(LANES)))

    async def _run_lane(self, lane: int) -> None:
        random = Random(f"{self._start.seed} {self._start.name} {lane}")
        keys = range(lane, self._start.keys, LANES)
        numbers = dict.fromkeys(keys, 0)
        while not self.stopping and keys:
            key = random.choice(keys)
            numbers[key] += 1
            await self._put(key, numbers[key])
            await asyncio.sleep(random.expovariate(self._start.per_s / LANES))

    async def _put(self, key: int, number: int) -> None:
        name = self._start.name
        self._log.write(SENT, name, key, number)
        try:
            await self._queue.put(encode_payload(name, key, number), key=f"key-{key}", full="wait")
            ending = ACCEPTED
        except QueueUnavailableError:
            ending = UNSURE
        except QueueError:
            ending = REFUSED
        self._log.write(ending, name, key, number)
        self.count += 1


class Consumer:
    """Takes jobs until it is told to stop; several are processed at a time."""

    def __init__(self, start: StartConsumer, queue: Queue) -> None:
        self._queue = queue
        self._random = Random(f"{start.seed} {start.name}")
        self._log = EventLog(Path(start.log), start.name)
        self.count = 0

    async def run(self) -> None:
        """Processes jobs until it is cancelled; then it gives back what was not started."""
        async with self._queue.take(max_in_flight=IN_FLIGHT) as jobs, asyncio.TaskGroup() as group:
            async for job in jobs:
                group.create_task(self._process(job))

    async def _process(self, job: Job) -> None:
        producer, key, number = decode_payload(job.payload)
        self._log.write(BEGUN, producer, key, number)
        slow = self._random.random() < SLOW_SHARE
        await asyncio.sleep(SLOW_S if slow else self._random.expovariate(1 / WORK_S))
        self._log.write(ENDED, producer, key, number)
        try:
            await job.done()
        except JobLostError:
            self._log.write(LOST, producer, key, number)
        else:
            self._log.write(CONFIRMED, producer, key, number)
            self.count += 1


async def work(parent: Parent[Order]) -> None:
    """Runs one client until `Stop`."""
    start = await parent.order()
    if isinstance(start, Stop) or start is None:
        return
    async with shoal.connect(start.url) as bus:
        queue = bus.queue(QUEUE)
        client = Producer(start, queue) if isinstance(start, StartProducer) else Consumer(start, queue)
        running = asyncio.create_task(client.run())
        stopping = asyncio.create_task(parent.order())
        while not stopping.done():
            done, _ = await asyncio.wait({running, stopping}, timeout=TELL_S, return_when=asyncio.FIRST_COMPLETED)
            if running in done:
                running.result()
            parent.tell(ClientStatus(client.count))
        if isinstance(client, Producer):
            client.stopping = True
            await running
        else:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        parent.tell(ClientStatus(client.count, ended=True))
        await parent.order()


if __name__ == "__main__":
    run_worker(ORDERS, work, log_level="warning")
