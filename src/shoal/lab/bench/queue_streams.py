"""The contender `streams`: a plain consumer group of Redis Streams on our own connection class.

What a careful application writes by hand: batches of XADD in one pipeline; consumers that read with XREADGROUP, and
acknowledge and delete a batch (XACK, XDEL) in the same write as their next read. It has no order per key, no dedupe, no
lease that ends by itself, no bound, no retry and no dead letters. Without XDEL the stream would grow forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

from shoal.lab.bench.queue_contender import PutOne, QueueWorkload, Seen
from shoal.runtime import PRODUCTION
from shoal.wire.connection import Connection

GROUP: Final = b"group"
BLOCK_MS: Final = b"1000"


async def _connect(load: QueueWorkload) -> Connection:
    connection = Connection("127.0.0.1", load.port, username=None, password=None, name="bench", dial=PRODUCTION.dial)
    await connection.open()
    return connection


async def create(load: QueueWorkload) -> None:
    """Make the stream and its group."""
    connection = await _connect(load)
    await connection.ask((b"XGROUP", b"CREATE", load.queue.encode(), GROUP, b"0", b"MKSTREAM"))
    connection.close()


async def produce(load: QueueWorkload) -> None:
    """Batches of one producer, one after the other."""
    connection = await _connect(load)
    stream = load.queue.encode()
    for batch in load.batches():
        await connection.ask(*((b"XADD", stream, b"*", b"k", key, b"b", payload) for key, payload in batch))
    connection.close()


async def consume(load: QueueWorkload, seen: Seen) -> None:
    """Consumers of one group that read until all messages are acknowledged."""
    stream = load.queue.encode()
    left = load.messages
    over = asyncio.Event()
    connections = [await _connect(load) for _ in range(load.consumers)]

    async def take(connection: Connection, name: bytes) -> None:
        nonlocal left
        read = (b"XREADGROUP", b"GROUP", GROUP, name, b"COUNT", b"%d" % load.take_batch, b"BLOCK", BLOCK_MS)
        asked: Awaitable[list[Any]] = connection.ask((*read, b"STREAMS", stream, b">"))
        while True:
            (found,) = await asked
            entries = _entries(found)
            for _, fields in entries:
                seen(fields[3])
            if not entries:
                asked = connection.ask((*read, b"STREAMS", stream, b">"))
                continue
            ids = [id for id, _ in entries]
            ends = connection.ask((b"XACK", stream, GROUP, *ids), (b"XDEL", stream, *ids))
            ending = asyncio.ensure_future(ends)
            await asyncio.sleep(0)  # it is written before the next read
            asked = asyncio.ensure_future(connection.ask((*read, b"STREAMS", stream, b">")))
            await ending
            left -= len(entries)
            if left == 0:
                over.set()

    tasks = [asyncio.create_task(take(one, b"c%d" % number)) for number, one in enumerate(connections)]
    await over.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for connection in connections:
        connection.abort()


def _entries(found: Any) -> list[Any]:
    """The entries of a read: a map of streams in RESP3."""
    if not found:
        return []
    return list(next(iter(found.values()))) if isinstance(found, dict) else list(found[0][1])


async def open_put(load: QueueWorkload) -> PutOne:
    """A producer of single messages."""
    connection = await _connect(load)
    stream = load.queue.encode()

    async def put(payload: bytes) -> None:
        await connection.ask((b"XADD", stream, b"*", b"k", b"key:0000000", b"b", payload))

    return put
