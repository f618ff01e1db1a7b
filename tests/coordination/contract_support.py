"""Helpers for the coordinator's contract tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Protocol, TypeAlias

from shoal.coordination.interface import Change, Coordinator, Lease

PATIENCE_S = 30.0
"""Timeout for events that must happen eventually; reached only in a failure."""

SOON_S = 0.15
"""A short lease, and the wait until it expires."""

Factory: TypeAlias = Callable[[], Awaitable[Coordinator]]


class Store(Protocol):
    """The process behind the coordinator."""

    def kill(self) -> None:
        """Kill it, as a crash would."""

    def restart(self) -> None:
        """Restart it with all acknowledged writes."""


class Follower:
    """Reads a watch in the background and keeps the last state of each key, as a user of the watch would."""

    def __init__(self, coordinator: Coordinator, prefix: str) -> None:
        self.state: dict[str, bytes] = {}
        self.changes: list[Change] = []
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._follow(coordinator, prefix))

        self._task.add_done_callback(lambda _: self._news.set())

    async def _follow(self, coordinator: Coordinator, prefix: str) -> None:
        async with aclosing(coordinator.watch(prefix)) as changes:
            async for change in changes:
                self.changes.append(change)
                if change.now is None:
                    self.state.pop(change.key, None)
                else:
                    self.state[change.key] = change.now.value
                self._news.set()

    async def until(self, state: dict[str, bytes]) -> None:
        """Return when the watch has shown exactly this state; raises the watch's error, if any."""
        async with asyncio.timeout(PATIENCE_S):
            while self.state != state:
                if self._task.done():
                    self._task.result()
                self._news.clear()
                await self._news.wait()

    async def ended(self) -> None:
        """Return when the watch has ended; raises its error, if any."""
        await asyncio.wait_for(self._task, PATIENCE_S)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


async def held(lease: Awaitable[Lease | None]) -> Lease:
    """Acquire a lease that must be free."""
    taken = await lease
    assert taken is not None
    return taken


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Poll until a condition holds that sends no notification, such as a lease expiring by the store's clock."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.01)
