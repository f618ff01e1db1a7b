"""What the contract tests of coordinators are written with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Protocol, TypeAlias

from shoal.coordination.interface import Change, Coordinator, Lease

PATIENCE_S = 30.0
"""For what must happen at some time; reached only when it never does."""

SOON_S = 0.15
"""A short lease, and a wait that is meant to run out."""

Factory: TypeAlias = Callable[[], Awaitable[Coordinator]]


class Store(Protocol):
    """The process behind the coordinator."""

    def kill(self) -> None:
        """End it as a crash would."""

    def restart(self) -> None:
        """Start it again with what it had acknowledged."""


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
        """Return when the watch has shown just this state; raises what the watch raised, if it did."""
        async with asyncio.timeout(PATIENCE_S):
            while self.state != state:
                if self._task.done():
                    self._task.result()
                self._news.clear()
                await self._news.wait()

    async def ended(self) -> None:
        """Return when the watch has come to its end; raises what it raised."""
        await asyncio.wait_for(self._task, PATIENCE_S)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


async def held(lease: Awaitable[Lease | None]) -> Lease:
    """A lease that nobody may refuse here."""
    taken = await lease
    assert taken is not None
    return taken


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that only asking can tell, like the end of a lease by the store's clock."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.01)
