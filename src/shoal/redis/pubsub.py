"""`PubSub`: subscribe, get_message, listen and run, as in redis-py.

Owns the state that redis-py exposes: `channels`, `patterns`, handlers, the shape of messages. Each PubSub is a separate
client of the servers, as in redis-py. Gaps raise MessagesLostError or, with `gap_messages=True`, arrive as messages of
type "gap". Retractions are logged; with `gap_messages=True` they arrive as messages of type "retraction".
"""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from redis import asyncio as redis_py
from redis import exceptions

from shoal.logs import get_log
from shoal.message import Gap, Item, Retraction
from shoal.redis.connection import CHECK_S, PubSubConnection
from shoal.redis.conversion import (
    Encodable,
    Encoder,
    Handler,
    MessagesLostError,
    Name,
    Response,
    Subscription,
    flatten,
    parse_subscriptions,
)
from shoal.redis.deadlines import Deadline
from shoal.redis.feeds import FeedItem, FeedKind
from shoal.redis.missing_names import missing

_log: Final = get_log(__name__)

_UNSUBSCRIBED: Final = {f"{kind}unsubscribe": kind for kind in FeedKind}
_PUBLISHED: Final = {f"{kind}message": kind for kind in FeedKind}
_MESSAGE_TYPES: Final = {kind: name.encode() for name, kind in _PUBLISHED.items()}


