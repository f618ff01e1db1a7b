"""Watches whether drained servers hold records that nobody has archived.

Owns the questions to those servers. A server is asked only while it is drained; one of which nothing is known yet, or
that does not answer, counts as one that holds some: its records would be gone with it.
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
"""How often a drained server is asked."""

_log: Final = get_log(__name__)


class RecordWatch:
    """Knows which of the servers that it follows hold records that are not archived."""

    def __init__(self, username: str | None, password: str | None, limits: Limits, book: AddressBook) -> None:
        self._username = username
        self._password = password
        self._limits = limits
        self._book = book
        self._tasks = ServerTasks(self._watch, "records of")
        self._followed: frozenset[ServerAddress] = frozenset()
        self._free: set[str] = set()

    def follow(self, servers: Iterable[ServerAddress]) -> None:
        """Watches these servers from now on, and no others."""
        self._followed = frozenset(servers)
        self._free &= {server.id for server in self._followed}
        self._tasks.follow(self._followed)

    @property
    def holding(self) -> frozenset[str]:
        """Servers that are followed and hold records that are not archived, as far as is known."""
        return frozenset(server.id for server in self._followed if server.id not in self._free)

    async def close(self) -> None:
        """Ends all questions."""
        await self._tasks.close()

    async def _watch(self, server: ServerAddress) -> None:
        told = 0
        while True:
            connection = reader_connection(self._book.reach(server), self._username, self._password, self._limits)
            try:
                await connection.open()
                left = await _unarchived(connection)
                (self._free.discard if left else self._free.add)(server.id)
                if left and not told:
                    _log.warning(
                        "a drained server stays: it holds records that are not archived", server=server.id, records=left
                    )
                told = left
            except (ShoalError, hiredis.ReplyError, OSError, ValueError) as error:
                self._free.discard(server.id)
                _log.debug("a drained server does not say whether it holds records", server=server.id, why=str(error))
            finally:
                connection.abort()
            await asyncio.sleep(ASK_S)


async def _unarchived(connection: Connection) -> int:
    """How many records of a server have entries from after what was archived."""
    until, channels = await connection.ask((b"GET", ARCHIVED_KEY), (b"SMEMBERS", INDEX_KEY))
    until_ms = int(until or 0)
    left = 0
    for channel in channels:
        (newest,) = await connection.ask((b"XREVRANGE", record_key(channel), b"+", b"-", b"COUNT", b"1"))
        left += bool(newest) and int(bytes(newest[0][0]).partition(b"-")[0]) >= until_ms
    return left
