"""`Redis`: the pub/sub part of redis-py's asyncio client, on a Shoal cluster.

Owns the constructor's keywords and their meaning here. The client publishes through one bus; each PubSub has a bus of
its own.
"""

from __future__ import annotations

import asyncio
import warnings
import weakref
from collections.abc import Generator
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from shoal.bus import Bus, connect
from shoal.channels.agent.peers import PEER_PATTERN
from shoal.coordination.link import Address
from shoal.limits import DEFAULT_LIMITS, Limits
from shoal.plan.placement import Mode
from shoal.redis.conversion import Encodable, Encoder, Name, flatten, translated
from shoal.redis.pubsub import PubSub
from shoal.wire.envelope import RESERVED_PREFIX
from shoal.wire.tls import TlsSettings

PORT: Final = 7400
"""The coordinator's default port."""

AGENT_PATTERNS: Final = frozenset({b"*", PEER_PATTERN})
"""Patterns to which agents subscribe on every server of a cluster."""

IGNORED_KEYWORDS: Final = frozenset(
    {
        "auto_close_connection_pool",
        "client_name",
        "driver_info",
        "health_check_interval",
        "legacy_responses",
        "lib_name",
        "lib_version",
        "max_connections",
        "parser_class",
        "protocol",
        "retry",
        "retry_on_error",
        "retry_on_timeout",
        "single_connection_client",
        "socket_keepalive",
        "socket_keepalive_options",
        "socket_read_size",
    }
)
"""redis-py's keywords for connections. They are accepted and ignored: the bus manages its own connections."""


