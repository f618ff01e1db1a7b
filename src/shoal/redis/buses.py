"""The open buses of a client: its own and one for each connected PubSub.

Owns their end. A bus is closed with its owner, with the client, or in the background when its owner was dropped without
`aclose`: a forgotten PubSub must not stay subscribed.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref

from shoal.bus import Bus
from shoal.errors import ShoalError


class OpenBuses:
    """The buses of one client that were not closed yet."""

    def __init__(self, close_s: float | None) -> None:
        self._close_s = close_s
        self._open: set[Bus] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def adopt(self, owner: object, bus: Bus) -> None:
        """Adds an open bus, which is closed when its owner is garbage."""
        self._open.add(bus)
        weakref.finalize(owner, self._drop, bus, asyncio.get_running_loop()).atexit = False

    def _drop(self, bus: Bus, loop: asyncio.AbstractEventLoop) -> None:
        """Called by the garbage collector, in any thread."""
        if bus in self._open and not loop.is_closed():
            loop.call_soon_threadsafe(self._close_soon, bus)

    def _close_soon(self, bus: Bus) -> None:
        task = asyncio.create_task(self.close(bus), name="close a dropped bus")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self, bus: Bus) -> None:
        """Closes a bus. Like redis-py it raises nothing: callers whose message was not confirmed know already."""
        self._open.discard(bus)
        with contextlib.suppress(ShoalError, TimeoutError):
            async with asyncio.timeout(self._close_s):
                await bus.aclose()

    async def close_all(self) -> None:
        """Closes all buses, and waits for those that are closing."""
        await asyncio.gather(*(self.close(bus) for bus in list(self._open)), *self._closing)
