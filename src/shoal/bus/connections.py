"""A bus's connection to one server, from the delay before it opens to its end.

Owns the delay between connection attempts, and reports each end exactly once. It does not interpret frames: it passes
them to the shell, and the shell sends. The connection itself is in `shoal.wire.connection`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, Protocol, TypeAlias

from shoal.channels.client.context import Connect
from shoal.errors import ConnectError, ProtocolError, ShoalError
from shoal.limits import Limits
from shoal.wire.address_book import AddressBook
from shoal.wire.backoff import Backoff
from shoal.wire.commands import Commands
from shoal.wire.connection import Connection


class ConnectionOwner(Protocol):
    """Receives the events of a connection."""

    def connection_opened(self, connection: BusConnection) -> None:
        """The connection is open, authenticated and uses RESP3."""

    def connection_received(self, connection: BusConnection, frames: list[Any]) -> None:
        """Frames arrived, in wire order."""

    def connection_gone(self, connection: BusConnection, error: Exception | None) -> None:
        """The connection ended or could not be opened. Called once for each connection that was not cancelled."""


class BusConnection:
    """An attempt to reach a server, and the resulting connection. Used once."""

    def __init__(self, server: str, owner: ConnectionOwner, login: Login) -> None:
        self.server = server
        self.login = login
        self.open = False
        self.proved = False
        self._owner = owner
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, connection: Connection, delay_s: float) -> None:
        """Start the attempt after a delay. The owner gets the result."""
        self._connection = connection
        self._task = asyncio.create_task(self._run(connection, delay_s), name=f"connect to {self.server}")

    async def _run(self, connection: Connection, delay_s: float) -> None:
        try:
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            await connection.open()
        except (ShoalError, OSError) as error:
            self._task = None
            self._owner.connection_gone(self, error)
            return
        self._task = None
        self.open = True
        self._owner.connection_opened(self)

    def send(self, commands: Commands) -> None:
        """Send commands. If the server reads too slowly to take them, the connection is cut, and the end is reported
        later.
        """
        if self._connection is None or not self.open:
            return
        try:
            self._connection.send_now(commands)
        except ConnectError:
            self._connection.abort()

    def cancel(self) -> asyncio.Task[None] | None:
        """Cancel a pending attempt without a report; return its task, to be awaited."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        return task

    def abort(self) -> None:
        """Abort an open connection; the owner is notified."""
        if self._connection is not None and self.open:
            self._connection.abort()

    def close(self) -> None:
        """Close an open connection after sending everything; the owner is notified."""
        if self._connection is not None and self.open:
            self._connection.close()

    # Called by the connection

    def received(self, frames: list[Any]) -> None:
        """Pass on frames from the server."""
        self.proved = True
        self._owner.connection_received(self, frames)

    def lost(self, error: Exception | None) -> None:
        """Report the end of the connection."""
        self.open = False
        self._owner.connection_gone(self, error)

    def can_send(self) -> None:
        """Do nothing: unconfirmed data is bounded by `publish_buffer_*`, so no sender waits here."""


Login: TypeAlias = tuple[str | None, str | None]
"""User and password."""


class Dialer:
    """Opens connections, with a delay for servers that were tried before. `login` is asked for each of them."""

    def __init__(
        self, login: Callable[[], Login], name: str, limits: Limits, random: Random, book: AddressBook
    ) -> None:
        self._login = login
        self._name = name
        self._limits = limits
        self._random = random
        self._book = book
        self._backoffs: dict[str, Backoff] = {}

    def dial(self, to: Connect, owner: ConnectionOwner) -> BusConnection:
        """Start an attempt to reach a server, with the user and password of the cluster."""
        limits = self._limits
        backoff = self._backoffs.get(to.server)
        delay_s = 0.0 if backoff is None else backoff.next_delay_s()
        if backoff is None:
            self._backoffs[to.server] = Backoff(
                reconnect_delay_s_min=limits.reconnect_delay_s_min,
                reconnect_delay_s_max=limits.reconnect_delay_s_max,
                random=self._random,
            )
        login = self._login()
        reached = BusConnection(to.server, owner, login)
        endpoint = self._book.reach(to.address)
        connection = Connection(
            endpoint.host,
            endpoint.port,
            username=login[0],
            password=login[1],
            name=self._name,
            receiver=reached,
            dial=endpoint.dial,
            connect_timeout_s=limits.connect_timeout_s,
            frame_bytes_max=limits.command_reply_bytes_max,
            read_slice_bytes=limits.read_slice_bytes,
        )
        reached.start(connection, delay_s)
        return reached

    def reset(self, server: str) -> None:
        """Reset the delay of a server that works."""
        self._backoffs[server].reset()


def is_internal_error(error: Exception | None) -> bool:
    """Return whether a connection ended because of a bug here, and not because of the network or the server."""
    return error is not None and not isinstance(error, ConnectError | ProtocolError | OSError)
