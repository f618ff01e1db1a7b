"""The address book: how to reach a server from here.

Owns the answer for every connection to a server: the host and port to dial, and the dialer that opens it. A server
announces one address to all clients. Where another one must be dialled (another site, a proxy, network address
translation), an override by the server's id replaces it. The coordinator is named by a URL and is not looked up here.

This version does not encrypt connections. It refuses to dial a server that announces TLS, because the password would
travel in the clear.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from shoal.errors import ConnectError
from shoal.wire.dial import Dial


class HostAddress(Protocol):
    """The address that a host announces (`shoal.plan.ring.ServerAddress`)."""

    @property
    def id(self) -> str:
        """Its id, which never changes."""

    @property
    def host(self) -> str:
        """The name or IP address on which it listens."""

    @property
    def port(self) -> int:
        """The port on which it listens."""

    @property
    def tls(self) -> bool:
        """Whether it expects TLS."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to connect to, and the dialer that opens the connection."""

    host: str
    port: int
    dial: Dial


_NO_OVERRIDES: Final[Mapping[str, Endpoint]] = MappingProxyType({})


class AddressBook:
    """The endpoints of one process. `overrides` are endpoints by the id of the host."""

    def __init__(self, dial: Dial, overrides: Mapping[str, Endpoint] = _NO_OVERRIDES) -> None:
        self._dial = dial
        self._overrides = overrides

    def reach(self, address: HostAddress) -> Endpoint:
        """Return how to reach a host. Opening a connection to a host that expects TLS raises ConnectError."""
        override = self._overrides.get(address.id)
        return override or Endpoint(address.host, address.port, _refuse_tls if address.tls else self._dial)


async def _refuse_tls(protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> asyncio.Transport:
    raise ConnectError(
        f"{host}:{port} expects TLS, which this version does not support",
        do="upgrade Shoal here, or announce the server without TLS",
    )
