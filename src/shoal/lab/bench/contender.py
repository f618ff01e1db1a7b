"""The contenders of `shoal bench channels`: client libraries that all do the same work.

Owns their names, their interface, and the choice by name. The loops that use it are in `contender_worker`, the same for
all contenders.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable
from typing import Final, Protocol, cast

import msgspec

from shoal.coordination.link import parse_address
from shoal.errors import ShoalError
from shoal.wire.tls import TlsSettings

REDIS_PY: Final = "redis-py"
RAW: Final = "raw"
SHOAL: Final = "shoal"
CONTENDERS: Final = (REDIS_PY, RAW, SHOAL)
_MODULES: Final = {REDIS_PY: "client_redis_py", RAW: "client_raw", SHOAL: "client_shoal"}


class BenchError(ShoalError):
    """A measurement could not be made."""


class BenchTarget(msgspec.Struct, frozen=True):
    """Where to publish: one server of the cluster, and the address for a bus."""

    host: str
    port: int
    username: str
    password: str
    url: str

    @property
    def tls(self) -> TlsSettings | None:
        """The TLS of all connections; None without TLS."""
        return parse_address(self.url, None, None).tls


class BenchReceiver(Protocol):
    """A subscription on its own connection."""

    async def take(self, count: int) -> None:
        """Returns when `count` more messages were delivered to the application."""

    async def close(self) -> None:
        """Closes the subscription and its connection."""


class BenchPublisher(Protocol):
    """A publisher."""

    def publish(self, channel: str, payload: bytes) -> Awaitable[object]:
        """Publishes a message. The result is awaited until the server has confirmed it."""

    async def publish_batch(self, channel: str, payload: bytes, count: int) -> None:
        """Publishes `count` messages as one pipeline; returns when the server has confirmed all of them."""

    async def close(self) -> None:
        """Closes the publisher."""


class ClientLibrary(Protocol):
    """A client library; the modules `client_*` implement it."""

    async def open_receivers(self, target: BenchTarget, channel: str, connections: int) -> list[BenchReceiver]:
        """Subscribes this many times, each on its own connection; returns when all subscriptions are in force."""

    async def open_publisher(self, target: BenchTarget, tasks: int) -> BenchPublisher:
        """A publisher for a number of concurrent tasks."""

    async def open_both(self, target: BenchTarget, channel: str) -> tuple[BenchReceiver, BenchPublisher]:
        """A subscription and a publisher of one application. The library may use one connection for both."""


def find(name: str) -> ClientLibrary:
    """The client library of a contender. Only its own module is imported."""
    return cast(ClientLibrary, importlib.import_module(f"shoal.lab.bench.{_MODULES[name]}"))
