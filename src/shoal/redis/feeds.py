"""What a PubSub reads from: one feed for each channel and pattern, and the connections behind all of them.

Owns the order in which items of many subscriptions reach one reader: feeds take turns, item by item, so
that a busy channel does not hide a quiet one. Items stay in the bounded inboxes until they are read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from redis import exceptions

from shoal.bus import Bus
from shoal.channels.subscription import Subscription as CoreSubscription
from shoal.message import Item
from shoal.redis.conversion import Response, translated


class Feed:
    """One subscription of a PubSub."""

    def __init__(self, bus: Bus, name: bytes, pattern: bool, queue: Queue) -> None:
        self.name = name
        self.pattern = pattern
        self._bus = bus
        self._queue = queue
        self._core: CoreSubscription | None = None
        self._begun = False
        self._queued = False

    async def open(self) -> None:
        """Subscribes; returns when that is in force."""
        with translated():
            self._core = await self._bus.adapter.subscribe(self.name, self.pattern, None, self)

    def begin(self) -> None:
        """Lets items out: the reader has been promised the confirmation first."""
        self._begun = True
        self.wake()

    def hold(self) -> None:
        """Lets nothing more out until `begin`: the reader will be promised another confirmation first."""
        self._begun = False

    def close(self) -> None:
        """Unsubscribes."""
        if self._core is not None:
            self._bus.adapter.unsubscribe(self._core)

    @property
    def settled(self) -> bool:
        """Whether the subscription is in force on all its servers."""
        return self._core is not None and self._core.settled

    def take(self) -> Item:
        """The next item; the feed queues up again if it has more."""
        core = self._core
        assert core is not None
        item = core.inbox.take()
        self._queued = False
        self.wake()
        if core.overflowed:
            self._bus.adapter.made_room(core)
        return item

    def rest(self) -> list[Item]:
        """Everything that has arrived and not been taken."""
        core = self._core
        return [] if core is None else [core.inbox.take() for _ in range(len(core.inbox.items))]

    def wake(self) -> None:
        """The inbox has something new."""
        if self._begun and not self._queued and self._core is not None and self._core.inbox.items:
            self._queued = True
            self._queue.put(self)

    def end(self) -> None:
        """The bus is closed."""
        self._queue.end()


Entry: TypeAlias = Feed | Item | Response


class Queue:
    """What one reader will see next: feeds that have items, left-over items, and answers to commands."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False

    def put(self, entry: Entry) -> None:
        """Adds an entry and wakes the reader."""
        self._entries.append(entry)
        self._wake()

    def end(self) -> None:
        """Nothing more will come; the reader is told when it has read what is there."""
        self._ended = True
        self._wake()

    def interrupt(self) -> None:
        """Wakes the reader although there is nothing to read: it must look whether it is still connected."""
        self._wake()

    def remove(self, feed: Feed) -> None:
        """Forgets that a feed has items."""
        self._entries = deque(entry for entry in self._entries if entry is not feed)

    async def get(self, timeout_s: float | None) -> Response | Item | None:
        """The next answer or item; None after `timeout_s` without one, or when interrupted.

        With 0 other tasks get one turn to bring something.
        """
        if not self._entries:
            await self._wait(timeout_s)
        if not self._entries:
            if self._ended:
                raise exceptions.ConnectionError("the pubsub was closed")
            return None
        entry = self._entries.popleft()
        return entry.take() if isinstance(entry, Feed) else entry

    async def _wait(self, timeout_s: float | None) -> None:
        if timeout_s is not None and timeout_s <= 0:
            await asyncio.sleep(0)
            return
        if self._waiter is not None:
            raise RuntimeError("two tasks read one pubsub at the same time: give each its own")
        if self._ended:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s) as limit:
                await self._waiter
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class PubSubConnection:
    """All connections of one PubSub, under the few names that users of redis-py's connection know."""

    def __init__(
        self,
        bus: Bus,
        settled: Callable[[], bool],
        disconnected: Callable[[], None],
        reconnected: Callable[[], None],
        socket_timeout: float | None,
    ) -> None:
        self.bus = bus
        self.socket_timeout = socket_timeout
        """What the client was given, for code that looks at it; the bus has its own time limits."""
        self._settled = settled
        self._disconnected = disconnected
        self._reconnected = reconnected
        self._up = True

    @property
    def is_connected(self) -> bool:
        """False after `disconnect`, until somebody reads or calls `connect`."""
        return self._up

    async def connect(self) -> None:
        """After `disconnect`: waits until all subscriptions are in force again; they are confirmed anew."""
        if self._up:
            return
        with translated():
            adapter = self.bus.adapter
            if not await adapter.until(self._settled, adapter.limits.subscribe_timeout_s):
                raise exceptions.ConnectionError("the subscriptions are not in force again: no agent answers")
        self._up = True
        self._reconnected()

    async def disconnect(self, nowait: bool = False) -> None:
        """Cuts the connections. Shoal makes them anew by itself and asks for what was missed meanwhile."""
        self._up = False
        self._disconnected()
        with translated():
            await self.bus.adapter.disconnect_all()
