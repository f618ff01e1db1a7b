"""The address book: how to reach a server from here.

Owns the answer for every connection to a server: the host and port to dial, and the dialer that opens it. A server
announces one address to all clients. Where another one must be dialled (another site, a proxy, network address
translation), an override by the server's id replaces it. The coordinator is named by a URL and is not looked up here.

A process whose cluster address asks for TLS uses TLS for every server, whatever the server announces. Other processes
use it for servers that announce it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

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
    """The endpoints of one process. `overrides` are endpoints by the id of the host; `secure` is the dialer for hosts
    with TLS, and `everywhere` says whether it is used for all hosts."""

    def __init__(
        self,
        dial: Dial,
        overrides: Mapping[str, Endpoint] = _NO_OVERRIDES,
        *,
        secure: Dial,
        everywhere: bool = False,
    ) -> None:
        self._dial = dial
        self._overrides = overrides
        self._secure = secure
        self._everywhere = everywhere

    def reach(self, address: HostAddress) -> Endpoint:
        """Return how to reach a host."""
        override = self._overrides.get(address.id)
        dial = self._secure if address.tls or self._everywhere else self._dial
        return override or Endpoint(address.host, address.port, dial)
