"""The connections on which an agent publishes on other servers: one to each other server of the ring.

Owns those connections and their replies. `forward_queues` decides what is sent, in which order and how often; the core
is told when a connection is open, when it is lost and how many commands its server has answered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from random import Random
from typing import Any, Final, Protocol

import hiredis

from shoal.channels.agent.peer_connections import PeerConnections
from shoal.errors import ConnectError
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.plan.ring import Ring
from shoal.wire.address_book import AddressBook
from shoal.wire.commands import Command
from shoal.wire.connection import Connection

_log: Final = get_log(__name__)


class ForwardingCore(Protocol):
    """The part of an agent core that forwards (see `AgentCore`)."""

    def take_forwards(self) -> dict[str, list[Command]]:
        """What is to be sent now."""

    def forward_opened(self, server: str, now: float) -> None:
        """A connection is open."""

    def forward_lost(self, server: str, now: float) -> None:
        """A connection is lost."""

    def forward_replied(self, server: str, count: int, now: float) -> None:
        """A server has answered `count` commands."""


class _Replies:
    """Counts the replies of one server."""

    def __init__(self, server: str, replied: Callable[[int], None]) -> None:
        self._server = server
        self._replied = replied
        self._complained = False
        self.awaited = 0
        self.news = asyncio.Event()
        self.ended = False

    def received(self, frames: list[Any]) -> None:
        """Every frame answers one command. A refused command is not repeated."""
        refused = next((frame for frame in frames if isinstance(frame, hiredis.ReplyError)), None)
        if refused is not None and not self._complained:
            self._complained = True
            _log.error("forwarded message refused", server=self._server, why=str(refused))
        self.awaited -= len(frames)
        self.news.set()
        self._replied(len(frames))

    def lost(self, error: Exception | None) -> None:
        """The connection is lost."""
        self.ended = True
        self.news.set()

    def can_send(self) -> None:
        """The core bounds what is in flight."""


class ForwardLinks:
    """Keeps the connections and sends the core's messages for other servers."""

    def __init__(
        self,
        own: str,
        username: str | None,
        password: str | None,
        limits: Limits,
        core: ForwardingCore,
        random: Random,
        *,
        book: AddressBook,
    ) -> None:
        self._limits = limits
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._links = PeerConnections(
            own, "forward", username, password, limits, random, book, self._make_replies, self._use
        )
        self._connections: dict[str, tuple[Connection, _Replies]] = {}

    def follow(self, ring: Ring) -> None:
        """Connects to the servers of this ring, and to no others."""
        self._links.follow(ring)

    async def close(self) -> None:
        """Ends all connections."""
        await self._links.close()

    def flush(self) -> None:
        """Sends the core's messages for other servers."""
        for server, commands in self._core.take_forwards().items():
            connection, replies = self._connections[server]
            with contextlib.suppress(ConnectError):  # it is lost, which its task reports
                connection.send(commands)
                replies.awaited += len(commands)

    def _make_replies(self, server: str) -> _Replies:
        return _Replies(server, lambda count: self._replied(server, count))

    async def _use(self, server: str, connection: Connection, replies: _Replies) -> None:
        """Returns when the connection is lost, or when the server owes replies and is silent."""
        self._connections[server] = connection, replies
        self._core.forward_opened(server, self._loop.time())
        self.flush()
        try:
            while not replies.ended:
                replies.news.clear()
                owed = replies.awaited > 0
                try:
                    async with asyncio.timeout(self._limits.connect_timeout_s):
                        await replies.news.wait()
                except TimeoutError:
                    if owed:
                        return
        finally:
            del self._connections[server]
            self._core.forward_lost(server, self._loop.time())

    def _replied(self, server: str, count: int) -> None:
        if server in self._connections:
            self._core.forward_replied(server, count, self._loop.time())
            self.flush()
