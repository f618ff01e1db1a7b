"""Watches whether drained servers hold records that are not archived.

Owns the queries to those servers. A server is queried only while it is drained. If its answer is unknown, it counts as
holding records, because they would be lost with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import hiredis

from shoal.channels.agent.server_tasks import ServerTasks
from shoal.errors import ShoalError
from shoal.leader.reader_connection import reader_connection
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.plan.ring import ServerAddress
from shoal.wire.address_book import AddressBook
from shoal.wire.connection import Connection
from shoal.wire.record_entry import ARCHIVED_KEY, INDEX_KEY, record_key

ASK_S: Final = 2.0
"""Interval between queries to a drained server."""

_log: Final = get_log(__name__)


class RecordWatch:
    """Knows which of the watched servers hold records that are not archived."""

    def __init__(self, username: str | None, password: str | None, limits: Limits, book: AddressBook) -> None:
        self._username = username
        self._password = password
        self._limits = limits
        self._book = book
        self._tasks = ServerTasks(self._watch, "records of")
        self._followed: frozenset[ServerAddress] = frozenset()
        self._free: set[str] = set()

    def follow(self, servers: Iterable[ServerAddress]) -> None:
        """Watches exactly these servers from now on."""
        self._followed = frozenset(servers)
        self._free &= {server.id for server in self._followed}
        self._tasks.follow(self._followed)

    @property
    def holding(self) -> frozenset[str]:
        """Watched servers that hold records that are not archived, or whose answer is unknown."""
        return frozenset(server.id for server in self._followed if server.id not in self._free)

    async def close(self) -> None:
        """Stops all queries."""
        await self._tasks.close()

    async def _watch(self, server: ServerAddress) -> None:
        logged = 0
        while True:
            connection = reader_connection(self._book.reach(server), self._username, self._password, self._limits)
            try:
                await connection.open()
                left = await _unarchived(connection)
                (self._free.discard if left else self._free.add)(server.id)
                if left and not logged:
                    _log.warning("drained server kept until its records are archived", server=server.id, records=left)
                logged = left
            except (ShoalError, hiredis.ReplyError, OSError, ValueError) as error:
                self._free.discard(server.id)
                _log.debug("records of a drained server unknown", server=server.id, why=str(error))
            finally:
                connection.abort()
            await asyncio.sleep(ASK_S)


async def _unarchived(connection: Connection) -> int:
    """Number of records of a server with entries that are newer than the archive."""
    until, channels = await connection.ask((b"GET", ARCHIVED_KEY), (b"SMEMBERS", INDEX_KEY))
    until_ms = int(until or 0)
    left = 0
    for channel in channels:
        (newest,) = await connection.ask((b"XREVRANGE", record_key(channel), b"+", b"-", b"COUNT", b"1"))
        left += bool(newest) and int(bytes(newest[0][0]).partition(b"-")[0]) >= until_ms
    return left
