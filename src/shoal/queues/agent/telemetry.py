"""The telemetry of a store: its agent asks the store every second and appends a record to the store's stream.

Owns the questions and the stream's length. `meter` derives the figures. The clock of records is the wall clock, as for
servers. A queue's own clock advances by at most one second in a call, so the agent also calls the queues that clients
call too rarely: otherwise delayed messages would wait for a consumer, and after that for their delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import hiredis

from shoal.errors import ConnectError, ProtocolError
from shoal.load.record import xadd
from shoal.logs import get_log
from shoal.queues.agent.meter import QueueLoad, QueueSigns, StoreMeter, StoreSample
from shoal.queues.message_format import KEY_PREFIX
from shoal.queues.script_loader import Scripts
from shoal.runtime import Runtime
from shoal.wire.commands import Request
from shoal.wire.connection import Connection

RECORDS_MAX: Final = 600
"""Records that a store keeps: ten minutes. Older ones are dropped."""
RECORDS_BYTES_MAX: Final = 8 * 1024 * 1024
"""The size of all records together; large records are kept for a shorter time."""
RECORDS_MIN: Final = 10
STEADY_MS: Final = 900
"""A queue's clock that has advanced by so much in a second needs no call of the agent."""

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
        self._clocks: dict[bytes, int] = {}
        """The clock of each queue as of the last second."""

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
        there = await self._signs(connection, queues)
        await self._advance_clocks(connection, there)
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

    async def _signs(self, connection: Connection, queues: Iterable[bytes]) -> dict[bytes, QueueSigns]:
        """The signs of the queues that are there. One whose keys a client has damaged is left out."""
        questions = {queue: QueueSigns.questions(KEY_PREFIX + queue + b":") for queue in queues}
        if not questions:
            return {}
        pages: list[Sequence[Any] | None]
        try:
            replies = await connection.ask(*(one for asked in questions.values() for one in asked))
            count = len(QueueSigns._fields)
            pages = [replies[at : at + count] for at in range(0, len(replies), count)]
        except hiredis.ReplyError:  # of one of them
            pages = await asyncio.gather(*(self._page(connection, asked) for asked in questions.values()))
        signs = (QueueSigns.read(page) if page is not None else None for page in pages)
        return {queue: found for queue, found in zip(questions, signs, strict=True) if found is not None}

    async def _page(self, connection: Connection, questions: Sequence[Request]) -> Sequence[Any] | None:
        try:
            return await connection.ask(*questions)
        except hiredis.ReplyError:
            return None

    async def _advance_clocks(self, connection: Connection, queues: Mapping[bytes, QueueSigns]) -> None:
        """Let time pass in queues that clients call less often than every second, if something in them waits for it."""
        before, self._clocks = self._clocks, {}
        slow: list[bytes] = []
        for queue, signs in queues.items():
            now_ms = self._clocks[queue] = signs.clock_ms
            if now_ms - before.get(queue, now_ms) < STEADY_MS and signs.needs_time:
                slow.append(queue)
        await asyncio.gather(*(self._tick(connection, queue) for queue in slow))

    async def _tick(self, connection: Connection, queue: bytes) -> None:
        with contextlib.suppress(hiredis.ReplyError):
            (clock_ms,) = await connection.ask(
                (b"EVALSHA", self._scripts.admin.sha, b"1", KEY_PREFIX + queue + b":", b"tick")
            )
            self._clocks[queue] = clock_ms

    async def _load(self, connection: Connection, queue: bytes, shards: Sequence[int]) -> QueueLoad | None:
        """The load of a queue; None if it was dropped in the meantime, or if a client has damaged it: the agent's core
        reports that, and the other queues are measured."""
        words = [b"%d" % shard for shard in shards]
        try:
            (reply,) = await connection.ask(
                (b"EVALSHA", self._scripts.look.sha, b"1", KEY_PREFIX + queue + b":", b"load", *words)
            )
            return QueueLoad.read(reply, shards)
        except (hiredis.ReplyError, ProtocolError):
            return None
