"""A full disk under a store: nothing that was confirmed is lost, and the caller is told."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.queue_store import DURABLE, client_of
from tests.support.redis_server import RedisServer

from shoal.errors import QueueUnavailableError, StoreFullError
from shoal.queues.queue import NewMessage, Queue

DISK_MIB = 4


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    options = f"size={DISK_MIB}m,mode=0700"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", tmp_path], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"needs the right to mount: {mounted.stderr.decode().strip()}")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


def enlarge(disk: Path) -> None:
    subprocess.run(["mount", "-o", f"remount,size={4 * DISK_MIB}m", disk], check=True)


async def put_until_refused(queue: Queue, confirmed: list[bytes]) -> None:
    for number in range(1000 * DISK_MIB):
        payload = b"%05d" % number + bytes(4000)
        await queue.put(payload, key="k")
        confirmed.append(payload[:5])


async def test_a_store_with_a_full_disk_confirms_nothing_and_loses_nothing(disk: Path) -> None:
    """A server that syncs on every write ends when it cannot write."""
    with RedisServer(aof=True, config=(*DURABLE, f"dir {disk}")) as server:
        async with client_of(server, queue_put_timeout_s=1.0, connect_timeout_s=1.0) as client:
            queue = await client.create("disk", messages_max=100_000)
            confirmed: list[bytes] = []
            with pytest.raises((QueueUnavailableError, StoreFullError)) as raised:
                await put_until_refused(queue, confirmed)
            assert raised.value.do
            assert confirmed
            await asyncio.to_thread(enlarge, disk)
            await asyncio.to_thread(server.restart)
            stored = [message.payload[:5] for message in await queue.peek("k", 256)]
            assert stored == confirmed[: len(stored)]
            held = (await queue.stats()).messages
            assert len(confirmed) <= held <= len(confirmed) + 1  # the last one may have been written
            await queue.put_many([NewMessage(b"after", "k")])
