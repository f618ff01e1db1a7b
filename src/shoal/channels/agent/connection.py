"""The agent's connection to its own server: raw bytes in, commands out.

Owns the moment at which the consumer of the bytes is attached: the connection opens before the agent's core is loaded.
The connection itself is in `shoal.wire.connection`; the bytes go to the scanner unparsed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from shoal.errors import ConnectError, ProtocolError, ShoalError
from shoal.logs import get_log
from shoal.wire.commands import Command
from shoal.wire.connection import Connection
from shoal.wire.dial import Dial

WRITE_BUFFER_BYTES_MAX: Final = 16 << 20
"""Bytes that may wait for a server that does not read. Above it the connection is dropped and replaced."""

_log: Final = get_log(__name__)


class AgentConnection:
    """One connection; it opens once."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        username: str | None,
        password: str | None,
        name: str,
        connect_timeout_s: float,
        dial: Dial,
    ) -> None:
        self._where = f"{host}:{port}"
        self._receive: Callable[[bytes], None] | None = None
        self._connection = Connection(
            host,
            port,
            username=username,
            password=password,
            name=name,
            raw=self,
            identify=True,
            dial=dial,
            connect_timeout_s=connect_timeout_s,
            write_buffer_bytes_max=WRITE_BUFFER_BYTES_MAX,
        )

    async def open(self) -> str:
        """Connects, logs in and returns the server's run id; the errors are those of `Connection.open`."""
        await self._connection.open()
        return self._connection.run_id

    @property
    def ended(self) -> asyncio.Event:
        """Set when the connection is lost."""
        return self._connection.ended

    @property
    def error(self) -> Exception | None:
        """Why the connection was lost, if known."""
        return self._connection.error

    def attach(self, receive: Callable[[bytes], None]) -> None:
        """From now on bytes go to `receive`; if it raises, the connection is dropped."""
        self._receive = receive

    def send(self, commands: Sequence[Command]) -> None:
        """Writes commands at once; drops the connection when the server reads nothing."""
        try:
            self._connection.send_now(commands)
        except ConnectError as error:
            self._connection.abort(error)

    def abort(self) -> None:
        """Ends the connection now."""
        self._connection.abort()

    # Called by the connection

    def received(self, data: bytes) -> None:
        """Passes bytes to the consumer."""
        if self._receive is None:
            raise ProtocolError(f"{self._where} sent an unexpected reply")
        try:
            self._receive(data)
        except ShoalError:
            raise
        except Exception:
            _log.exception("agent failed on received bytes, connection restarted", server=self._where)
            raise

    def lost(self, error: Exception | None) -> None:
        """See `ended`."""

    def can_send(self) -> None:
        """Nothing waits for room."""
