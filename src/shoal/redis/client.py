"""`Redis`: the pub/sub part of redis-py's asyncio client, on a Shoal cluster.

Owns the calls of a client. It publishes through one bus; each PubSub has a bus of its own. The meaning of the
constructor's keywords is in `options`.
"""

from __future__ import annotations

import asyncio
import copy
import warnings
from collections.abc import Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
from redis import asyncio as redis_py

from shoal.bus import Bus, connect
from shoal.channels.agent.peers import PEER_PATTERN
from shoal.limits import DEFAULT_LIMITS, Limits
from shoal.plan.placement import Mode
from shoal.redis.buses import OpenBuses
from shoal.redis.connection import PubSubConnection
from shoal.redis.conversion import Encodable, Encoder, Name, flatten
from shoal.redis.deadlines import DEFAULT_S, Deadline, Deadlines
from shoal.redis.missing_names import missing
from shoal.redis.options import (
    address_of,
    check_database,
    check_keywords,
    read_url,
    tls_of,
    with_login,
    without_retries,
)
from shoal.redis.pubsub import PubSub
from shoal.wire.envelope import HIDDEN_PREFIXES

AGENT_PATTERNS: Final = frozenset({b"*", PEER_PATTERN})
"""Patterns to which agents subscribe on every server of a cluster."""


