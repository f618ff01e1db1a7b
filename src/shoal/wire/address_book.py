"""The address book: how to reach a server from here.

Owns the answer for every connection that is opened to a server: the host and port to dial, whether TLS is spoken, and
the dialer that opens it. A server announces one address to everybody. Where another one must be dialled (another site,
a proxy, network address translation), an override by the server's id says so. Without overrides the answer is what the
server announced. The coordinator is named by a URL and is not looked up here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from shoal.wire.dial import Dial, tcp


class HostAddress(Protocol):
    """What a host announces (`shoal.plan.ring.ServerAddress`)."""

    @property
    def id(self) -> str:
        """Its id, which never changes."""

    @property
    def host(self) -> str:
        """The name or IP address at which it listens."""

    @property
    def port(self) -> int:
        """The port at which it listens."""

    @property
    def tls(self) -> bool:
        """Whether it expects TLS."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to connect to, and by which dialer. The dialer sees to TLS and proxies."""

    host: str
    port: int
    tls: bool = False
    dial: Dial = tcp


_NONE: Final[Mapping[str, Endpoint]] = MappingProxyType({})


class AddressBook:
    """Answers for one process. `overrides` are endpoints by the id of the host."""

    def __init__(self, dial: Dial = tcp, overrides: Mapping[str, Endpoint] = _NONE) -> None:
        self._dial = dial
        self._overrides = overrides

    def reach(self, address: HostAddress) -> Endpoint:
        """How to reach a host from here."""
        override = self._overrides.get(address.id)
        return override or Endpoint(address.host, address.port, address.tls, self._dial)


AS_ANNOUNCED: Final = AddressBook()
"""The book of a process that reaches every server at the address that it announces."""