class PubSub:
    """A subscriber, made by `Redis.pubsub()`. It connects with the first `subscribe`.

    `subscribe` returns when the subscription is in force (redis-py returns when the command is sent), so messages
    published afterwards arrive. `unsubscribe` takes effect at once; as in redis-py, `channels` changes when the
    message about it is read.
    """

    PUBLISH_MESSAGE_TYPES = tuple(_PUBLISHED)
    UNSUBSCRIBE_MESSAGE_TYPES = tuple(_UNSUBSCRIBED)
    HEALTH_CHECK_MESSAGE = "redis-py-health-check"

    def __init__(
        self,
        open_connection: Callable[[], Awaitable[PubSubConnection]],
        close_connection: Callable[[PubSubConnection], Awaitable[None]],
        encoder: Encoder,
        *,
        ignore_subscribe_messages: bool = False,
        push_handler_func: Callable[[Response], Any] | None = None,
        gap_messages: bool = False,
    ) -> None:
        self.encoder = encoder
        self.ignore_subscribe_messages = ignore_subscribe_messages
        self.push_handler_func = push_handler_func
        self.gap_messages = gap_messages
        self.connection: PubSubConnection | None = None
        self._forget_names()
        check = encoder.decode(self.HEALTH_CHECK_MESSAGE.encode())
        self.health_check_response = [[encoder.decode(b"pong"), check], check]
        self._open_connection = open_connection
        self._close_connection = close_connection
        self._lock = asyncio.Lock()
        self._subscribing = 0

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing(name, "shoal.redis.PubSub", redis_py.client.PubSub)

    def _forget_names(self) -> None:
        self.channels: dict[Name, Handler | None] = {}
        self.patterns: dict[Name, Handler | None] = {}
        self.shard_channels: dict[Name, Handler | None] = {}
        self.pending_unsubscribe_channels: set[Name] = set()
        self.pending_unsubscribe_patterns: set[Name] = set()
        self.pending_unsubscribe_shard_channels: set[Name] = set()

    def _handlers(self, kind: FeedKind) -> dict[Name, Handler | None]:
        """The names of a kind and their handlers."""
        if kind is FeedKind.CHANNEL:
            return self.channels
        return self.patterns if kind is FeedKind.PATTERN else self.shard_channels

    def _ending(self, kind: FeedKind) -> set[Name]:
        """The names of a kind whose unsubscribe message was not read yet."""
        if kind is FeedKind.CHANNEL:
            return self.pending_unsubscribe_channels
        return (
            self.pending_unsubscribe_patterns if kind is FeedKind.PATTERN else self.pending_unsubscribe_shard_channels
        )

    # Opening and closing

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def connect(self) -> None:
        """Connects if necessary. After `connection.disconnect()`, and after the client was closed, all subscribe
        messages come again."""
        await self._connected()

    async def _connected(self) -> PubSubConnection:
        connection = self.connection
        if connection is None or connection.bus.closed:
            async with self._lock:
                connection = self.connection
                fresh = connection is None or connection.bus.closed
                if connection is None or fresh:
                    connection = self.connection = await self._open_connection()
            if fresh:
                try:
                    await self.on_connect(connection)
                except BaseException:
                    await self._disconnect()
                    raise
        await connection.connect()
        return connection

    async def on_connect(self, connection: PubSubConnection) -> None:
        """Subscribes to all names again, on a new connection."""
        for kind, subscribe in (
            (FeedKind.CHANNEL, self.subscribe),
            (FeedKind.PATTERN, self.psubscribe),
            (FeedKind.SHARD, self.ssubscribe),
        ):
            self._ending(kind).clear()
            names = self._handlers(kind)
            if names:
                await subscribe(*(Subscription(name, handler) if handler else name for name, handler in names.items()))

    async def aclose(self) -> None:
        """Ends all subscriptions and closes. A task that is reading gets a ConnectionError."""
        self._forget_names()
        await self._disconnect()  # calls that wait for its servers fail now, and release the lock
        async with self._lock:
            await self._disconnect()
        self._forget_names()

    async def _disconnect(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.end()
            await self._close_connection(connection)

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
        """Whether there are subscriptions whose end was not read yet, or that `subscribe` waits for."""
        return bool(self.channels or self.patterns or self.shard_channels or self._subscribing)

    # Subscribing

    async def subscribe(self, *args: Any, **handlers: Handler) -> None:
        """Subscribes to channels: names, or names with handlers as keywords or `Subscription`s."""
        await self._subscribe(FeedKind.CHANNEL, parse_subscriptions(args, handlers))

    async def psubscribe(self, *args: Any, **handlers: Handler) -> None:
        """Subscribes to patterns, see `subscribe`."""
        await self._subscribe(FeedKind.PATTERN, parse_subscriptions(args, handlers))

    async def ssubscribe(self, *args: Any, target_node: Any = None, **handlers: Handler) -> None:
        """Subscribes to channels, whose messages have the type "smessage". Every channel of a cluster is sharded."""
        await self._subscribe(FeedKind.SHARD, parse_subscriptions(args, handlers))

    async def _subscribe(self, kind: FeedKind, wanted: Mapping[Any, Handler | None]) -> None:
        raw = {self.encoder.encode(name): handler for name, handler in wanted.items()}
        if not raw:
            raise exceptions.ResponseError("wrong number of arguments: name at least one channel or pattern")
        names = {self.encoder.decode(name): handler for name, handler in raw.items()}
        self._subscribing += 1
        try:
            connection = await self._connected()
            known, ending = self._handlers(kind), self._ending(kind)
            before, ended = {name: known[name] for name in names if name in known}, ending.intersection(names)
            known.update(names)
            ending.difference_update(names)
            try:
                with Deadline(connection.answer, "the subscription is not in force"):
                    async with self._lock:
                        await connection.subscribe(kind, raw)
            except BaseException:
                for name in names:
                    known.pop(name, None)
                known.update(before)
                ending.update(ended)
                raise
        finally:
            self._subscribing -= 1

    async def unsubscribe(self, *args: Any) -> None:
        """Unsubscribes from channels; from all of them without arguments."""
        await self._unsubscribe(FeedKind.CHANNEL, args)

    async def punsubscribe(self, *args: Any) -> None:
        """Unsubscribes from patterns; from all of them without arguments."""
        await self._unsubscribe(FeedKind.PATTERN, args)

    async def sunsubscribe(self, *args: Any, target_node: Any = None) -> None:
        """Ends subscriptions of `ssubscribe`; all of them without arguments."""
        await self._unsubscribe(FeedKind.SHARD, args)

    async def _unsubscribe(self, kind: FeedKind, args: tuple[Any, ...]) -> None:
        connection = await self._connected()
        with Deadline(connection.answer, "the subscription has not ended"):
            async with self._lock:
                ended = await connection.unsubscribe(kind, [self.encoder.encode(name) for name in flatten(args)])
        self._ending(kind).update(ended)

    async def ping(self, message: Encodable | None = None) -> None:
        """Pings every server; a message of type "pong" follows."""
        connection = await self._connected()
        await connection.ping(b"" if message is None else self.encoder.encode(message))

    # Reading

    async def parse_response(self, block: bool = True, timeout: float = 0.0) -> Response | None:  # noqa: ASYNC109
        """The next response, as a server would push it. None if none comes within `timeout`, unless `block`."""
        clock = asyncio.get_running_loop().time
        end = float("inf") if block else clock() + timeout
        while True:
            connection = self.connection
            if connection is None and not self.subscribed:
                raise RuntimeError("pubsub connection not set: did you forget to call subscribe() or psubscribe()?")
            if connection is None or not connection.is_connected:
                connection = await self._connected()
            response = self._response(await connection.read(min(CHECK_S, end - clock())))
            if response is not None:
                break
            if clock() >= end:
                return None
        if self.push_handler_func is not None:
            await _call(self.push_handler_func, response)
            return None
        return response

    def _response(self, entry: FeedItem | Response | None) -> Response | None:
        return self._convert(*entry) if isinstance(entry, tuple) else entry

    def _convert(self, kind: FeedKind, item: Item) -> Response | None:
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
        names = [channel] if kind is not FeedKind.PATTERN else [pattern, channel]
        return [encoder.decode(_MESSAGE_TYPES[kind]), *names, encoder.decode(item.payload)]

    async def handle_message(
        self, response: Response | None, ignore_subscribe_messages: bool = False
    ) -> dict[str, Any] | None:
        """The message of a response; None if a handler was called with it, or if it is to be ignored."""
        if response is None:
            return None
        kind = response[0].decode() if isinstance(response[0], bytes) else response[0]
        pattern, channel, data = _parts(response)
        message: dict[str, Any] = {"type": kind, "pattern": pattern, "channel": channel, "data": data}
        if kind in _PUBLISHED:
            handler = self._handlers(_PUBLISHED[kind]).get(channel if pattern is None else pattern)
            if handler is not None:
                await _call(handler, message)
                return None
            return message
        if kind in _UNSUBSCRIBED and channel in (ending := self._ending(_UNSUBSCRIBED[kind])):
            ending.discard(channel)
            self._handlers(_UNSUBSCRIBED[kind]).pop(channel, None)
        is_confirmation = kind.endswith("subscribe")
        return None if is_confirmation and (ignore_subscribe_messages or self.ignore_subscribe_messages) else message

    async def get_message(
        self,
        ignore_subscribe_messages: bool = False,
        timeout: float | None = 0.0,  # noqa: ASYNC109
    ) -> dict[str, Any] | None:
        """The next message; None if none comes within `timeout` seconds. With `timeout=None` it waits forever."""
        response = await self.parse_response(block=timeout is None, timeout=timeout or 0.0)
        return await self.handle_message(response, ignore_subscribe_messages)

    async def get_sharded_message(
        self,
        ignore_subscribe_messages: bool = False,
        timeout: float | None = 0.0,  # noqa: ASYNC109
        target_node: Any = None,
    ) -> dict[str, Any] | None:
        """The same as `get_message`: one reader gets the messages of all subscriptions."""
        return await self.get_message(ignore_subscribe_messages, timeout)

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
        pubsub: Self | None = None,
    ) -> None:
        """Calls handlers with messages, of another PubSub if one is given, until it is cancelled. Every channel and
        pattern needs a handler."""
        source = pubsub or self
        for what, table in (("Channel", self.channels), ("Pattern", self.patterns)):
            for name, handler in table.items():
                if handler is None:
                    raise exceptions.PubSubError(f"{what}: {name!r} has no handler registered")
        await self.connect()
        while True:
            try:
                await source.get_message(ignore_subscribe_messages=True, timeout=poll_timeout)
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


async def _call(function: Callable[..., Any], *args: Any) -> None:
    """Calls a function of the application, which may be a coroutine function."""
    result = function(*args)
    if inspect.isawaitable(result):
        await result
