"""`PubSubConnection`: what redis-py calls the connection of a PubSub.

Owns the bus of one PubSub, its feeds and its read queue. It knows nothing of the PubSub, which can therefore be dropped
at any time. It stands for one connection to each server in use, and lives until its bus is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from shoal.bus import Bus
from shoal.errors import ConnectError, SubscribeTimeoutError
from shoal.redis.conversion import Encoder, Name, Response, translated
from shoal.redis.deadlines import Deadline, Deadlines
from shoal.redis.feeds import FeedItem, FeedKind, ReadQueue, RedisFeed

CHECK_S: Final = 1.0
"""How often a waiting reader checks whether servers of its subscriptions can be reached."""


class PubSubConnection:
    """All connections of one PubSub, with the main attributes of redis-py's connection."""

    def __init__(self, bus: Bus, encoder: Encoder, deadlines: Deadlines, *, tells_breaks: bool = False) -> None:
        """With `tells_breaks` a reader gets a ConnectionError after a connection broke, as with redis-py's retries
        switched off. Otherwise the bus reconnects and the reader does not notice."""
        self.bus = bus
        self._tells_breaks = tells_breaks
        self._breaks_told = 0
        self._encoder = encoder
        self.answer = deadlines.answer
        self._reach_s = deadlines.connect_s
        self._feeds: dict[tuple[FeedKind, bytes], RedisFeed] = {}
        self._queue = ReadQueue()
        self._cut = False

    # As in redis-py

    @property
    def socket_timeout(self) -> float | None:
        """The limit of a call that waits for servers."""
        return self.answer.seconds

    @property
    def is_connected(self) -> bool:
        """False after `disconnect`, until the next read or `connect`, and after the client was closed."""
        return not self._cut and not self.bus.closed

    async def connect(self) -> None:
        """After `disconnect`: waits until all subscriptions are in force again, then repeats the subscribe messages."""
        if not self._cut:
            return
        with Deadline(self.answer, "the subscriptions are not in force again"):
            if not await self.bus.until(self._settled, self.bus.limits.subscribe_timeout_s):
                raise SubscribeTimeoutError("the subscriptions are not in force again", do="check `shoal status`")
        self._cut = False
        for feed in self._feeds.values():
            self._put_reply("subscribe", feed.kind, feed.name, self._position(feed))
        for feed in self._feeds.values():
            feed.begin()

    def _settled(self) -> bool:
        return all(feed.settled for feed in self._feeds.values())

    def _position(self, feed: RedisFeed) -> int:
        """The count in a repeated subscribe message."""
        counted = [other for other in self._feeds.values() if _counted_together(other.kind, feed.kind)]
        return counted.index(feed) + 1

    async def disconnect(self, nowait: bool = False) -> None:
        """Closes the connections. The bus reconnects by itself and fetches missed messages."""
        self._hold()
        try:
            with Deadline(self.answer, "the connections are not closed"):
                await self.bus.disconnect()
        finally:
            self._cut = True
            self._queue.interrupt()

    def _hold(self) -> None:
        """Holds messages back: the repeated subscribe messages come first."""
        for feed in self._feeds.values():
            feed.hold()

    def _tell_break(self) -> None:
        """Raises a ConnectionError if a connection broke since the last call."""
        if self._breaks_told == self.bus.breaks:
            return
        self._breaks_told = self.bus.breaks
        self._hold()
        self._cut = True
        with translated():
            raise ConnectError("a connection to a server broke", do="read again: the next call connects")

    # Commands of the PubSub

    async def subscribe(self, kind: FeedKind, names: Iterable[bytes]) -> None:
        """Subscribes to all names, or to none if one fails."""
        names = list(names)
        fresh = {
            name: RedisFeed(self.bus, name, kind, self._queue) for name in names if (kind, name) not in self._feeds
        }
        await _open_all(list(fresh.values()))
        for name in names:
            if name in fresh:
                self._feeds[kind, name] = fresh[name]
            self._put_reply("subscribe", kind, name, self._count(kind))
        for feed in fresh.values():
            feed.begin()

    async def unsubscribe(self, kind: FeedKind, names: Iterable[bytes]) -> list[Name]:
        """Unsubscribes from names, or from all of the kind; returns their names as messages have them. What arrived is
        read before the message about the end."""
        names = list(names) or [name for feed_kind, name in self._feeds if feed_kind is kind]
        for name in names:
            feed = self._feeds.pop((kind, name), None)
            if feed is not None:
                await feed.close()
                self._queue.remove(feed)
                for item in feed.rest():
                    self._queue.put(item)
            self._put_reply("unsubscribe", kind, name, self._count(kind))
        if not names:
            self._put_reply("unsubscribe", kind, None, self._count(kind))
        return [self._encoder.decode(name) for name in names]

    async def ping(self, data: bytes) -> None:
        """Pings every server; a "pong" with the data follows."""
        with Deadline(self.answer, "a server does not answer"):
            await self.bus.ask_servers("PING")
        self._queue.put([self._encoder.decode(b"pong"), self._encoder.decode(data)])

    def _put_reply(self, command: str, kind: FeedKind, name: bytes | None, count: int) -> None:
        channel = None if name is None else self._encoder.decode(name)
        self._queue.put([self._encoder.decode(f"{kind}{command}".encode()), channel, count])

    def _count(self, kind: FeedKind) -> int:
        return sum(_counted_together(other, kind) for other, _ in self._feeds)

    # Reading

    async def read(self, timeout_s: float) -> Response | FeedItem | None:
        """The next entry; None if none comes in time. Raises a ConnectionError if a subscription is cut off from its
        servers for `socket_connect_timeout`, and once the bus is closed."""
        if self._tells_breaks:
            self._tell_break()
        entry = await self._queue.get(timeout_s)
        if entry is None:
            for feed in self._feeds.values():
                feed.check_reachable(self._reach_s)
            if self.bus.closed:
                self._queue.end()
                return await self._queue.get(0)
        return entry

    def end(self) -> None:
        """Tells the reader that the connection is closed."""
        self._queue.end()


def _counted_together(one: FeedKind, other: FeedKind) -> bool:
    """Whether a server counts two kinds together: it has one count for channels and patterns, one for sharded ones."""
    return (one is FeedKind.SHARD) == (other is FeedKind.SHARD)


async def _open_all(feeds: list[RedisFeed]) -> None:
    """Subscribes to all, or to none if one fails."""
    try:
        results = await asyncio.gather(*(feed.open() for feed in feeds), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
    except BaseException:
        for feed in feeds:
            await feed.close()
        raise
