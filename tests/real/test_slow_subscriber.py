"""A slow subscriber: Redis disconnects it at its default limits, and it still accounts for every message.

The server uses the default `client-output-buffer-limit pubsub 32mb 8mb 60` of Redis, not the larger one of servers that
we start. The messages published while the subscriber does not read exceed that limit and the kernel's buffers, so its
connection is cut with messages in it.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support.cluster_thread import ClusterThread
from tests.support.connections import ask
from tests.support.redis_server import RedisServer

import shoal
from shoal.cluster import servers
from shoal.cluster.local import LocalCluster
from shoal.limits import DEFAULT_LIMITS, MIB, Limits
from shoal.message import Gap, Item, Message

CHANNEL = "slow"
PAYLOAD = b"x" * 65_536
MESSAGES = 1000
"""62.5 MiB: twice the limit, so that the kernel's buffers (some MiB) do not matter."""
WAIT_S = 60.0
WIDE = msgspec.structs.replace(DEFAULT_LIMITS, resend_bytes_max=128 * MIB, resend_total_bytes_max=128 * MIB)
"""Limits of a publisher that still has all messages for resending."""
PATIENT = msgspec.structs.replace(DEFAULT_LIMITS, server_lease_s=WAIT_S)
"""Limits of a reader that does not close its connection by itself before the server does."""
CUT_OFF = "overcoming of output buffer limits"


class Server:
    """The only server of a cluster, and how often it has disconnected a client."""

    def __init__(self, cluster: ClusterThread) -> None:
        self.url = cluster.url
        self.root: Path = cluster.call(_root)
        self._log = self.root / "logs" / "s1.log"
        self._before = self._count()

    def _count(self) -> int:
        return self._log.read_text(errors="replace").count(CUT_OFF)

    async def until_cut_off(self) -> None:
        async with asyncio.timeout(WAIT_S):
            while self._count() == self._before:  # noqa: ASYNC110 - a server's log tells nobody
                await asyncio.sleep(0.02)


async def _root(cluster: LocalCluster) -> Path:
    return cluster.directory.root


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterThread]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(servers, "OUTPUT_BUFFER_LIMIT", (32 * MIB, 8 * MIB, 60))
        with ClusterThread(servers=1) as one:
            yield one


@pytest.fixture
def server(cluster: ClusterThread) -> Server:
    return Server(cluster)


async def publish_all(writer: shoal.Bus) -> None:
    for _ in range(MESSAGES):
        await writer.publish(CHANNEL, PAYLOAD)
    await writer.drain()


async def read_after_a_pause(server: Server, limits: Limits) -> tuple[list[Item], shoal.Bus, shoal.Bus]:
    """Return the items of a subscriber that did not read while everything was published; the reader and the
    publisher.
    """
    async with (
        shoal.connect(server.url, limits=PATIENT) as reader,
        shoal.connect(server.url, limits=limits) as writer,
        reader.subscribe(CHANNEL) as messages,
    ):
        connection = reader.shell._connections["s1"]._connection
        assert connection is not None
        connection.pause()
        await publish_all(writer)
        await server.until_cut_off()
        connection.resume()
        return await take_all(messages), reader, writer


def count_exactly(items: list[Item], publisher: int) -> tuple[int, int]:
    """Return the numbers of delivered and of missing messages; checks that each number occurs once, in order, from 1
    on.
    """
    delivered = missing = 0
    for item in items:
        expected = delivered + missing + 1
        if isinstance(item, Gap):
            assert (item.channel, item.publisher, item.first) == (CHANNEL, publisher, expected)
            assert item.count is not None
            missing += item.count
        else:
            assert isinstance(item, Message)
            assert (item.channel, item.publisher, item.sequence) == (CHANNEL, publisher, expected)
            assert item.payload == PAYLOAD
            delivered += 1
    return delivered, missing


async def take_all(messages: shoal.Subscription) -> list[Item]:
    """Return items until all messages are accounted for, and any that arrive shortly after."""
    items: list[Item] = []
    accounted = 0
    async with asyncio.timeout(WAIT_S):
        while accounted < MESSAGES:
            taken = await messages.take(64)
            items += taken
            accounted += sum((item.count or 0) if isinstance(item, Gap) else 1 for item in taken)
    await asyncio.sleep(0.5)
    while (item := messages.get_nowait()) is not None:
        items.append(item)
    return items


def test_the_server_has_the_default_limits_of_redis(server: Server) -> None:
    configuration = (server.root / "servers" / "s1" / "server.conf").read_text()
    assert "client-output-buffer-limit pubsub 33554432 8388608 60" in configuration
    with RedisServer() as plain:
        answer = ask(plain.host, plain.port, None, None, "CONFIG", "GET", "client-output-buffer-limit")
    assert b"pubsub 33554432 8388608 60" in answer[b"client-output-buffer-limit"]
    assert len(PAYLOAD) * MESSAGES > 33554432 + 16 * MIB


async def test_what_the_publisher_no_longer_has_is_a_gap_and_the_rest_is_healed(server: Server) -> None:
    """The publisher's resend window (16 MiB) is smaller than the loss."""
    items, reader, writer = await read_after_a_pause(server, DEFAULT_LIMITS)
    delivered, missing = count_exactly(items, writer.client_id)
    assert delivered + missing == MESSAGES
    assert missing > 0
    assert delivered >= DEFAULT_LIMITS.resend_bytes_max // (len(PAYLOAD) + 64)
    assert all(item.reason for item in items if isinstance(item, Gap))
    assert reader.statistics().counters["healed"] > 0


async def test_what_the_publisher_still_has_is_healed(server: Server) -> None:
    items, _, writer = await read_after_a_pause(server, WIDE)
    assert count_exactly(items, writer.client_id) == (MESSAGES, 0)


async def test_a_frozen_process_catches_up(server: Server, tmp_path: Path) -> None:
    """The same with another process that is stopped altogether, while the clocks continue."""
    got = tmp_path / "got"
    words = ["sub", CHANNEL, "--url", server.url, "--format", "json", "--count", str(MESSAGES)]
    with got.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shoal.cli", *words), stdout=output, stderr=asyncio.subprocess.PIPE
        )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(WAIT_S):
            assert b"subscribed" in await process.stderr.readline()
        process.send_signal(signal.SIGSTOP)
        async with shoal.connect(server.url, limits=WIDE) as writer:
            await publish_all(writer)
            await server.until_cut_off()
            process.send_signal(signal.SIGCONT)
            async with asyncio.timeout(WAIT_S):
                assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines = [json.loads(line) for line in got.read_bytes().splitlines()]
    assert [line["sequence"] for line in lines] == list(range(1, MESSAGES + 1))
    assert {line["type"] for line in lines} == {"message"}
