"""A bus's connection to one server, from the wait before it is opened to its end.

Owns the delay between attempts to reach a server and the one report of the end. Knows nothing of what is
carried: frames go to the adapter, the adapter sends. The connection itself is in `shoal.wire.connection`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any, Protocol

from shoal.channels.client.context import Connect
from shoal.coordination.link import Address
from shoal.errors import ConnectError, ProtocolError, ShoalError
from shoal.limits import Limits
from shoal.wire.address_book import AS_ANNOUNCED, AddressBook
from shoal.wire.backoff import Backoff
from shoal.wire.commands import Command
from shoal.wire.connection import Connection


class Owner(Protocol):
    """Who a connection reports to."""

    def connection_opened(self, connection: BusConnection) -> None:
        """It is open, authenticated and speaks RESP3."""

    def connection_received(self, connection: BusConnection, frames: list[Any]) -> None:
        """Frames in the order of the wire."""

    def connection_gone(self, connection: BusConnection, error: Exception | None) -> None:
        """It is over, or never came to be: once for each connection that was not cancelled."""


class BusConnection:
    """An attempt to reach a server, and the connection that comes of it. Used once."""

    def __init__(self, server: str, owner: Owner) -> None:
        self.server = server
        self.open = False
        self.proved = False
        self._owner = owner
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, connection: Connection, delay_s: float) -> None:
        """Begins the attempt after a delay; the owner hears how it went."""
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

    def send(self, commands: Sequence[Command]) -> None:
        """Sends commands; a server that reads so slowly that they do not fit is cut off, which is reported
        later.
        """
        if self._connection is None or not self.open:
            return
        try:
            self._connection.send_now(commands)
        except ConnectError:
            self._connection.abort()

    def cancel(self) -> asyncio.Task[None] | None:
        """Gives up an attempt that has not come to anything, without a report; the task, to be waited for."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        return task

    def abort(self) -> None:
        """Ends an open connection now; the owner hears of it."""
        if self._connection is not None and self.open:
            self._connection.abort()

    def close(self) -> None:
        """Ends an open connection when all has been sent; the owner hears of it."""
        if self._connection is not None and self.open:
            self._connection.close()

    # Called by the connection

    def received(self, frames: list[Any]) -> None:
        """Frames from the server."""
        self.proved = True
        self._owner.connection_received(self, frames)

    def lost(self, error: Exception | None) -> None:
        """The connection has ended."""
        self.open = False
        self._owner.connection_gone(self, error)

    def can_send(self) -> None:
        """Nothing waits here for room: what is unconfirmed is bounded by `publish_buffer_*`."""


class Dialer:
    """Begins connections; a server that was tried before is tried again after a delay."""

    def __init__(
        self, address: Address, name: str, limits: Limits, random: Random, book: AddressBook = AS_ANNOUNCED
    ) -> None:
        self._address = address
        self._name = name
        self._limits = limits
        self._random = random
        self._book = book
        self._backoffs: dict[str, Backoff] = {}

    def dial(self, to: Connect, owner: Owner) -> BusConnection:
        """Begins an attempt to reach a server, as the coordinator's user."""
        limits = self._limits
        backoff = self._backoffs.get(to.server)
        delay_s = 0.0 if backoff is None else backoff.next_delay_s()
        if backoff is None:
            self._backoffs[to.server] = Backoff(
                reconnect_delay_s_min=limits.reconnect_delay_s_min,
                reconnect_delay_s_max=limits.reconnect_delay_s_max,
                random=self._random,
            )
        reached = BusConnection(to.server, owner)
        endpoint = self._book.reach(to.address)
        connection = Connection(
            endpoint.host,
            endpoint.port,
            username=self._address.username,
            password=self._address.password,
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
        """The server has proved to work: the next delay is a short one."""
        self._backoffs[server].reset()


def is_our_fault(error: Exception | None) -> bool:
    """Whether a connection ended by an error that is neither the network's nor the peer's."""
    return error is not None and not isinstance(error, ConnectError | ProtocolError | OSError)
