"""A blocking connection to one server, for code without an event loop.

Owns the login, the limits on answers, and the size of pages. The commands are in `record_reader` and, for the Spark
source, in `shoal.pipeline.source.streams`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Self

from shoal.plan.ring import ServerAddress
from shoal.runtime import PRODUCTION, Runtime
from shoal.wire.blocking_connection import BlockingConnection
from shoal.wire.tls import TlsSettings

TIMEOUT_S: Final = 10.0
"""How long a server may take to answer."""

FRAME_BYTES_MAX: Final = 1 << 29
"""Largest answer accepted: the largest entry that a server can store."""

PAGE_ENTRIES: Final = 64
"""Entries in the first page. Pages grow while their answers stay small."""

PAGE_ENTRIES_MAX: Final = 8192
"""Most entries in one page."""

PAGE_BYTES: Final = 4 << 20
"""Target size of an answer. One answer may be larger, when large entries follow much smaller ones."""

PAGE_GROWTH: Final = 2
TOO_LARGE_SHRINKS: Final = 16
"""The next page is smaller by this factor when an answer was over `FRAME_BYTES_MAX`."""


class PageSize:
    """Chooses how many entries to request next, by the size of the previous page."""

    def __init__(self) -> None:
        self.count = PAGE_ENTRIES

    def learn(self, entries: int, size_bytes: int) -> None:
        """Adapts to the page that was just received."""
        fit = PAGE_BYTES * entries // max(size_bytes, 1)
        self.count = max(1, min(fit, self.count * PAGE_GROWTH, PAGE_ENTRIES_MAX))

    def shrink(self) -> bool:
        """Requests fewer entries because the answer was too large; False if one entry is already the request."""
        if self.count == 1:
            return False
        self.count = max(1, self.count // TOO_LARGE_SHRINKS)
        return True


@dataclass(frozen=True, slots=True)
class Login:
    """User and password for the servers, and TLS; `repr` hides the password. Spark's workers read the files of `tls` at
    the same paths."""

    username: str | None
    password: str | None = field(repr=False)
    tls: TlsSettings | None = None


class ServerReader:
    """A connection to one server. `with` connects and logs in; ConnectError if the server cannot be used."""

    def __init__(self, server: ServerAddress, login: Login, runtime: Runtime = PRODUCTION) -> None:
        self.server = server
        self._login = login
        self._runtime = runtime.with_tls(login.tls)
        self._asking = self._new()

    def _new(self) -> BlockingConnection:
        endpoint = self._runtime.address_book.reach(self.server)
        return BlockingConnection(
            endpoint.host,
            endpoint.port,
            self._login.username,
            self._login.password,
            timeout_s=TIMEOUT_S,
            dial=endpoint.dial,
            frame_bytes_max=FRAME_BYTES_MAX,
        )

    def reconnect(self) -> None:
        """Replaces a connection whose answer was too large to read."""
        self._asking.__exit__(None, None, None)
        self._asking = self._new()
        self._asking.__enter__()

    def __enter__(self) -> Self:
        self._asking.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._asking.__exit__(*details)


def parse_info(text: bytes) -> dict[str, str]:
    """The fields of an answer to INFO, by name."""
    return {name: value for name, _, value in (line.partition(":") for line in text.decode().splitlines())}
