"""Two places for the same tests of workers: a real store, and `shoal.testing`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.support.queue_store import StoreClient, client_of
from tests.support.redis_server import RedisServer

import shoal
from shoal.queues.queue import Queue
from shoal.testing import QueuesBus, queues, run
from shoal.workers.worker import WorkerStatistics

PATIENCE_S = 60.0
"""Longer than any healthy run."""


class Place:
    """Queues on a store."""

    bus: StoreClient | QueuesBus

    async def create(self, name: str, **settings: Any) -> Queue:
        """A new queue."""
        return await self.bus.create(name, **settings)

    async def run(self, app: shoal.App) -> dict[str, WorkerStatistics]:
        """Runs workers until nothing is ready."""
        raise NotImplementedError

    async def pass_time(self, seconds: float) -> None:
        """Lets retries and delays become due; at most a second at a time, as the clock of a store advances."""
        raise NotImplementedError

    async def run_until(
        self, app: shoal.App, condition: Callable[[], bool], **options: Any
    ) -> dict[str, WorkerStatistics]:
        """Runs workers until a condition holds, then stops them gracefully."""
        running = asyncio.create_task(app.run(self.bus, signals=False, **options))
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not condition() and not running.done():  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            app.stop()
            return await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


class MemoryPlace(Place):
    def __init__(self, bus: QueuesBus) -> None:
        self.bus: QueuesBus = bus

    async def run(self, app: shoal.App) -> dict[str, WorkerStatistics]:
        async with asyncio.timeout(PATIENCE_S):
            return await run(app, self.bus)

    async def pass_time(self, seconds: float) -> None:
        self.bus.clock.advance(seconds)


class RealPlace(Place):
    def __init__(self, bus: StoreClient) -> None:
        self.bus: StoreClient = bus

    async def run(self, app: shoal.App) -> dict[str, WorkerStatistics]:
        running = asyncio.create_task(app.run(self.bus, signals=False))
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not running.done() and not await self._idle(list(app.workers)):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            app.stop()
            return await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _idle(self, names: list[str]) -> bool:
        """A consumer that has joined has made ready what was due."""
        found = [await self.bus.queue(name).stats() for name in names]
        return all(one.consumers and not one.ready and not one.held for one in found)

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@asynccontextmanager
async def open_place(kind: str, store: RedisServer) -> AsyncIterator[Place]:
    """A place of this kind."""
    if kind == "memory":
        async with queues() as bus:
            yield MemoryPlace(bus)
    else:
        async with client_of(store) as client:
            try:
                yield RealPlace(client)
            finally:
                for queue in client.queues.values():
                    await queue.drop()