class Redis:
    """A client of a cluster with redis-py's names. It connects with the first call.

    Without `url` and `host` it uses the local cluster. `host` and `port` are those of the coordinator; `ssl` and the
    files beside it are for all servers. Keywords that only make sense for one Redis server (`unix_socket_path`, `db`,
    `connection_pool` ...) raise a TypeError, unless they have redis-py's default value. `limits` are those of the bus;
    its `connect_timeout_s` then replaces `socket_connect_timeout`.
    """

    def __init__(
        self,
        host: str | None = None,
        port: int | None = None,
        db: int | str | None = 0,
        password: str | None = None,
        *,
        username: str | None = None,
        url: str | None = None,
        encoding: str = "utf-8",
        encoding_errors: str = "strict",
        decode_responses: bool = False,
        socket_timeout: float | None = DEFAULT_S,
        socket_connect_timeout: float | None = DEFAULT_S,
        ssl: bool = False,
        ssl_ca_certs: str | None = None,
        ssl_certfile: str | None = None,
        ssl_keyfile: str | None = None,
        limits: Limits | None = None,
        **others: Any,
    ) -> None:
        check_database(db)
        check_keywords(others)
        tls = tls_of(ssl, ssl_ca_certs, ssl_certfile, ssl_keyfile)
        if url is None:
            self._url = address_of(host, port, username, password, tls)
        else:
            address, options = read_url(url)
            if tls is not None:
                raise TypeError("ssl cannot be combined with a URL: write shoals://...?ca=FILE&cert=FILE&key=FILE")
            if options:
                raise TypeError(f"{', '.join(options)} in a URL: use Redis.from_url")
            self._url = with_login(address, username, password)
        if limits is None and socket_connect_timeout is not None:
            limits = msgspec.structs.replace(DEFAULT_LIMITS, connect_timeout_s=socket_connect_timeout)
        self._limits = limits or DEFAULT_LIMITS
        self._deadlines = Deadlines(socket_timeout, self._limits.connect_timeout_s)
        self._encoder = Encoder(encoding, encoding_errors, decode_responses)
        self._without_retries = without_retries(others)
        self._begin()

    def _begin(self) -> None:
        self._bus: Bus | None = None
        self._buses = OpenBuses(self._deadlines.answer.seconds)
        self._opening = asyncio.Lock()

    @classmethod
    def from_url(cls, url: str, **kwargs: Any) -> Self:
        """A client of the cluster at `shoal://user:password@host:port`, or `shoals://...` with TLS. Options in the URL
        win over keywords."""
        address, options = read_url(url)
        return cls(url=address, **{**kwargs, **options})

    def client(self) -> Self:
        """A new client with the same options. (redis-py's has a single connection; here each client has its own.)"""
        other = copy.copy(self)
        other._begin()
        return other

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing(name, "shoal.redis.Redis", redis_py.Redis)

    # Opening and closing

    async def initialize(self) -> Self:
        """Connects now instead of with the first call."""
        await self._open_bus()
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self.initialize().__await__()

    async def __aenter__(self) -> Self:
        return await self.initialize()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Closes the client and the connections of all its PubSubs, also of those that were dropped. As in redis-py,
        a later call connects again."""
        self._bus = None
        await self._buses.close_all()

    async def close(self, close_connection_pool: bool | None = None) -> None:
        """Deprecated name of `aclose`."""
        warnings.warn("use aclose() instead of close()", DeprecationWarning, stacklevel=2)
        await self.aclose()

    async def _open_bus(self) -> Bus:
        if self._bus is not None:
            return self._bus
        with Deadline(self._deadlines.opening, "the cluster could not be opened"):
            async with self._opening:
                if self._bus is None:
                    self._bus = await connect(self._url, limits=self._limits).open()
                    self._buses.adopt(self, self._bus)
                return self._bus

    async def _open_connection(self) -> PubSubConnection:
        sibling = (await self._open_bus()).sibling()
        with Deadline(self._deadlines.opening, "the cluster could not be opened"):
            connection = PubSubConnection(
                await sibling.open(), self._encoder, self._deadlines, tells_breaks=self._without_retries
            )
        self._buses.adopt(connection, connection.bus)
        return connection

    async def _close_connection(self, connection: PubSubConnection) -> None:
        await self._buses.close(connection.bus)

    def get_encoder(self) -> Encoder:
        """The encoder of this client."""
        return self._encoder

    # Publishing and subscribing

    async def publish(self, channel: Encodable, message: Encodable, **kwargs: Any) -> int:
        """Publishes, and returns the number of subscriptions to which the channel's server passed the message on.

        Waits for the server's confirmation, as redis-py does. The agent beside the server is not counted; while the
        agent is down, the number is one too small.
        """
        name, payload = self._encoder.encode(channel), self._encoder.encode(message)
        bus = self._bus or await self._open_bus()
        with Deadline(self._deadlines.answer, "the message is not confirmed and may still arrive"):
            return max(0, await bus.publish_counted(name, payload) - 1)

    async def spublish(self, shard_channel: Encodable, message: Encodable) -> int:
        """The same as `publish`: every channel of a cluster is sharded."""
        return await self.publish(shard_channel, message)

    def pubsub(self, **kwargs: Any) -> PubSub:
        """A subscriber; `gap_messages=True` reports gaps as messages of type "gap" instead of raising."""
        for ignored in ("shard_hint", "event_dispatcher"):
            kwargs.pop(ignored, None)
        return PubSub(self._open_connection, self._close_connection, self._encoder, **kwargs)

    # Queries

    async def ping(self, **kwargs: Any) -> bool:
        """Checks that every server of the cluster answers; the error names one that does not."""
        bus = await self._open_bus()
        with Deadline(self._deadlines.answer, "a server does not answer"):
            await bus.ask_servers("PING")
        return True

    async def pubsub_channels(self, pattern: Encodable = "*", **kwargs: Any) -> list[Name]:
        """Channels that match the pattern and have subscribers, on any server."""
        replies = await self._ask_servers(b"CHANNELS", self._encoder.encode(pattern))
        names = {name for reply in replies.values() for name in reply}
        return [self._encoder.decode(name) for name in sorted(names) if not name.startswith(HIDDEN_PREFIXES)]

    async def pubsub_numsub(self, *args: Encodable, **kwargs: Any) -> list[tuple[Name, int]]:
        """The number of clients that are subscribed to each channel, without patterns. After the ring changed, clients
        may be subscribed on several servers."""
        names = [self._encoder.encode(name) for name in flatten(args)]
        if not names:
            return []
        replies = await self._ask_servers(b"NUMSUB", *names)
        counts = [dict(zip(reply[::2], reply[1::2], strict=True)) for reply in replies.values()]
        book = (await self._open_bus()).router.book
        found: list[tuple[Name, int]] = []
        for name in names:
            together = sum if book.placement(name).mode is Mode.ALL_PUBLISHERS else max
            found.append((self._encoder.decode(name), together(count[name] for count in counts)))
        return found

    async def pubsub_numpat(self, **kwargs: Any) -> int:
        """The number of patterns with subscribers. Patterns of agents are not counted, even if a client uses the same
        one."""
        counts: list[int] = list((await self._ask_servers(b"NUMPAT")).values())
        return max(0, max(counts) - (len(AGENT_PATTERNS) if len(counts) > 1 else 1))

    async def _ask_servers(self, *args: bytes) -> dict[str, Any]:
        bus = await self._open_bus()
        with Deadline(self._deadlines.answer, "a server does not answer"):
            return await bus.ask_servers(b"PUBSUB", *args)


def from_url(url: str, **kwargs: Any) -> Redis:
    """A client of the cluster at `shoal://user:password@host:port`."""
    return Redis.from_url(url, **kwargs)
