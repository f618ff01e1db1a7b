"""Reads the load windows of a Spark job.

Owns the windows that were read and not taken yet. `shoal.balance.window_source` decides which windows are used.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from shoal.coordination.link import Address
from shoal.errors import ProtocolError
from shoal.leader.reader_connection import reader_connection
from shoal.leader.stream_follower import follow_stream, stream_entries
from shoal.limits import Limits
from shoal.load.kinds import Kinds
from shoal.load.window import LoadWindow
from shoal.load.window_feed import ALIVE_KEY, FEED_KEY, read_command, read_window
from shoal.load_kinds import KINDS
from shoal.logs import get_log
from shoal.runtime import Runtime
from shoal.wire.address_book import Endpoint
from shoal.wire.connection import Connection

READ_WINDOWS: Final = 4
"""Windows in one reply; the next reply has the following ones."""

KEPT_MAX: Final = 64
"""Windows that wait to be taken. Above it the oldest is dropped; the balancer uses its own window instead."""

_log: Final = get_log(__name__)


class WindowReader:
    """Follows the feed from its end. `news` is set when a window was read."""

    def __init__(
        self,
        address: Address,
        limits: Limits,
        news: asyncio.Event,
        runtime: Runtime,
        kinds: Kinds = KINDS,
    ) -> None:
        self._kinds = kinds
        self._address = address
        self._limits = limits
        self._news = news
        self._runtime = runtime
        self._windows: deque[LoadWindow] = deque(maxlen=KEPT_MAX)
        self.alive: bool | None = None
        """Whether the job is alive; None while the coordinator's server cannot be reached."""

    def take(self) -> list[LoadWindow]:
        """The windows that were read since the last call."""
        windows = list(self._windows)
        self._windows.clear()
        return windows

    async def run(self) -> None:
        """Reads until it is cancelled; logs errors and reconnects."""
        where = self._address
        await follow_stream(
            lambda: reader_connection(
                Endpoint(where.host, where.port, dial=self._runtime.coordinator_dial),
                where.username,
                where.password,
                self._limits,
            ),
            self._limits,
            _newest,
            self._read_once,
            what="the feed of load windows from Spark",
            random=self._runtime.random,
            lost=self._lost,
        )

    def _lost(self) -> None:
        """The connection is lost, so it is unknown whether the job is alive."""
        self.alive = None

    async def _read_once(self, connection: Connection, position: bytes) -> bytes:
        """Reads new windows; returns the new position."""
        alive, found = await connection.ask((b"GET", ALIVE_KEY), read_command(position, READ_WINDOWS))
        self.alive = alive is not None
        for id, fields in stream_entries(found):
            position = id
            try:
                self._windows.append(read_window(fields, self._kinds))
                self._news.set()
            except ProtocolError as error:
                _log.warning("unreadable load window from Spark dropped", why=str(error))
        return position


async def _newest(connection: Connection) -> bytes:
    """The current end of the feed; its beginning if there is no feed yet."""
    (reply,) = await connection.ask((b"XREVRANGE", FEED_KEY, b"+", b"-", b"COUNT", b"1"))
    found = stream_entries(reply)
    return found[0][0] if found else b"0-0"
