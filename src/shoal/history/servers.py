"""A conversation with one server, without an event loop.

Owns the log-in, the bounds, and how large pages of entries are. What is asked is in `records` and, for Spark, in
`shoal.pipeline.source.streams`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Self

from shoal.plan.ring import ServerAddress
from shoal.wire.blocking import BlockingConnection

TIMEOUT_S: Final = 10.0
"""How long a server may take to answer."""

FRAME_BYTES_MAX: Final = 1 << 29
"""The largest answer that is taken: the largest entry that a server stores."""


PAGE_ENTRIES: Final = 64
"""Entries that are asked for at first. A page grows while its answers stay small."""

PAGE_ENTRIES_MAX: Final = 8192
"""The most entries in one answer."""

PAGE_BYTES: Final = 4 << 20
"""How large an answer should be at most. Only what follows much smaller entries makes a larger one, once."""

PAGE_GROWTH: Final = 2
TOO_LARGE_SHRINKS: Final = 16
"""How much smaller a page becomes whose answer was larger than may be taken."""


class PageSize:
    """How many entries to ask for next, by what the last ones took."""

    def __init__(self) -> None:
        self.count = PAGE_ENTRIES

    def learn(self, entries: int, size_bytes: int) -> None:
        """So many entries came, and were so large together."""
        fit = PAGE_BYTES * entries // max(size_bytes, 1)
        self.count = max(1, min(fit, self.count * PAGE_GROWTH, PAGE_ENTRIES_MAX))

    def shrink(self) -> bool:
        """The answer was too large; False if it cannot be smaller."""
        if self.count == 1:
            return False
        self.count = max(1, self.count // TOO_LARGE_SHRINKS)
        return True


@dataclass(frozen=True, slots=True)
class Login:
    """Who we are at the servers; the password is not shown."""

    username: str | None
    password: str | None = field(repr=False)


class ServerReader:
    """A connection to one server. Entering it connects; ConnectError if the server cannot be used."""

    def __init__(self, server: ServerAddress, login: Login) -> None:
        self.server = server
        self._login = login
        self._asking = self._new()

    def _new(self) -> BlockingConnection:
        return BlockingConnection(
            self.server.host,
            self.server.port,
            self._login.username,
            self._login.password,
            timeout_s=TIMEOUT_S,
            frame_bytes_max=FRAME_BYTES_MAX,
        )

    def reconnect(self) -> None:
        """Another connection in place of one whose answer could not be taken."""
        self._asking.__exit__(None, None, None)
        self._asking = self._new()
        self._asking.__enter__()

    def __enter__(self) -> Self:
        self._asking.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._asking.__exit__(*details)
