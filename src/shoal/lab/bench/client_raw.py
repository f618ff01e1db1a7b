"""The contender `raw`: hiredis in a bare `asyncio.Protocol`, without any Shoal code.

The least that a client in Python can do: it parses, counts, and confirms in order. It detects no loss, does not
reconnect, limits nothing, and uses one server. Commands of one turn of the event loop go out in one write, and hiredis
gets its input in slices, as in any good client.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import Any, Final

import hiredis

from shoal.lab.bench.contender import BenchPublisher, BenchReceiver, BenchTarget
from shoal.wire.tls import client_context

SLICE_BYTES: Final = 16384


class _Connection(asyncio.Protocol):
    """One connection. Replies resolve the oldest waiting command; pushed messages are counted."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        self._transport: Any = None
        self._pending: list[bytes] = []
        self._waiting: deque[asyncio.Future[Any] | None] = deque()
        self._taken = 0
        self._wanted = 0
        self._enough: asyncio.Future[None] | None = None
        self._subscribed: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        gets = reader.gets
        taken = 0
        for offset in range(0, len(data), SLICE_BYTES):
            reader.feed(data, offset, min(SLICE_BYTES, len(data) - offset))
            while (frame := gets()) is not False:
                if type(frame) is not hiredis.PushNotification:
                    waiter = self._waiting.popleft()
                    if waiter is not None:
                        waiter.set_result(frame)
                elif frame[0] == b"message":
                    taken += 1
                else:
                    self._subscribed.set_result(None)
        self._taken += taken
        if self._enough is not None and self._taken >= self._wanted:
            self._enough.set_result(None)
            self._enough = None

    def command(self, *words: bytes | str) -> asyncio.Future[Any]:
        self.write(hiredis.pack_command(words))  # type: ignore[arg-type]  # its stub knows tuples of one item
        waiter = self._loop.create_future()
        self._waiting.append(waiter)
        return waiter

    def write(self, data: bytes) -> None:
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append(data)

    def _flush(self) -> None:
        self._transport.write(b"".join(self._pending))
        self._pending.clear()

    async def subscribe(self, channel: str) -> None:
        self.write(hiredis.pack_command(("SUBSCRIBE", channel)))  # type: ignore[arg-type]
        await self._subscribed

    async def take(self, count: int) -> None:
        self._wanted += count
        if self._taken < self._wanted:
            self._enough = self._loop.create_future()
            await self._enough

    async def publish_batch(self, channel: str, payload: bytes, count: int) -> None:
        for _ in range(count - 1):
            self.write(hiredis.pack_command(("PUBLISH", channel, payload)))  # type: ignore[arg-type]
            self._waiting.append(None)
        await self.command("PUBLISH", channel, payload)

    def publish(self, channel: str, payload: bytes) -> asyncio.Future[Any]:
        return self.command("PUBLISH", channel, payload)

    async def close(self) -> None:
        self._transport.close()


async def _connect(target: BenchTarget) -> _Connection:
    tls = target.tls
    _, connection = await asyncio.get_running_loop().create_connection(
        _Connection, target.host, target.port, ssl=client_context(tls) if tls else None
    )
    await connection.command("HELLO", "3", "AUTH", target.username, target.password)
    return connection


async def open_receivers(target: BenchTarget, channel: str, connections: int) -> list[BenchReceiver]:
    """See `contender.ClientLibrary`."""
    receivers: list[BenchReceiver] = []
    for _ in range(connections):
        connection = await _connect(target)
        await connection.subscribe(channel)
        receivers.append(connection)
    return receivers


async def open_publisher(target: BenchTarget, tasks: int) -> BenchPublisher:
    """See `contender.ClientLibrary`. All tasks share one connection."""
    return await _connect(target)


async def open_both(target: BenchTarget, channel: str) -> tuple[BenchReceiver, BenchPublisher]:
    """See `contender.ClientLibrary`. With RESP3 one connection can do both."""
    connection = await _connect(target)
    await connection.subscribe(channel)
    return connection, connection
