"""The subscriptions behind a PubSub: one feed for each channel and pattern.

Owns the order in which items of many subscriptions reach one reader: feeds take turns, item by item, so that a busy
channel does not starve a quiet one. Items stay in the bounded inboxes of the bus until they are read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import StrEnum
from typing import TypeAlias

from redis import exceptions

from shoal.bus import Bus, Subscription
from shoal.errors import ShoalError
from shoal.message import Item
from shoal.redis.conversion import Response, translated
from shoal.wire.envelope import check_channel_name, check_pattern


class FeedKind(StrEnum):
    """A kind of subscription. The value is the prefix of its message types, for example "p" of "pmessage"."""

    CHANNEL = ""
    PATTERN = "p"
    SHARD = "s"


class RedisFeed:
    """One subscription of a PubSub."""

    def __init__(self, bus: Bus, name: bytes, kind: FeedKind, queue: ReadQueue) -> None:
        self.name = name
        self.kind = kind
        self._queue = queue
        is_pattern = kind is FeedKind.PATTERN
        with translated():
            checked = (check_pattern if is_pattern else check_channel_name)(name, bus.limits)
        self._subscription = Subscription(bus, checked, is_pattern, listener=self)
        self._begun = False
        self._queued = False

    async def open(self) -> None:
        """Subscribes; returns when the subscription is in force."""
        with translated():
            await self._subscription.open()

    def begin(self) -> None:
        """Releases items. The subscribe message is already in the queue before them."""
        self._begun = True
        self.wake()

    def hold(self) -> None:
        """Holds items until `begin`, because another subscribe message comes first."""
        self._begun = False

    async def close(self) -> None:
        """Unsubscribes."""
        await self._subscription.aclose()

    @property
    def settled(self) -> bool:
        """Whether the subscription is in force on all its servers."""
        return self._subscription.settled

    def check_reachable(self, seconds: float) -> None:
        """Raises a ConnectionError if none of its servers could be used for this long."""
        error = self._subscription.cut_off(seconds)
        if error is not None:
            with translated():
                raise error

    def take(self) -> FeedItem:
        """The next item. The feed goes to the end of the queue if it has more."""
        item = self._subscription.get_nowait()
        assert item is not None, "a feed in the queue has items"
        self._queued = False
        self.wake()
        return self.kind, item

    def rest(self) -> list[FeedItem]:
        """All items that have arrived and were not taken."""
        waiting = range(self._subscription.waiting)
        return [(self.kind, item) for _ in waiting if (item := self._subscription.get_nowait())]

    def wake(self) -> None:
        """Called by the bus when the inbox has a new item."""
        if self._begun and not self._queued and self._subscription.waiting:
            self._queued = True
            self._queue.put(self)

    def fail(self, error: ShoalError) -> None:
        """Called by the bus while no server of the subscription can be used."""
        self._queue.fail(error)

    def end(self) -> None:
        """Called by the bus when it is closed."""
        self._queue.end()


FeedItem: TypeAlias = tuple[FeedKind, Item]
Entry: TypeAlias = RedisFeed | FeedItem | Response


class ReadQueue:
    """What one reader gets next: feeds with items, remaining items of closed feeds, and replies to commands."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._error: ShoalError | None = None

    def put(self, entry: Entry) -> None:
        """Adds an entry and wakes the reader."""
        self._entries.append(entry)
        self._wake()

    def end(self) -> None:
        """Ends the queue. The reader gets a ConnectionError after the remaining entries."""
        self._ended = True
        self._wake()

    def fail(self, error: ShoalError) -> None:
        """Raises an error to the reader, if it waits and nothing arrives first."""
        if self._waiter is not None:
            self._error = error
            self._wake()

    def interrupt(self) -> None:
        """Wakes the reader without an entry, so that it checks its connection."""
        self._wake()

    def remove(self, feed: RedisFeed) -> None:
        """Removes a feed."""
        self._entries = deque(entry for entry in self._entries if entry is not feed)

    async def get(self, timeout_s: float | None) -> Response | FeedItem | None:
        """The next reply or item; None after `timeout_s` without one, or when interrupted.

        With a timeout of 0, other tasks get one turn of the event loop first.
        """
        if not self._entries:
            await self._wait(timeout_s)
        error, self._error = self._error, None
        if not self._entries:
            if error is not None:
                with translated():
                    raise error
            if self._ended:
                raise exceptions.ConnectionError("the connection was closed")
            return None
        entry = self._entries.popleft()
        return entry.take() if isinstance(entry, RedisFeed) else entry

    async def _wait(self, timeout_s: float | None) -> None:
        if timeout_s is not None and timeout_s <= 0:
            await asyncio.sleep(0)
            return
        if self._waiter is not None:
            raise RuntimeError("two tasks read from one pubsub at the same time: give each its own")
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
