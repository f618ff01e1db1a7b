"""A conversation with one server, without an event loop.

Owns the log-in and the bounds. What is asked is in `records` and, for Spark, in `shoal.pipeline.source.streams`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Self

from shoal.plan.ring import ServerAddress
from shoal.wire.ask import Asking

TIMEOUT_S: Final = 10.0
"""How long a server may take to answer."""

FRAME_BYTES_MAX: Final = 1 << 29
"""The largest answer that is taken: the largest entry that a server stores."""


@dataclass(frozen=True, slots=True)
class Login:
    """Who we are at the servers; the password is not shown."""

    username: str | None
    password: str | None = field(repr=False)


class ServerReader:
    """A connection to one server. Entering it connects; ConnectError if the server cannot be used."""

    def __init__(self, server: ServerAddress, login: Login) -> None:
        self.server = server
        self._asking = Asking(
            server.host,
            server.port,
            login.username,
            login.password,
            timeout_s=TIMEOUT_S,
            frame_bytes_max=FRAME_BYTES_MAX,
        )

    def __enter__(self) -> Self:
        self._asking.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._asking.__exit__(*details)
