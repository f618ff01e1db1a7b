"""Reads the telemetry streams of all servers and stores.

Owns one reading task for each of them, and a bounded buffer of the records. Does not decode them: `shoal.load.fold`
does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import hiredis
import pyarrow as pa

from shoal.channels.agent.server_tasks import ServerTasks
from shoal.errors import ProtocolError
from shoal.leader.reader_connection import reader_connection
from shoal.leader.stream_follower import follow_stream, stream_entries
from shoal.limits import Limits
from shoal.load.record import DATA_FIELD, ID_FIELD
from shoal.load.reports import BATCH_SCHEMA, entries_to_batch
from shoal.plan.ring import ServerAddress
from shoal.runtime import Runtime
from shoal.wire.connection import Connection
from shoal.wire.envelope import TELEMETRY_KEY

READ_RECORDS: Final = 16
"""Records in one reply; the next reply has the following ones."""

BUFFER_BYTES_MAX: Final = 256 * 1024 * 1024
"""Size of the buffer. Above it the oldest records are dropped, and their seconds are missing in the window."""


class TelemetryReader:
    """Follows the streams of servers, each from its end at the first contact. `news` is set when records were read."""

    def __init__(
        self,
        username: str | None,
        password: str | None,
        limits: Limits,
        news: asyncio.Event,
        runtime: Runtime,
    ) -> None:
        self._username = username
        self._password = password
        self._limits = limits
        self._news = news
        self._runtime = runtime
        self._tasks = ServerTasks(self._read, "telemetry")
        self._batches: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self.dropped = 0
        """Number of batches that did not fit the buffer."""

    def follow(self, servers: Iterable[ServerAddress]) -> None:
        """Reads exactly these servers from now on."""
        self._tasks.follow(servers)

    def take(self) -> pa.Table:
        """The records that were read since the last call."""
        batches = list(self._batches)
        self._batches.clear()
        self._bytes = 0
        return pa.Table.from_batches(batches, BATCH_SCHEMA)

    async def close(self) -> None:
        """Closes all connections."""
        await self._tasks.close()

    async def _read(self, server: ServerAddress) -> None:
        await follow_stream(
            lambda: reader_connection(
                self._runtime.address_book.reach(server), self._username, self._password, self._limits
            ),
            self._limits,
            _newest,
            self._read_once,
            what=f"the telemetry of {server.id}",
            random=self._runtime.random,
        )

    async def _read_once(self, connection: Connection, position: bytes) -> bytes:
        """Reads new records; returns the new position."""
        command = (b"XREAD", b"COUNT", b"%d" % READ_RECORDS, b"STREAMS", TELEMETRY_KEY, position)
        (reply,) = await connection.ask(command)
        found = _entries(reply)
        if not found:
            return position
        entries = [(fields.get(ID_FIELD, b""), fields.get(DATA_FIELD, b"")) for _, fields in found]
        batch = entries_to_batch(entries, self._runtime.wall())
        self._batches.append(batch)
        self._bytes += batch.nbytes
        while self._bytes > BUFFER_BYTES_MAX and len(self._batches) > 1:
            self._bytes -= self._batches.popleft().nbytes
            self.dropped += 1
        self._news.set()
        return found[-1][0]


async def _newest(connection: Connection) -> bytes:
    """The current end of the stream; its beginning if there is no stream yet."""
    with contextlib.suppress(hiredis.ReplyError):
        (reply,) = await connection.ask((b"XINFO", b"STREAM", TELEMETRY_KEY))
        return bytes(reply[b"last-generated-id"])
    return b"0-0"


def _entries(reply: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """The entries in the reply to XREAD: their ids and fields."""
    if reply is None:
        return []
    try:
        entries = reply[TELEMETRY_KEY] if isinstance(reply, dict) else dict(reply)[TELEMETRY_KEY]
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"a reply to XREAD is invalid: {error}") from error
    return stream_entries(entries)