class Redis:
    """A client of a cluster with redis-py's names. It connects with the first call.

    Without `url` and `host` it uses the local cluster. `host` and `port` are those of the coordinator; `ssl` and the
    files beside it are for all servers. Keywords that only make sense for one Redis server (`unix_socket_path`, `db`,
    `connection_pool` ...) raise a TypeError.
    """

    def __init__(
        self,
        host: str | None = None,
        port: int | None = None,
        db: int | str = 0,
        password: str | None = None,
        *,
        username: str | None = None,
        url: str | None = None,
        encoding: str = "utf-8",
        encoding_errors: str = "strict",
        decode_responses: bool = False,
        socket_timeout: float | None = None,
        socket_connect_timeout: float | None = None,
        ssl: bool = False,
        ssl_ca_certs: str | None = None,
        ssl_certfile: str | None = None,
        ssl_keyfile: str | None = None,
        limits: Limits | None = None,
        **ignored: Any,
    ) -> None:
        if int(db) != 0:
            raise TypeError("db has no meaning on a Shoal cluster: channels have no database")
        if unknown := sorted(set(ignored) - IGNORED_KEYWORDS):
            raise TypeError(f"{', '.join(unknown)}: not supported on a Shoal cluster (see docs/redis-surface.md)")
        tls = _tls(ssl, ssl_ca_certs, ssl_certfile, ssl_keyfile)
        if url is not None and tls is not None:
            raise TypeError("ssl cannot be combined with a URL: write shoals://...?ca=FILE&cert=FILE&key=FILE")
        self._url = url if url is not None else _url(host, port, username, password, tls)
        self._encoder = Encoder(encoding, encoding_errors, decode_responses)
        self._limits = limits or DEFAULT_LIMITS
        if socket_connect_timeout is not None:
            self._limits = msgspec.structs.replace(self._limits, connect_timeout_s=socket_connect_timeout)
        self._socket_timeout = socket_timeout
        self._bus: Bus | None = None
        self._opening = asyncio.Lock()
        self._pubsubs: weakref.WeakSet[PubSub] = weakref.WeakSet()

    @classmethod
    def from_url(cls, url: str, **kwargs: Any) -> Self:
        """A client of the cluster at `shoal://user:password@host:port`, or `shoals://...` with TLS."""
        return cls(url=url, **kwargs)

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
        """Closes the client and every PubSub that it made."""
        for pubsub in list(self._pubsubs):
            await pubsub.aclose()
        async with self._opening:
            bus, self._bus = self._bus, None
            if bus is not None:
                with translated():
                    await bus.aclose()

    async def close(self, close_connection_pool: bool | None = None) -> None:
        """Deprecated name of `aclose`."""
        warnings.warn("use aclose() instead of close()", DeprecationWarning, stacklevel=2)
        await self.aclose()

    async def _open_bus(self) -> Bus:
        async with self._opening:
            if self._bus is None:
                bus = connect(self._url, limits=self._limits)
                with translated():
                    await bus.open()
                self._bus = bus
            return self._bus

    async def _pubsub_bus(self) -> Bus:
        bus = (await self._open_bus()).sibling()
        with translated():
            return await bus.open()

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
        bus = await self._open_bus()
        with translated():
            return max(0, await bus.publish_counted(name, payload) - 1)

    def pubsub(self, **kwargs: Any) -> PubSub:
        """A subscriber; `gap_messages=True` reports gaps as messages of type "gap" instead of raising."""
        kwargs.pop("shard_hint", None)
        pubsub = PubSub(self._pubsub_bus, self._encoder, socket_timeout=self._socket_timeout, **kwargs)
        self._pubsubs.add(pubsub)
        return pubsub

    # Queries

    async def ping(self, **kwargs: Any) -> bool:
        """Checks that every server of the cluster answers; the error names one that does not."""
        bus = await self._open_bus()
        with translated():
            await bus.ask_servers("PING")
        return True

    async def pubsub_channels(self, pattern: Encodable = "*", **kwargs: Any) -> list[Name]:
        """Channels that match the pattern and have subscribers, on any server."""
        replies = await self._ask_servers(b"CHANNELS", self._encoder.encode(pattern))
        names = {name for reply in replies.values() for name in reply}
        return [self._encoder.decode(name) for name in sorted(names) if not name.startswith(RESERVED_PREFIX)]

    async def pubsub_numsub(self, *args: Encodable, **kwargs: Any) -> list[tuple[Name, int]]:
        """The number of clients that are subscribed to each channel, without patterns."""
        names = [self._encoder.encode(name) for name in flatten(args)]
        if not names:
            return []
        replies = await self._ask_servers(b"NUMSUB", *names)
        counts = [dict(zip(reply[::2], reply[1::2], strict=True)) for reply in replies.values()]
        book = (await self._open_bus()).router.book
        found: list[tuple[Name, int]] = []
        for name in names:
            together = max if book.placement(name).mode is Mode.ALL_SUBSCRIBERS else sum
            found.append((self._encoder.decode(name), together(count[name] for count in counts)))
        return found

    async def pubsub_numpat(self, **kwargs: Any) -> int:
        """The number of patterns with subscribers. Patterns of agents are not counted, even if a client uses the same
        one."""
        counts: list[int] = list((await self._ask_servers(b"NUMPAT")).values())
        return max(0, max(counts) - (len(AGENT_PATTERNS) if len(counts) > 1 else 1))

    async def _ask_servers(self, *args: bytes) -> dict[str, Any]:
        bus = await self._open_bus()
        with translated():
            return await bus.ask_servers(b"PUBSUB", *args)


def from_url(url: str, **kwargs: Any) -> Redis:
    """A client of the cluster at `shoal://user:password@host:port`."""
    return Redis.from_url(url, **kwargs)


def _tls(ssl: bool, ca: str | None, cert: str | None, key: str | None) -> TlsSettings | None:
    """The TLS that redis-py's keywords ask for. What they leave out comes from the environment."""
    if not ssl:
        if ca or cert or key:
            raise TypeError("the files are for TLS: give ssl=True too")
        return None
    return TlsSettings(ca=ca or "", cert=cert or "", key=key or "")


def _url(
    host: str | None, port: int | None, username: str | None, password: str | None, tls: TlsSettings | None
) -> str | None:
    """The cluster's address from its parts; None (the local cluster) if none is given."""
    if host is None and port is None:
        if username is not None or password is not None or tls is not None:
            raise TypeError("username, password and ssl need a host; or put them into the URL")
        return None
    user = None if password is None else username or "client"
    return Address(host or "127.0.0.1", port or PORT, user, password, tls).url
