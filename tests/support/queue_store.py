"""A store for tests of queues: a real server that syncs its file on every write, and queues on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import msgspec
from tests.support.redis_server import RedisServer

from shoal.limits import DEFAULT_LIMITS
from shoal.plan.queue_entry import QueueEntry
from shoal.plan.queue_settings import QueueSettings
from shoal.plan.ring import ServerAddress
from shoal.queues.queue import Queue, QueueContext
from shoal.rules import ALL_RULES, Rules
from shoal.runtime import PRODUCTION

DURABLE = ("appendfsync always", 'save ""')


def store_server(**options: Any) -> RedisServer:
    """A server as a store is configured."""
    return RedisServer(aof=True, config=DURABLE, **options)


class StoreClient:
    """A client process: queues on one store, with connections of its own."""

    def __init__(self, server: RedisServer, login: tuple[str | None, str | None], rules: Rules, **limits: Any) -> None:
        self.queues: dict[str, Queue] = {}
        self.entries: dict[str, QueueEntry] = {}
        """Entries of queues that have others than the usual ones."""
        self._server = server
        self._context = QueueContext(
            msgspec.structs.replace(DEFAULT_LIMITS, **limits), PRODUCTION, lambda: login, self._find, rules
        )

    async def _find(self, name: str) -> QueueEntry:
        if name in self.entries:
            return self.entries[name]
        settings = self.settings.get(name, QueueSettings())
        address = ServerAddress("q1", self._server.host, self._server.port)
        return QueueEntry(name.encode(), 1, 1, settings, (address,), (0,) * settings.shards)

    settings: ClassVar[dict[str, QueueSettings]] = {}

    def queue(self, name: str) -> Queue:
        """A queue of this client."""
        if name not in self.queues:
            self.queues[name] = Queue(name, self._context, self.queue)
        return self.queues[name]

    async def create(self, name: str, **settings: Any) -> Queue:
        """Makes a queue, empty."""
        chosen = QueueSettings(**settings)
        self.settings[name] = chosen
        queue = self.queue(name)
        await queue.create(chosen)
        return queue


@asynccontextmanager
async def client_of(
    server: RedisServer,
    *,
    user: str | None = None,
    password: str | None = None,
    rules: Rules = ALL_RULES,
    **limits: Any,
) -> AsyncIterator[StoreClient]:
    """A client that is closed at the end."""
    client = StoreClient(server, (user, password), rules, **limits)
    try:
        yield client
    finally:
        for queue in list(client.queues.values()):
            await queue.aclose()


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Waits for a condition; fails after a time that no healthy run needs."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # what tests wait for sets no event
            await asyncio.sleep(0.005)
