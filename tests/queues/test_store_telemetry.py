"""The telemetry that a store's agent writes, on a real store."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from tests.support.queue_store import client_of, store_server
from tests.support.redis_server import RedisServer

from shoal.errors import ShoalError
from shoal.load.record import DATA_FIELD, TelemetryRecord, decode
from shoal.load_kinds import KINDS
from shoal.queues.agent.meter import StoreMeter
from shoal.queues.agent.telemetry import StoreTelemetry
from shoal.queues.message_format import KEY_PREFIX
from shoal.queues.queue import NewMessage
from shoal.queues.queue_state import pack_state, unpack_state
from shoal.queues.script_loader import load_scripts
from shoal.runtime import PRODUCTION
from shoal.wire.connection import Connection
from shoal.wire.envelope import TELEMETRY_KEY


class Written:
    """A telemetry of queues, and the records that it wrote."""

    def __init__(self, server: RedisServer, connection: Connection) -> None:
        self.queues: dict[bytes, tuple[int, ...]] = {}
        self.meter = StoreMeter("q1", "a")
        self._connection = connection
        self._telemetry = StoreTelemetry(self.meter, load_scripts(), lambda: self.queues, PRODUCTION)
        self._second = 1000

    async def ask(self, *commands: tuple[bytes, ...]) -> list[Any]:
        """The replies of the store to these commands."""
        return await self._connection.ask(*commands)

    async def next(self) -> TelemetryRecord:
        """Writes one record, and reads it from the store."""
        self._second += 1
        await self._telemetry.write_one(self._connection, self._second)
        (entries,) = await self._connection.ask((b"XREVRANGE", TELEMETRY_KEY, b"+", b"-", b"COUNT", b"1"))
        fields = entries[0][1]
        return decode(dict(zip(fields[::2], fields[1::2], strict=True))[DATA_FIELD], KINDS)


@asynccontextmanager
async def written_on(server: RedisServer) -> AsyncIterator[Written]:
    connection = Connection(server.host, server.port, username=None, password=None, name="meter", dial=PRODUCTION.dial)
    await connection.open()
    await connection.ask(*((b"SCRIPT", b"LOAD", script.text) for script in load_scripts().of_agent))  # as agents do
    try:
        yield Written(server, connection)
    finally:
        connection.abort()


@pytest.fixture(scope="module")
def store() -> Iterator[RedisServer]:
    server = store_server()
    server.start()
    yield server
    server.stop()


async def test_a_store_reports_its_queues(store: RedisServer) -> None:
    async with client_of(store) as client, written_on(store) as written:
        orders = await client.create("orders", shards=4, messages_max=100_000)
        written.queues = {b"orders": (0, 1, 2, 3), b"nowhere": (0,)}
        first = await written.next()
        assert first.tables["queue"].rows()[b"orders/0"]["messages"] == 0
        await orders.put_many([NewMessage(b"x" * 10, key=f"k{number}") for number in range(200)])
        await orders.put("later", delay=60)
        second = await written.next()
        rows = second.tables["queue"].rows()
        assert sum(row["puts"] for row in rows.values()) == 201
        assert sum(row["messages"] for row in rows.values()) == 201
        assert sum(row["delayed"] for row in rows.values()) == 1
        assert sum(row["ready"] for row in rows.values()) == 200
        assert 0 < max(row["oldest_s"] for row in rows.values()) < 60
        assert second.host["queues"] == 1
        assert second.host["cpu_share"] is not None
        done = 0
        async with orders.take(max_in_flight=64) as jobs:
            async for job in jobs:
                await job.done()
                done += 1
                if done == 150:
                    break
        third = await written.next()
        rows = third.tables["queue"].rows()
        assert sum(row["dones"] for row in rows.values()) == written.meter.figures[b"orders"].dones_total >= 150
        assert sum(row["messages"] for row in rows.values()) == 201 - written.meter.figures[b"orders"].dones_total


async def test_a_shard_with_more_messages_is_seen_as_busier(store: RedisServer) -> None:
    """Keys repeat in the pattern that would fool a sample of every 64th message."""
    async with client_of(store) as client, written_on(store) as written:
        busy = await client.create("busy", shards=2, messages_max=100_000)
        names = [f"k{number}" for number in range(200)]
        of_first = [name for name in names if zlib.crc32(name.encode()) % 2 == 0][:12]
        of_second = [name for name in names if zlib.crc32(name.encode()) % 2 == 1][:4]
        written.queues = {b"busy": (0, 1)}
        await written.next()
        random = Random(1)
        pattern = [*of_first, *of_second]
        for _ in range(300):
            await busy.put_many([NewMessage(b"x", key=key) for key in pattern * 2])
            await asyncio.sleep(random.random() / 1000)
        rows = (await written.next()).tables["queue"].rows()
        assert rows[b"busy/0"]["puts"] + rows[b"busy/1"]["puts"] == 9600
        assert rows[b"busy/0"]["puts"] == pytest.approx(7200, abs=1500)


async def test_time_passes_in_a_queue_that_nobody_uses(store: RedisServer) -> None:
    """Its clock advances by one second in a call, so without calls a delay would begin when a consumer comes."""
    async with client_of(store) as client, written_on(store) as written:
        later, quiet = await client.create("later"), await client.create("quiet")
        written.queues = {b"later": (0,), b"quiet": (0,)}
        await later.put(b"x", delay=2.5)
        await quiet.put(b"x")

        async def clocks() -> list[int]:
            states = await written.ask(*((b"GET", KEY_PREFIX + name + b":state") for name in (b"later", b"quiet")))
            return [unpack_state(state)[0] for state in states]

        before = await clocks()
        for _ in range(4):
            await written.next()
            await asyncio.sleep(0.9)
        passed = [now - then for now, then in zip(await clocks(), before, strict=True)]
        assert passed[0] == pytest.approx(2700, abs=300)
        assert passed[1] == 0, "nothing in it waits for a time"
        async with later.take() as jobs, asyncio.timeout(1.5):
            await (await anext(jobs)).done()


async def test_a_queue_that_is_dropped_leaves_the_record(store: RedisServer) -> None:
    async with client_of(store) as client, written_on(store) as written:
        gone = await client.create("gone", shards=2)
        written.queues = {b"gone": (0, 1)}
        assert len((await written.next()).tables["queue"]) == 2
        await gone.drop()
        assert len((await written.next()).tables["queue"]) == 0
        assert written.meter.figures == {}


async def test_a_queue_that_a_client_has_damaged_does_not_hide_the_others(store: RedisServer) -> None:
    async with written_on(store) as written, client_of(store) as client:
        for name in ("damaged", "whole"):
            await (await client.create(name)).put(b"x")
            written.queues[name.encode()] = (0,)
        key = b"__shoal:q:damaged:state"
        for value in (b"no numbers", b""):
            await written._connection.ask((b"SET", key, value))
            found = await written._telemetry._load(written._connection, b"damaged", (0,))
            assert found is None
            assert await written._telemetry._load(written._connection, b"whole", (0,)) is not None
            await written.next()


@pytest.mark.parametrize(
    "command",
    [
        (b"SET", b"state", b"no numbers"),
        (b"SET", b"state", pack_state([1e300] * 19)),
        (b"SET", b"state", pack_state([float("nan")] * 19)),
        (b"SET", b"state", pack_state([-1.0] * 19)),
        (b"RPUSH", b"leases", b"x"),
        (b"RPUSH", b"state", b"x"),
        (b"RPUSH", b"dead", b"x"),
        (b"RPUSH", b"halted", b"x"),
        (b"RPUSH", b"work", b"x"),
        (b"HSET", b"work", b"p0", b"many"),
        (b"HSET", b"work", b"p0", b"9" * 40),
        (b"HSET", b"work", b"p0", b"-5"),
    ],
)
async def test_a_queue_that_is_damaged_in_use_does_not_hide_the_others(
    store: RedisServer, command: tuple[bytes, ...]
) -> None:
    """The agent wrote no telemetry for any queue on the store, and let no time pass in them."""
    async with written_on(store) as written, client_of(store) as client:
        await written._connection.ask((b"FLUSHALL",))
        for name in ("damaged", "whole"):
            await (await client.create(name)).put(b"x")
            written.queues[name.encode()] = (0, 1)
        await written.next()
        verb, key, *words = command
        damaged = b"__shoal:q:damaged:" + key
        await written._connection.ask((b"UNLINK", damaged), (verb, damaged, *words))
        with contextlib.suppress(ShoalError):
            await client.queue("damaged").put(b"x")
        await client.queue("whole").put(b"later", delay=60.0)
        before = written._telemetry._clocks[b"whole"]
        await written.next()
        assert written.meter.figures[b"whole"].messages == 2
        await written.next()
        assert written._telemetry._clocks[b"whole"] > before


async def test_consumers_and_dead_letters_of_a_quiet_queue_are_up_to_date(store: RedisServer) -> None:
    """Only a changed state made the agent ask again, and it does not count consumers without work, nor letters that are
    forgotten: `top` and metrics showed the old figures until the next put."""
    async with client_of(store) as client, written_on(store) as written:
        queue = await client.create("still", shards=2)
        written.queues = {b"still": (0, 1)}
        await queue.put(b"1", key="k")
        async with queue.take() as jobs:
            async for job in jobs:
                await job.fail("no", dead=True)
                break
        await written.next()
        assert written.meter.figures[b"still"].dead == 1
        await queue.forget(*(letter.entry for letter in await queue.dead()))
        await written.next()
        assert written.meter.figures[b"still"].dead == 0
        before = written.meter.figures[b"still"].consumers
        async with queue.take() as jobs:
            idle = asyncio.ensure_future(anext(aiter(jobs)))
            async with asyncio.timeout(30):
                while written.meter.figures[b"still"].consumers != before + 1:
                    await asyncio.sleep(0.02)
                    await written.next()
            idle.cancel()
            await asyncio.gather(idle, return_exceptions=True)
