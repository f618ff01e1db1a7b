"""Dead letters of queues as rows of the source, from a real store."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from tests.pipeline.source.streaming import table_of
from tests.support.queue_store import StoreClient, client_of, store_server
from tests.support.redis_server import RedisServer

from shoal.errors import ConfigError
from shoal.history.server_reader import Login
from shoal.pipeline.source.cluster_address import SourceAddress
from shoal.pipeline.source.dead_letters import UNREADABLE
from shoal.pipeline.source.offset_planner import OffsetPlanner
from shoal.pipeline.source.options import read_options
from shoal.plan.ring import ServerAddress
from shoal.queues.queue import Queue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def store() -> Iterator[RedisServer]:
    with store_server() as server:
        yield server


def listed(store: RedisServer) -> str:
    return f"q1={store.host}:{store.port}"


def read(store: RedisServer, **more: str) -> list[dict[str, Any]]:
    options = read_options({"servers": listed(store), "kind": "dead", **more})
    planner = OffsetPlanner(options, complete=True)
    rows: list[dict[str, Any]] = table_of(
        planner.parts(planner.first(), planner.next(planner.first())), options.kind
    ).to_pylist()
    return rows


async def bury(client: StoreClient, name: str, count: int) -> None:
    """Puts messages that fail at once."""
    await bury_in(client.queue(name), count)


async def bury_in(queue: Queue, count: int, first: int = 0) -> None:
    """Puts messages with numbers from `first` on, which fail at once."""
    for number in range(first, first + count):
        await queue.put(b"%d" % number, key="eu", id=f"order {number}", attributes={"country": "FR"})
    left = count
    async with queue.take(max_in_flight=1) as jobs:
        async for job in jobs:
            await job.fail("no such customer", dead=True)
            left -= 1
            if not left:
                break


async def test_dead_letters_are_rows(store: RedisServer) -> None:
    async with client_of(store) as client:
        await client.create("orders", shards=2)
        await client.create("other", shards=2)
        await bury(client, "orders", 3)
        rows = read(store, queue="orders")
        assert [row["payload"] for row in rows] == [b"0", b"1", b"2"]
        first = rows[0]
        assert (first["queue"], first["key"], first["id"], first["store"]) == ("orders", "eu", "order 0", "q1")
        assert (first["attributes"], first["reason"], first["attempts"]) == ('{"country":"FR"}', "no such customer", 1)
        now = dt.datetime.now(dt.UTC)
        assert now - dt.timedelta(minutes=5) < first["put_at"] < now
        assert now - dt.timedelta(minutes=5) < first["dead_at"] < now + dt.timedelta(seconds=5)
        letters = await client.queue("orders").dead()
        assert [letter.entry for letter in letters] == [row["entry"] for row in rows]
        assert read(store, queue="other") == []


async def test_letters_that_were_forgotten_are_no_loss(store: RedisServer) -> None:
    async with client_of(store) as client:
        queue = await client.create("some", shards=2)
        await bury(client, "some", 4)
        options = read_options({"servers": listed(store), "kind": "dead", "queue": "some"})
        planner = OffsetPlanner(options)
        start = planner.next(planner.first(), 2)
        letters = [letter.entry for letter in await queue.dead()]
        await queue.forget(*letters[:3])
        rows = table_of(planner.parts(start, planner.next(start)), options.kind).to_pylist()
        assert [row["payload"] for row in rows] == [b"3"]


class Places:
    """A cluster whose plan names the queues of its store."""

    login = Login(None, None)
    name = "places"

    def __init__(self, store: RedisServer, *queues: str) -> None:
        self._stores = {ServerAddress("q1", store.host, store.port): queues}

    def servers(self) -> tuple[ServerAddress, ...]:
        raise AssertionError("dead letters are on stores only")

    def stores(self) -> dict[ServerAddress, tuple[str, ...]]:
        return self._stores


async def test_a_pattern_selects_among_the_queues_of_the_plan(store: RedisServer) -> None:
    async with client_of(store) as client:
        for name in ("many.a", "many.b", "few"):
            await client.create(name, shards=2)
            await bury(client, name, 2)
    options = read_options({"servers": listed(store), "kind": "dead", "queue": "many.*"})
    options = replace(options, cluster=cast(SourceAddress, Places(store, "many.a", "many.b", "few")))
    planner = OffsetPlanner(options, complete=True)
    first = planner.first()
    rows = table_of(planner.parts(first, planner.next(first)), options.kind).to_pylist()
    assert sorted((row["queue"], row["payload"]) for row in rows) == [
        (name, payload) for name in ("many.a", "many.b") for payload in (b"0", b"1")
    ]


async def test_a_damaged_letter_is_a_row_that_says_so(store: RedisServer) -> None:
    """Numbers that Arrow cannot hold ended the job for all queues."""
    import redis

    async with client_of(store) as client:
        await client.create("broken", shards=2)
        with redis.Redis(host=store.host, port=store.port) as connection:
            connection.xadd("__shoal:q:broken:dead", {"key": "eu", "body": "?"})
            letter = {"key": "eu", "reason": "r", "attempts": "1", "at": "1", "body": "?"}
            stored = msgspec.msgpack.encode((b"1", b"", 1, b"p", b"x"))
            for field, value in (("at", "9" * 17), ("attempts", "9" * 30)):
                connection.xadd("__shoal:q:broken:dead", {**letter, "body": stored, field: value})
            late = msgspec.msgpack.encode((b"1", b"", 2**64 - 1, b"p", b"x"))
            connection.xadd("__shoal:q:broken:dead", {**letter, "body": late})
        rows = read(store, queue="broken")
        assert [(row["reason"], row["payload"]) for row in rows] == [(UNREADABLE, None)] * 4


async def test_dead_letters_of_another_type_hide_no_other_queue(store: RedisServer) -> None:
    import redis

    async with client_of(store) as client:
        for name in ("type.a", "type.b"):
            await client.create(name, shards=2)
            await bury(client, name, 1)
        with redis.Redis(host=store.host, port=store.port) as connection:
            connection.set("__shoal:q:type.a:dead", "no stream")
    options = read_options({"servers": listed(store), "kind": "dead", "queue": "type.*"})
    options = replace(options, cluster=cast(SourceAddress, Places(store, "type.a", "type.b")))
    planner = OffsetPlanner(options, complete=True)
    first = planner.first()
    rows = table_of(planner.parts(first, planner.next(first)), options.kind).to_pylist()
    assert [row["queue"] for row in rows] == ["type.b"]


def test_options_of_other_kinds_are_refused(store: RedisServer) -> None:
    for name in ("channel", "where", "rows", "startingTimestamp"):
        with pytest.raises(ConfigError, match="not for dead letters"):
            read_options({"servers": listed(store), "kind": "dead", name: "x"})
    for kind in ("channel", "telemetry"):
        with pytest.raises(ConfigError, match="queue"):
            read_options({"servers": listed(store), "kind": kind, "queue": "x"})


async def test_spark_reads_them(spark: SparkSession, store: RedisServer) -> None:
    async with client_of(store) as client:
        await client.create("spark", shards=2)
        await bury(client, "spark", 3)
    rows = spark.read.format("shoal").options(servers=listed(store), kind="dead", queue="spark").load()
    assert [row["payload"] for row in rows.where("attempts = 1").orderBy("put_at").collect()] == [b"0", b"1", b"2"]
