"""Replay into a queue: keys, ids, repeated replays, and a full queue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.archives import make_archive, message
from tests.support.queue_store import client_of, store_server
from tests.support.records import NOON_US
from tests.support.redis_server import RedisServer

from shoal.errors import ConfigError
from shoal.history.archive_location import ArchiveLocation
from shoal.pipeline.archive_order import ArchiveOrder
from shoal.pipeline.event_archive import ALWAYS
from shoal.pipeline.queue_target import QueueTarget, replayed_id
from shoal.pipeline.replay import Checkpoint, Pace, Replay, ReplayPlan, first_state
from shoal.queues.message_format import ID_BYTES_MAX
from shoal.queues.queue import Queue

PLAN = ReplayPlan(archive="a", channel=None, since=None, until=None, to="*", queue="orders", key="customer")


@pytest.fixture(scope="module")
def store() -> Iterator[RedisServer]:
    with store_server() as server:
        yield server


async def replayed(archive: Path, queue: Queue, key: str | None = None) -> None:
    order = ArchiveOrder(ArchiveLocation.of(archive), ALWAYS, None)
    state = first_state(PLAN, order.span)
    await Replay(order, QueueTarget(queue, key), Pace(None), state, Checkpoint(None)).run(lambda *_: None)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    rows = []
    for number in range(1, 31):
        more = {"payload": b"%d" % number, "attributes": f'{{"customer":{number % 3}}}'}
        rows.append(message("orders", 0xA11CE, number, NOON_US + number * 1000, **more))
    make_archive(tmp_path / "archive", rows)
    return tmp_path / "archive"


async def test_messages_are_put_in_order_by_key_and_once(store: RedisServer, archive: Path) -> None:
    async with client_of(store) as client:
        queue = await client.create("orders", shards=4)
        await replayed(archive, queue, "customer")
        await replayed(archive, queue, "customer")
        assert (await queue.stats()).messages == 30
        found: dict[bytes, list[int]] = {}
        async with queue.take(max_in_flight=30) as jobs:
            async for job in jobs:
                found.setdefault(job.key, []).append(int(job.payload))
                assert job.attributes is not None
                await job.done()
                if sum(map(len, found.values())) == 30:
                    break
        assert found == {b"%d" % key: [number for number in range(1, 31) if number % 3 == key] for key in range(3)}


async def test_the_key_is_the_channel_unless_an_attribute_is_named(store: RedisServer, archive: Path) -> None:
    async with client_of(store) as client:
        queue = await client.create("by_channel", shards=4)
        await replayed(archive, queue)
        (key,) = await queue.keys()
        assert (key.key, key.messages) == (b"orders", 30)
        with pytest.raises(ConfigError, match="key of a message"):
            await QueueTarget(queue, "customer").publish(b"", b"x", {"shoal_id": "1"})


async def test_a_full_queue_is_waited_for(store: RedisServer, archive: Path) -> None:
    async with client_of(store, queue_put_timeout_s=0.3) as client:
        queue = await client.create("small", shards=2, messages_max=5)
        running = asyncio.create_task(replayed(archive, queue, "customer"))
        done: list[int] = []
        async with queue.take(max_in_flight=2) as jobs:
            async for job in jobs:
                await asyncio.sleep(0.05)
                done.append(int(job.payload))
                await job.done()
                if len(done) == 30:
                    break
        await running
        assert sorted(done) == list(range(1, 31))


def test_long_ids_are_digests() -> None:
    assert replayed_id("orders/1/2/3") == b"orders/1/2/3"
    long = replayed_id("x" * 300 + "/1")
    assert len(long) <= ID_BYTES_MAX
    assert long != replayed_id("x" * 300 + "/2")
