"""What a contender must be able to do, so that all of them do the same work.

Owns the two interfaces and the choice by name. The loops that drive a contender are in `worker`; they are the
same for all.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable
from typing import Final, Protocol, cast

import msgspec

from shoal.errors import ShoalError

REDIS_PY: Final = "redis-py"
RAW: Final = "raw"
SHOAL: Final = "shoal"
CONTENDERS: Final = (REDIS_PY, RAW, SHOAL)
_MODULES: Final = {REDIS_PY: "of_redis_py", RAW: "of_raw", SHOAL: "of_shoal"}


class BenchError(ShoalError):
    """A measurement could not be made."""


class Target(msgspec.Struct, frozen=True):
    """Where to publish: one server of the cluster, and the address that a bus takes."""

    host: str
    port: int
    username: str
    password: str
    url: str


class Ear(Protocol):
    """A subscription on a connection of its own."""

    async def take(self, count: int) -> None:
        """Returns when the application has been handed `count` more messages."""

    async def close(self) -> None:
        """Ends the subscription and its connection."""


class Mouth(Protocol):
    """A publisher."""

    def publish(self, channel: str, payload: bytes) -> Awaitable[object]:
        """Publishes a message; awaiting it ends when the server has confirmed that message."""

    async def publish_batch(self, channel: str, payload: bytes, count: int) -> None:
        """Publishes `count` messages as one pipeline; returns when the server has confirmed all of them."""

    async def close(self) -> None:
        """Ends the publisher."""


class Contender(Protocol):
    """A client library under measurement; the modules `of_*` are contenders."""

    async def listen(self, target: Target, channel: str, connections: int) -> list[Ear]:
        """Subscribes that many times, each on a connection of its own; returns when all are in force."""

    async def speak(self, target: Target, tasks: int) -> Mouth:
        """A publisher for that many tasks at a time."""

    async def talk(self, target: Target, channel: str) -> tuple[Ear, Mouth]:
        """A subscription and a publisher in one application, which the library may serve by one connection."""


def find(name: str) -> Contender:
    """The contender of this name. Only its own module is imported."""
    return cast(Contender, importlib.import_module(f"shoal.bench.{_MODULES[name]}"))
