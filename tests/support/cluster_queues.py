"""Queues of a cluster, for tests: requests to its leader, and clients that find entries in its coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

from shoal.coordination.interface import Coordinator
from shoal.coordination.link import parse_address
from shoal.errors import QueueNotFoundError
from shoal.limits import DEFAULT_LIMITS
from shoal.plan.keys import PUBLIC_KEY, entry_key, move_key
from shoal.plan.kinds import QUEUE
from shoal.plan.queue_entry import QueueEntry
from shoal.plan.queue_request import CreateQueue, DropQueue, QueueRequest, encode_queue_request
from shoal.plan.queue_settings import QueueSettings
from shoal.plan.signature import Verifier
from shoal.queues.queue import Queue, QueueContext
from shoal.rules import ALL_RULES
from shoal.runtime import PRODUCTION


class ClusterQueues:
    """The queues of one cluster, with an admin's address."""

    def __init__(self, url: str) -> None:
        self._url = url
        login = parse_address(url, None, None)
        runtime = PRODUCTION.with_tls(login.tls)
        self._context = QueueContext(
            DEFAULT_LIMITS, runtime, lambda: (login.username, login.password), self.find, ALL_RULES
        )

    async def __aenter__(self) -> Self:
        self.coordinator: Coordinator = await PRODUCTION.coordinator(self._url, 5.0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.coordinator.close()

    async def request(self, request: QueueRequest) -> None:
        """Writes a request."""
        await self.coordinator.put(move_key(request.unit, QUEUE), encode_queue_request(request), 0)

    async def ended(self, name: str, seconds: float = 60.0) -> None:
        """Waits until the request about a queue has ended."""
        async with asyncio.timeout(seconds):
            while await self.coordinator.get(move_key(name.encode(), QUEUE)) is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def create(self, name: str, **settings: Any) -> QueueEntry:
        """Creates a queue, and returns when its store has it."""
        await self.request(CreateQueue(name.encode(), QueueSettings(**settings), "test"))
        await self.ended(name)
        return await self.find(name)

    async def drop(self, name: str) -> None:
        """Drops a queue, and returns when it is gone."""
        await self.request(DropQueue(name.encode(), "test"))
        await self.ended(name)

    @asynccontextmanager
    async def queue(self, name: str) -> AsyncIterator[Queue]:
        """A queue, until the end of the block."""
        queue = Queue(name, self._context, self._sibling)
        try:
            yield queue
        finally:
            await queue.aclose()

    def _sibling(self, name: str) -> Queue:
        return Queue(name, self._context, self._sibling)

    async def find(self, name: str) -> QueueEntry:
        """The entry of a queue."""
        line, key = await self.coordinator.get_all([entry_key(name.encode(), QUEUE), PUBLIC_KEY])
        if line is None or key is None:
            raise QueueNotFoundError(f"there is no queue {name}")
        return Verifier(key.value).line(line.value, QueueEntry)
