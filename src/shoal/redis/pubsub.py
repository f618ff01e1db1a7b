"""`PubSub`: subscribe, get_message, listen and run, as in redis-py.

Owns the state that redis-py exposes: `channels`, `patterns`, subscribe messages with counts, handlers. Each PubSub is a
separate client of the servers, as in redis-py. Gaps raise MessagesLostError or, with `gap_messages=True`, arrive as
messages of type "gap". Retractions are logged; with `gap_messages=True` they arrive as messages of type "retraction".
"""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Self

from redis import exceptions

from shoal.bus import Bus
from shoal.logs import get_log
from shoal.message import Gap, Item, Retraction
from shoal.redis.conversion import (
    Encodable,
    Encoder,
    Handler,
    MessagesLostError,
    Name,
    Response,
    flatten,
    parse_subscriptions,
    translated,
)
from shoal.redis.feeds import Feed, PubSubConnection, ReadQueue

_log: Final = get_log(__name__)

_KINDS: Final = {False: ("subscribe", "unsubscribe"), True: ("psubscribe", "punsubscribe")}


class PubSub:
    """A subscriber, made by `Redis.pubsub()`. It connects with the first `subscribe`.

    `subscribe` returns when the subscription is in force (redis-py returns when the command is sent), so messages
    published afterwards arrive. `unsubscribe` takes effect at once; as in redis-py, `channels` changes when the
    message about it is read.
    """

    PUBLISH_MESSAGE_TYPES = ("message", "pmessage")
    UNSUBSCRIBE_MESSAGE_TYPES = ("unsubscribe", "punsubscribe")
    HEALTH_CHECK_MESSAGE = "redis-py-health-check"

    def __init__(
        self,
        make_bus: Callable[[], Awaitable[Bus]],
        encoder: Encoder,
        *,
        ignore_subscribe_messages: bool = False,
        push_handler_func: Callable[[Response], Any] | None = None,
        gap_messages: bool = False,
        socket_timeout: float | None = None,
    ) -> None:
        self.encoder = encoder
        self.ignore_subscribe_messages = ignore_subscribe_messages
        self.push_handler_func = push_handler_func
        self.gap_messages = gap_messages
        self.connection: PubSubConnection | None = None
        self.channels: dict[Name, Handler | None] = {}
        self.patterns: dict[Name, Handler | None] = {}
        self.pending_unsubscribe_channels: set[Name] = set()
        self.pending_unsubscribe_patterns: set[Name] = set()
        check = encoder.decode(self.HEALTH_CHECK_MESSAGE.encode())
        self.health_check_response = [[encoder.decode(b"pong"), check], check]
        self._make_bus = make_bus
        self._socket_timeout = socket_timeout
        self._feeds: dict[tuple[bool, bytes], Feed] = {}
        self._queue = ReadQueue()
        self._lock = asyncio.Lock()

    # Opening and closing

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def connect(self) -> None:
        """Connects if necessary. After `connection.disconnect()`, all subscribe messages come again."""
        async with self._lock:
            if self.connection is None:
                bus = await self._make_bus()
                self._queue = ReadQueue()
                self.connection = PubSubConnection(
                    bus, self._settled, self._hold_all, self._resume_all, self._socket_timeout
                )
        await self.connection.connect()

    def _settled(self) -> bool:
        return all(feed.settled for feed in self._feeds.values())

    def _hold_all(self) -> None:
        for feed in self._feeds.values():
            feed.hold()
        self._queue.interrupt()

    def _resume_all(self) -> None:
        for count, feed in enumerate(self._feeds.values(), start=1):
            self._put_subscribe_message(_KINDS[feed.pattern][0], feed.name, count)
        for feed in self._feeds.values():
            feed.begin()

    async def aclose(self) -> None:
        """Ends all subscriptions and closes. A task that is reading gets a ConnectionError."""
        async with self._lock:
            connection, self.connection = self.connection, None
            self._feeds = {}
            self.channels, self.patterns = {}, {}
            self.pending_unsubscribe_channels, self.pending_unsubscribe_patterns = set(), set()
            self._queue.end()
            if connection is not None:
                with translated():
                    await connection.bus.aclose()

    async def close(self) -> None:
        """Deprecated name of `aclose`."""
        warnings.warn("use aclose() instead of close()", DeprecationWarning, stacklevel=2)
        await self.aclose()

    async def reset(self) -> None:
        """Deprecated name of `aclose`."""
        warnings.warn("use aclose() instead of reset()", DeprecationWarning, stacklevel=2)
        await self.aclose()

    @property
    def subscribed(self) -> bool:
        """Whether there are subscriptions whose end was not read yet."""
        return bool(self.channels or self.patterns)

    # Subscribing

    async def subscribe(self, *args: Any, **kwargs: Handler) -> None:
        """Subscribes to channels. Arguments are names, lists of names, redis-py's `Subscription`s, or name=handler."""
        subscribed = await self._subscribe(False, parse_subscriptions(args, kwargs))
        self.channels.update(subscribed)
        self.pending_unsubscribe_channels.difference_update(subscribed)

    async def psubscribe(self, *args: Any, **kwargs: Handler) -> None:
        """Subscribes to patterns, as `subscribe` does to channels."""
        subscribed = await self._subscribe(True, parse_subscriptions(args, kwargs))
        self.patterns.update(subscribed)
        self.pending_unsubscribe_patterns.difference_update(subscribed)

    async def _subscribe(self, pattern: bool, wanted: dict[Any, Handler | None]) -> dict[Name, Handler | None]:
        names = {self.encoder.encode(name): handler for name, handler in wanted.items()}
        if not names:
            raise exceptions.ResponseError("wrong number of arguments: name at least one channel or pattern")
        await self.connect()
        async with self._lock:
            if self.connection is None:
                raise exceptions.ConnectionError("the pubsub was closed")
            bus = self.connection.bus
            fresh = [Feed(bus, name, pattern, self._queue) for name in names if (pattern, name) not in self._feeds]
            await _open_all(fresh)
            by_name = {feed.name: feed for feed in fresh}
            for name in names:
                if name in by_name:
                    self._feeds[pattern, name] = by_name[name]
                self._put_subscribe_message(_KINDS[pattern][0], name, len(self._feeds))
            for feed in fresh:
                feed.begin()
        return {self.encoder.decode(name): handler for name, handler in names.items()}

    async def unsubscribe(self, *args: Any) -> None:
        """Unsubscribes from channels; from all of them without arguments."""
        names = await self._unsubscribe(False, flatten(args))
        self.pending_unsubscribe_channels.update(names)

    async def punsubscribe(self, *args: Any) -> None:
        """Unsubscribes from patterns; from all of them without arguments."""
        names = await self._unsubscribe(True, flatten(args))
        self.pending_unsubscribe_patterns.update(names)

    async def _unsubscribe(self, pattern: bool, args: list[Any]) -> list[Name]:
        await self.connect()
        async with self._lock:
            all_names = [name for is_pattern, name in self._feeds if is_pattern == pattern]
            names = [self.encoder.encode(name) for name in args] or all_names
            kind = _KINDS[pattern][1]
            for name in names:
                feed = self._feeds.pop((pattern, name), None)
                if feed is not None:
                    await feed.close()
                    self._queue.remove(feed)
                    for item in feed.rest():
                        self._queue.put(item)
                self._put_subscribe_message(kind, name, len(self._feeds))
            if not names:
                self._queue.put([self.encoder.decode(kind.encode()), None, len(self._feeds)])
        return [self.encoder.decode(name) for name in names]

    def _put_subscribe_message(self, kind: str, name: bytes, count: int) -> None:
        self._queue.put([self.encoder.decode(kind.encode()), self.encoder.decode(name), count])

    async def ping(self, message: Encodable | None = None) -> None:
        """Pings every server; a message of type "pong" follows."""
        data = b"" if message is None else self.encoder.encode(message)
        await self.connect()
        if self.connection is not None:
            with translated():
                await self.connection.bus.ask_servers("PING")
        self._queue.put([self.encoder.decode(b"pong"), self.encoder.decode(data)])

    # Reading

    async def parse_response(self, block: bool = True, timeout: float = 0.0) -> Response | None:  # noqa: ASYNC109
        """The next response, as a server would push it. None if none comes within `timeout`, unless `block`."""
        if self.connection is None:
            raise RuntimeError("pubsub connection not set: did you forget to call subscribe() or psubscribe()?")
        await self.connection.connect()
        response = self._take(await self._queue.get(None if block else timeout))
        while block and response is None:
            await self.connect()
            response = self._take(await self._queue.get(None))
        if response is not None and self.push_handler_func is not None:
            await _call(self.push_handler_func, response)
            return None
        return response

    def _take(self, entry: Item | Response | None) -> Response | None:
        return entry if entry is None or isinstance(entry, list) else self._respond(entry)

    def _respond(self, item: Item) -> Response | None:
        encoder = self.encoder
        pattern = None if item.pattern is None else encoder.name(item.pattern)
        channel = encoder.name(item.channel)
        if isinstance(item, Gap):
            _log.warning("messages lost", channel=item.channel, count=item.count, reason=item.reason)
            if not self.gap_messages:
                raise MessagesLostError(item)
            return [encoder.decode(b"gap"), pattern, channel, item]
        if isinstance(item, Retraction):
            _log.warning("message was false", channel=item.channel, publisher=item.publisher, sequence=item.sequence)
            return [encoder.decode(b"retraction"), pattern, channel, item] if self.gap_messages else None
        if pattern is None:
            return [encoder.decode(b"message"), channel, encoder.decode(item.payload)]
        return [encoder.decode(b"pmessage"), pattern, channel, encoder.decode(item.payload)]

    async def handle_message(
        self, response: Response | None, ignore_subscribe_messages: bool = False
    ) -> dict[str, Any] | None:
        """The message of a response; None if a handler was called with it, or if it is to be ignored."""
        if response is None:
            return None
        kind = response[0].decode() if isinstance(response[0], bytes) else response[0]
        pattern, channel, data = _parts(response)
        message: dict[str, Any] = {"type": kind, "pattern": pattern, "channel": channel, "data": data}
        if kind == "unsubscribe" and channel in self.pending_unsubscribe_channels:
            self.pending_unsubscribe_channels.discard(channel)
            self.channels.pop(channel, None)
        elif kind == "punsubscribe" and channel in self.pending_unsubscribe_patterns:
            self.pending_unsubscribe_patterns.discard(channel)
            self.patterns.pop(channel, None)
        if kind in self.PUBLISH_MESSAGE_TYPES:
            handler = self.channels.get(channel) if kind == "message" else self.patterns.get(pattern)
            if handler is not None:
                await _call(handler, message)
                return None
        elif kind not in ("pong", "gap", "retraction") and (
            ignore_subscribe_messages or self.ignore_subscribe_messages
        ):
            return None
        return message

    async def get_message(
        self,
        ignore_subscribe_messages: bool = False,
        timeout: float | None = 0.0,  # noqa: ASYNC109
    ) -> dict[str, Any] | None:
        """The next message; None if none comes within `timeout` seconds. With `timeout=None` it waits forever."""
        response = await self.parse_response(block=timeout is None, timeout=timeout or 0.0)
        return await self.handle_message(response, ignore_subscribe_messages)

    async def listen(self) -> AsyncIterator[dict[str, Any]]:
        """Messages, as long as there are subscriptions."""
        while self.subscribed:
            message = await self.handle_message(await self.parse_response(block=True))
            if message is not None:
                yield message

    async def run(
        self,
        *,
        exception_handler: Callable[[BaseException, Self], Any] | None = None,
        poll_timeout: float = 1.0,
    ) -> None:
        """Calls handlers with messages until it is cancelled. Every channel and pattern needs a handler."""
        for what, table in (("Channel", self.channels), ("Pattern", self.patterns)):
            for name, handler in table.items():
                if handler is None:
                    raise exceptions.PubSubError(f"{what}: {name!r} has no handler registered")
        await self.connect()
        while True:
            try:
                await self.get_message(ignore_subscribe_messages=True, timeout=poll_timeout)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                if exception_handler is None:
                    raise
                await _call(exception_handler, error, self)
            await asyncio.sleep(0)


def _parts(response: Response) -> tuple[Any, Any, Any]:
    """Pattern, channel and data of a response; None for parts that its type does not have."""
    pattern = response[1] if len(response) == 4 else None
    channel = response[-2] if len(response) > 2 else None
    return pattern, channel, response[-1]


async def _open_all(feeds: list[Feed]) -> None:
    """Subscribes to all, or to none if one fails."""
    results = await asyncio.gather(*(feed.open() for feed in feeds), return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures:
        for feed in feeds:
            await feed.close()
        raise failures[0]


async def _call(function: Callable[..., Any], *args: Any) -> None:
    """Calls a function of the application, which may be a coroutine function."""
    result = function(*args)
    if inspect.isawaitable(result):
        await result
