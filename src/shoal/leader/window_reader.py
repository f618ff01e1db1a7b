"""Reads the load windows that a Spark job hands over, as they come.

Owns what was read and not taken yet. Which windows are used is decided
in `shoal.balance.window_source`.
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
"""Windows in one answer. What is more comes with the next."""

KEPT_MAX: Final = 64
"""Windows that wait to be taken. Beyond, the oldest is dropped: the balancer has its own."""

_log: Final = get_log(__name__)


class WindowReader:
    """Follows the feed from its end. `news` is set when something was read."""

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
        """Whether the job says that it lives; None while nobody can be asked."""

    def take(self) -> list[LoadWindow]:
        """What was read since the last call."""
        windows = list(self._windows)
        self._windows.clear()
        return windows

    async def run(self) -> None:
        """Reads until it is cancelled; trouble is reported and waited out."""
        where = self._address
        await follow_stream(
            lambda: reader_connection(
                Endpoint(where.host, where.port, dial=self._runtime.dial), where.username, where.password, self._limits
            ),
            self._limits,
            _newest,
            self._read_once,
            what="the feed of load windows from Spark",
            random=self._runtime.random,
            lost=self._lost,
        )

    def _lost(self) -> None:
        """Nobody can be asked now."""
        self.alive = None

    async def _read_once(self, connection: Connection, position: bytes) -> bytes:
        """Reads what is new; returns how far it came."""
        alive, found = await connection.ask((b"GET", ALIVE_KEY), read_command(position, READ_WINDOWS))
        self.alive = alive is not None
        for id, fields in stream_entries(found):
            position = id
            try:
                self._windows.append(read_window(fields, self._kinds))
                self._news.set()
            except ProtocolError as error:
                _log.warning("a load window of Spark cannot be read", why=str(error))
        return position


async def _newest(connection: Connection) -> bytes:
    """The end of the feed as it is now; its beginning if there is none yet."""
    (reply,) = await connection.ask((b"XREVRANGE", FEED_KEY, b"+", b"-", b"COUNT", b"1"))
    found = stream_entries(reply)
    return found[0][0] if found else b"0-0"
