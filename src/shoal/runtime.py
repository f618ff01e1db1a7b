"""The surroundings of a shell: connections, the time of day, random numbers, the coordinator.

Owns the record `Runtime` and its production values. A shell (the asyncio code around a protocol core) takes everything
that reaches outside the process from here, and the monotonic clock from its event loop (`loop.time()`). So the same
shell runs in production and, on virtual time, in the simulator.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random, SystemRandom
from typing import Final, Protocol

from shoal.coordination.interface import Coordinator
from shoal.wire.address_book import AddressBook, Endpoint
from shoal.wire.dial import Dial, find_mismatch, over_tls, tcp
from shoal.wire.tls import TlsSettings, from_environment

TIMER_GRAIN_S: Final = 0.000_5
"""How much later than requested a shell arms its timers. uvloop rounds delays to milliseconds. Without the margin a
timer can fire early; the core then finds nothing due, and the loop spins until the timer is due."""


class ConnectCoordinator(Protocol):
    """Connects to the coordinator at a URL; `timeout_s` bounds each operation on it."""

    def __call__(self, url: str, timeout_s: float, runtime: Runtime) -> Awaitable[Coordinator]:
        """Return a connected coordinator; raises CoordinatorUnavailableError if it does not answer."""


async def _connect_redis(url: str, timeout_s: float, runtime: Runtime) -> Coordinator:
    from shoal.coordination.link import parse_address
    from shoal.coordination.redis import RedisCoordinator  # the simulator never needs it

    dial = runtime.with_tls(parse_address(url, None, None).tls).coordinator_dial
    return await RedisCoordinator.connect(
        url, timeout_s=timeout_s, dial=dial, random=runtime.random, diagnose=find_mismatch
    )


@dataclass(frozen=True, slots=True)
class Runtime:
    """The surroundings of a shell."""

    dial: Dial
    """Opens connections."""
    wall: Callable[[], float]
    """The time of day, in seconds since 1970."""
    monotonic: Callable[[], float]
    """A clock that advances within a turn of the event loop; the loop's own clock may not."""
    random: Random
    """Source of identities and nonces; in production it is the operating system's."""
    connect_coordinator: ConnectCoordinator
    routes: Mapping[str, Endpoint] = field(default_factory=dict)
    """Endpoints by server id, for servers that are not reached at the address they announce."""
    tls: TlsSettings | None = None
    """TLS for all connections, as the cluster's address asks for it; None means only to servers that announce it, with
    the files that the environment names."""

    def with_tls(self, tls: TlsSettings | None) -> Runtime:
        """The same surroundings for a cluster whose address has these settings; None changes nothing."""
        return self if tls is None or tls == self.tls else replace(self, tls=tls)

    @property
    def address_book(self) -> AddressBook:
        """How to reach servers from here."""
        secure = over_tls(self.tls or from_environment(os.environ))
        return AddressBook(self.dial, self.routes, secure=secure, everywhere=self.tls is not None)

    @property
    def coordinator_dial(self) -> Dial:
        """How to open connections to the coordinator."""
        return self.dial if self.tls is None else over_tls(self.tls)

    async def coordinator(self, url: str, timeout_s: float) -> Coordinator:
        """Connect to the coordinator at a URL."""
        return await self.connect_coordinator(url, timeout_s, self)


PRODUCTION: Final = Runtime(
    dial=tcp, wall=time.time, monotonic=time.monotonic, random=SystemRandom(), connect_coordinator=_connect_redis
)
"""The surroundings of a real process. Only process entries use it: `shoal.connect`, commands, jobs, agent, balancer."""
