"""The telemetry of a store: its agent asks the store every second and appends a record to the store's stream.

Owns the questions and the stream's length. `meter` derives the figures. The clock of records is the wall clock, as for
servers.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import hiredis

from shoal.errors import ConnectError, ProtocolError
from shoal.load.record import xadd
from shoal.logs import get_log
from shoal.queues.agent.meter import QueueLoad, StoreMeter, StoreSample
from shoal.queues.message_format import KEY_PREFIX
from shoal.queues.script_loader import Scripts
from shoal.runtime import Runtime
from shoal.wire.connection import Connection

RECORDS_MAX: Final = 600
"""Records that a store keeps: ten minutes. Older ones are dropped."""
RECORDS_BYTES_MAX: Final = 8 * 1024 * 1024
"""The size of all records together; large records are kept for a shorter time."""
RECORDS_MIN: Final = 10

_log: Final = get_log(__name__)


class StoreTelemetry:
    """Writes the telemetry of one store. `queues` returns the queues on the store, each with its shards there."""

    def __init__(
        self,
        meter: StoreMeter,
        scripts: Scripts,
        queues: Callable[[], Mapping[bytes, Sequence[int]]],
        runtime: Runtime,
    ) -> None:
        self._meter = meter
        self._scripts = scripts
        self._queues = queues
        self._runtime = runtime
        self._records_max = RECORDS_MAX
        self._complained = ""

    async def write(self, connection: Connection) -> None:
        """Writes a record after each second, until the connection ends."""
        while True:
            wall_s = self._runtime.wall()
            await asyncio.sleep(math.floor(wall_s) + 1 - wall_s)
            try:
                await self.write_one(connection, round(self._runtime.wall()) - 1)
                self._complained = ""
            except ConnectError:
                return
            except (hiredis.ReplyError, ProtocolError, ValueError) as error:
                if str(error) != self._complained:
                    self._complained = str(error)
                    _log.warning("telemetry of the store not written", why=str(error))

    async def write_one(self, connection: Connection, second: int) -> None:
        """Writes the record of a second that has ended. Raises errors of the connection and of the store."""
        queues = dict(self._queues())
        states = await connection.ask(*((b"GET", KEY_PREFIX + queue + b":state") for queue in queues)) if queues else []
        there = {queue: line for queue, line in zip(queues, states, strict=True) if line is not None}
        asked = self._meter.changed(queues, there)
        loads: dict[bytes, QueueLoad | None] = dict.fromkeys(there)
        for queue, load in zip(
            asked, await asyncio.gather(*(self._load(connection, queue, queues[queue]) for queue in asked)), strict=True
        ):
            loads[queue] = load
        (info,) = await connection.ask((b"INFO",))
        sample = StoreSample.from_info(bytes(info), asyncio.get_running_loop().time())
        record = self._meter.close_second(second, self._runtime.wall(), sample, loads)
        command = xadd(record, self._records_max)
        self._records_max = min(max(RECORDS_BYTES_MAX // len(command[-1]), RECORDS_MIN), RECORDS_MAX)
        await connection.ask(command)

    async def _load(self, connection: Connection, queue: bytes, shards: Sequence[int]) -> QueueLoad | None:
        """The load of a queue; None if it was dropped in the meantime, or if a client has damaged it: the agent's core
        reports that, and the other queues are measured."""
        words = [b"%d" % shard for shard in shards]
        try:
            (reply,) = await connection.ask(
                (b"EVALSHA", self._scripts.look.sha, b"1", KEY_PREFIX + queue + b":", b"load", *words)
            )
            return QueueLoad.read(reply, shards)
        except (hiredis.ReplyError, ValueError):
            return None
