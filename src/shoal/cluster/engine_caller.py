"""Starts the engine of a local cluster when a client needs it.

Owns the detection: a client that emits or matches subscribes to the channel on which engines call their clients. So
a server with a subscriber there has a client that waits for an engine. A cluster that never matches pays for one short
question to each server in `ASK_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import hiredis

from shoal.cluster.acl import ADMIN
from shoal.engine.messages import MAIN, call_channel
from shoal.errors import ConnectError, ProtocolError
from shoal.plan.ring import ServerAddress
from shoal.runtime import PRODUCTION
from shoal.wire.connection import Connection
from shoal.wire.dial import over_tls
from shoal.wire.tls import TlsSettings

ASK_S: Final = 0.5
ANSWER_S: Final = 1.0


class EngineCaller:
    """Asks the servers, over one connection to each, until a client waits. Then it calls `start`, once."""

    def __init__(
        self,
        servers: Callable[[], Iterable[ServerAddress]],
        password: Callable[[], str],
        tls: TlsSettings | None,
        start: Callable[[], Awaitable[None]],
    ) -> None:
        self._servers = servers
        self._password = password
        self._tls = tls
        self._start = start
        self._connections: dict[str, Connection] = {}

    async def run(self) -> None:
        """Returns when the engine was started."""
        try:
            while not await self._is_wanted():  # noqa: ASYNC110  # the servers tell only when they are asked
                await asyncio.sleep(ASK_S)
        finally:
            for connection in self._connections.values():
                connection.close()
        await self._start()

    async def _is_wanted(self) -> bool:
        there = {server.id: server for server in self._servers()}
        for gone in self._connections.keys() - there.keys():
            self._connections.pop(gone).close()
        for server in there.values():
            if await self._waiting(server):
                return True
        return False

    async def _waiting(self, server: ServerAddress) -> bool:
        """Whether a client of this server waits for an engine. A server that does not answer is asked again later."""
        try:
            connection = self._connections.get(server.id) or await self._connect(server)
            ((_, count),) = await connection.ask(("PUBSUB", "NUMSUB", call_channel(MAIN)))
        except (ConnectError, ProtocolError, hiredis.ReplyError):
            if (lost := self._connections.pop(server.id, None)) is not None:
                lost.close()
            return False
        return bool(count)

    async def _connect(self, server: ServerAddress) -> Connection:
        connection = Connection(
            server.host,
            server.port,
            username=ADMIN,
            password=self._password(),
            name="shoal-supervisor",
            dial=PRODUCTION.dial if self._tls is None else over_tls(self._tls, ignore_expiry=True),
            connect_timeout_s=ANSWER_S,
            answer_timeout_s=ANSWER_S,
        )
        self._connections[server.id] = connection
        await connection.open()
        return connection
