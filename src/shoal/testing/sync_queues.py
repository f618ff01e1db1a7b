"""`shoal.testing` for tests without an event loop.

Owns an event loop of its own, which runs only inside the calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from shoal.plan.queue_settings import QueueSettings
from shoal.queues.queue import DeadLetter, QueueStatistics
from shoal.testing.clock import Clock
from shoal.testing.queues import QueuesBus, queues, run
from shoal.workers.app import App
from shoal.workers.worker import WorkerStatistics

T = TypeVar("T")


class SyncQueues:
    """Queues for plain test functions. `bus` is the asynchronous bus; `wait` runs any of its calls."""

    def __init__(self, bus: QueuesBus, runner: asyncio.Runner) -> None:
        self.bus = bus
        self._runner = runner

    @property
    def clock(self) -> Clock:
        """The clock of the queues."""
        return self.bus.clock

    def wait(self, call: Coroutine[Any, Any, T]) -> T:
        """The result of a call: `bus.wait(bus.bus.queue("orders").peek())`."""
        return self._runner.run(call)

    def put(self, queue: str, payload: bytes | str, **options: Any) -> None:
        """`Queue.put`."""
        self.wait(self.bus.queue(queue).put(payload, **options))

    def run(
        self, app: App, *, queues: Collection[str] | None = None, raise_errors: bool = False
    ) -> dict[str, WorkerStatistics]:
        """`shoal.testing.run`."""
        return self.wait(run(app, self.bus, queues=queues, raise_errors=raise_errors))

    def stats(self, queue: str) -> QueueStatistics:
        """`Queue.stats`."""
        return self.wait(self.bus.queue(queue).stats())

    def dead(self, queue: str) -> list[DeadLetter]:
        """`Queue.dead`."""
        return self.wait(self.bus.queue(queue).dead())


@contextmanager
def sync_queues(settings: Mapping[str, QueueSettings] | None = None, *, seed: int = 0) -> Iterator[SyncQueues]:
    """Queues for a test without an event loop: `with shoal.testing.sync_queues() as bus`."""
    with asyncio.Runner() as runner:
        context = queues(settings, seed=seed)
        bus = runner.run(_enter(context))
        try:
            yield SyncQueues(bus, runner)
        finally:
            runner.run(_leave(context))


async def _enter(context: Any) -> QueuesBus:
    bus: QueuesBus = await context.__aenter__()
    return bus


async def _leave(context: Any) -> None:
    await context.__aexit__(None, None, None)
