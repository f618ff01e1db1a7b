"""Reads what agents report: the telemetry streams of all servers, as they grow.

Owns one connection to each server, when it is made again, and a bounded buffer of what was read. Understands nothing of
it: `shoal.balance.fold` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Iterable
from random import Random
from typing import Any, Final

import hiredis
import pyarrow as pa

from shoal.balance.reports import BATCH_SCHEMA, entries_to_batch
from shoal.channels.telemetry import DATA_FIELD, ID_FIELD
from shoal.cluster.asking import Asking
from shoal.errors import ProtocolError, ShoalError
from shoal.limits import Limits
from shoal.logs import get_log
from shoal.plan.ring import ServerAddress
from shoal.wire.backoff import Backoff
from shoal.wire.envelope import TELEMETRY_KEY

POLL_S: Final = 0.2
"""How often a stream is asked for news; agents write once a second."""

READ_RECORDS: Final = 16
"""Records in one answer. What is more comes with the next."""

BUFFER_BYTES_MAX: Final = 256 * 1024 * 1024
"""What may wait to be folded. Beyond it the oldest is dropped: its seconds are missing in the window."""

_log: Final = get_log(__name__)


class TelemetryReader:
    """Follows the streams of some servers, from when it first meets each. `news` is set when something was read."""

    def __init__(self, username: str | None, password: str | None, limits: Limits, news: asyncio.Event) -> None:
        self._username = username
        self._password = password
        self._limits = limits
        self._news = news
        self._random = Random()
        self._tasks: dict[ServerAddress, asyncio.Task[None]] = {}
        self._batches: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self.dropped = 0
        """Batches that found no room."""

    def follow(self, servers: Iterable[ServerAddress]) -> None:
        """Reads these servers from now on, and no others."""
        wanted = {*servers}
        for server in [server for server in self._tasks if server not in wanted]:
            self._tasks.pop(server).cancel()
        for server in wanted - self._tasks.keys():
            self._tasks[server] = asyncio.create_task(self._read(server), name=f"telemetry {server.id}")

    def take(self) -> pa.Table:
        """What was read since the last call."""
        batches = list(self._batches)
        self._batches.clear()
        self._bytes = 0
        return pa.Table.from_batches(batches, BATCH_SCHEMA)

    async def close(self) -> None:
        """Ends all connections."""
        tasks = list(self._tasks.values())
        self.follow(())
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, server: ServerAddress) -> None:
        backoff = Backoff(
            reconnect_delay_s_min=self._limits.reconnect_delay_s_min,
            reconnect_delay_s_max=self._limits.reconnect_delay_s_max,
            random=self._random,
        )
        position = b""
        trouble = ""
        while True:
            asking = Asking(server, self._username, self._password, self._limits)
            try:
                await asking.open()
                position = position or await _newest(asking)
                while True:
                    position = await self._read_once(asking, position)
                    trouble = ""
                    backoff.reset()
                    await asyncio.sleep(POLL_S)
            except (ShoalError, hiredis.ReplyError, OSError) as error:
                if str(error) != trouble:
                    trouble = str(error)
                    _log.warning("the telemetry of a server cannot be read", server=server.id, why=trouble)
            finally:
                asking.close()
            await asyncio.sleep(backoff.next_delay_s())

    async def _read_once(self, asking: Asking, position: bytes) -> bytes:
        """Reads what is new; returns how far it came."""
        command = (b"XREAD", b"COUNT", b"%d" % READ_RECORDS, b"STREAMS", TELEMETRY_KEY, position)
        reply = await asking.ask(command)
        found = _entries(reply)
        if not found:
            return position
        entries = [(fields.get(ID_FIELD, b""), fields.get(DATA_FIELD, b"")) for _, fields in found]
        batch = entries_to_batch(entries, time.time())
        self._batches.append(batch)
        self._bytes += batch.nbytes
        while self._bytes > BUFFER_BYTES_MAX and len(self._batches) > 1:
            self._bytes -= self._batches.popleft().nbytes
            self.dropped += 1
        self._news.set()
        return found[-1][0]


async def _newest(asking: Asking) -> bytes:
    """The end of a stream as it is now; its beginning if there is none yet."""
    with contextlib.suppress(hiredis.ReplyError):
        reply = await asking.ask((b"XINFO", b"STREAM", TELEMETRY_KEY))
        return bytes(reply[b"last-generated-id"])
    return b"0-0"


def _entries(reply: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """The entries in the answer to XREAD: their ids and fields."""
    if reply is None:
        return []
    try:
        entries = reply[TELEMETRY_KEY] if isinstance(reply, dict) else dict(reply)[TELEMETRY_KEY]
        return [(id, dict(zip(fields[::2], fields[1::2], strict=True))) for id, fields in entries]
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"an answer to XREAD that is none: {error}") from error
